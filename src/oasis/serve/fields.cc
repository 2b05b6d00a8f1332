#include "oasis/serve/fields.h"

#include <fmt/format.h>

#include <cmath>

namespace oasis::serve {
namespace {

// Brackets outside of strings; false where they pass the limit.
bool shallow(std::string_view body) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxNesting) return false;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return true;
}

}  // namespace

Failure parse_object(std::string_view body, Json& out) {
  if (!shallow(body)) return bad_request(fmt::format("the body is nested more than {} levels deep", kMaxNesting));
  try {
    out = Json::parse(body);
  } catch (const Json::exception& e) {
    // Its message may quote bytes that are no UTF-8; to_json replaces them.
    return bad_request(fmt::format("the body is not JSON: {}", e.what()), "", "invalid_json");
  }
  if (!out.is_object()) return bad_request(fmt::format("the body must be a JSON object, and is {}", shown(out)));
  return {};
}

std::string shown(const Json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool whole_number(const Json& value, int64_t low, int64_t high, int64_t& out) {
  int64_t n = 0;
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    n = value.get<int64_t>();
  } else if (value.is_number_integer()) {
    n = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double x = value.get<double>();
    if (!(std::fabs(x) < 9e15) || x != std::floor(x)) return false;
    n = static_cast<int64_t>(x);
  } else {
    return false;
  }
  out = n;
  return n >= low && n <= high;
}

const Json* Fields::find(const char* name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::fail(const char* name, std::string message, std::string code) {
  if (failure_) return;
  const std::string full = prefix_ + name;
  failure_ = bad_request(fmt::format("{}: {}", full, message), full, std::move(code));
}

void Fields::boolean(const char* name, bool& out) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_boolean()) return fail(name, fmt::format("must be true or false, not {}", shown(*value)));
  out = value->get<bool>();
}

void Fields::text(const char* name, std::string& out) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_string()) return fail(name, fmt::format("must be a string, not {}", shown(*value)));
  out = value->get_ref<const std::string&>();
}

void Fields::number(const char* name, double low, double high, float& out) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_number()) return fail(name, fmt::format("must be a number, not {}", shown(*value)));
  const double x = value->get<double>();
  if (!(x >= low && x <= high)) return fail(name, fmt::format("{} does not lie in {} .. {}", shown(*value), low, high));
  out = static_cast<float>(x);
}

void Fields::whole(const char* name, int64_t low, int64_t high, int64_t& out) {
  const Json* value = find(name);
  if (!value) return;
  if (!whole_number(*value, low, high, out)) {
    fail(name, fmt::format("{} is not a whole number in {} .. {}", shown(*value), low, high));
  }
}

void Fields::whole(const char* name, int64_t low, int64_t high, int32_t& out) {
  int64_t wide = out;
  whole(name, low, std::min<int64_t>(high, std::numeric_limits<int32_t>::max()), wide);
  if (!failed()) out = static_cast<int32_t>(wide);
}

void Fields::ids(const char* name, int64_t vocab, std::vector<int32_t>& out) {
  const Json* value = find(name);
  if (!value) return;
  if (!value->is_array()) return fail(name, fmt::format("must be a list of token ids, not {}", shown(*value)));
  out.clear();
  out.reserve(value->size());
  for (const Json& item : *value) {
    int64_t id = 0;
    if (!whole_number(item, 0, vocab - 1, id)) {
      return fail(name, fmt::format("{} is not a token id: this model's lie in 0 .. {}", shown(item), vocab - 1));
    }
    out.push_back(static_cast<int32_t>(id));
  }
}

const Json* Fields::object(const char* name) {
  const Json* value = find(name);
  if (value && !value->is_object()) {
    fail(name, fmt::format("must be an object, not {}", shown(*value)));
    return nullptr;
  }
  return value;
}

}  // namespace oasis::serve
