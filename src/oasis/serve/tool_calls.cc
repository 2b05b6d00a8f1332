#include "oasis/serve/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>

#include "oasis/serve/fields.h"

namespace oasis::serve {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// One call: a name, and arguments that are an object (or the text of one, or absent).
bool take_call(const Json& value, std::vector<ToolCall>& calls) {
  if (!value.is_object()) return false;
  const auto name = value.find("name");
  if (name == value.end() || !name->is_string()) return false;
  ToolCall call{.name = name->get<std::string>(), .arguments = "{}"};
  for (const char* key : {"arguments", "parameters"}) {
    const auto it = value.find(key);
    if (it == value.end() || it->is_null()) continue;
    if (it->is_object()) {
      call.arguments = it->dump();
    } else if (it->is_string() && Json::accept(it->get_ref<const std::string&>())) {
      call.arguments = it->get<std::string>();
    } else {
      return false;
    }
    break;
  }
  calls.push_back(std::move(call));
  return true;
}

bool take_calls(std::string_view text, std::vector<ToolCall>& calls) {
  Json value;
  // Nested deeper than a body may be, it is no call either.
  if (parse_object(fmt::format("{{\"calls\":{}}}", text), value)) return false;
  const Json& found = value["calls"];
  if (value.size() != 1) return false;
  if (!found.is_array()) return take_call(found, calls);
  return std::all_of(found.begin(), found.end(), [&](const Json& item) { return take_call(item, calls); });
}

// The end of the JSON object that `text` begins with; npos: it does not end.
size_t object_end(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return text.npos;
}

}  // namespace

std::optional<std::vector<ToolCall>> parse_tagged_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  if (!take_calls(trimmed(text), calls)) return std::nullopt;
  return calls;
}

std::optional<std::vector<ToolCall>> parse_bare_calls(std::string_view text, const std::set<std::string>& known) {
  std::vector<ToolCall> calls;
  constexpr std::string_view kTag = "<|python_tag|>";
  text = trimmed(text);
  if (text.starts_with(kTag)) text = trimmed(text.substr(kTag.size()));
  while (!text.empty()) {
    const size_t end = object_end(text);
    if (text[0] != '{' || end == text.npos || !take_calls(text.substr(0, end), calls)) return std::nullopt;
    if (!known.contains(calls.back().name)) return std::nullopt;
    text = trimmed(text.substr(end));
    if (text.starts_with(';')) text = trimmed(text.substr(1));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

}  // namespace oasis::serve
