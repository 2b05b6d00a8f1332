// /v1/chat/completions: messages, tools and template variables.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "oasis/serve/request.h"
#include "oasis/text/chat_prompt.h"

namespace oasis::serve {
namespace {

// Fields of a message that templates know, besides role and content.
constexpr const char* kExtraFields[] = {"name", "tool_calls", "tool_call_id", "reasoning_content"};

// A string, or a list of text parts: their texts, a line each.
Failure content_text(const Json& content, const std::string& where, std::string& out) {
  if (content.is_null()) return {};
  if (content.is_string()) {
    out = content.get<std::string>();
    return {};
  }
  if (!content.is_array()) {
    return bad_request(fmt::format("{}: must be a string or a list of parts, not {}", where, shown(content)), where);
  }
  for (const Json& part : content) {
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      return bad_request(fmt::format("{}: a part must be an object with a type", where), where);
    }
    const auto text = part.find("text");
    if (*type != "text") {
      return bad_request(fmt::format("{}: parts of type {} are not supported: only \"text\" is", where, shown(*type)),
                         where);
    }
    if (text == part.end() || !text->is_string()) {
      return bad_request(fmt::format("{}: a part of type \"text\" must have a text", where), where);
    }
    if (!out.empty()) out += '\n';
    out += text->get_ref<const std::string&>();
  }
  return {};
}

bool is_word(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

Failure check_tool_calls(const Json& calls, const std::string& where) {
  if (!calls.is_array()) return bad_request(fmt::format("{}: must be a list, not {}", where, shown(calls)), where);
  for (const Json& call : calls) {
    const bool named = call.is_object() && call.contains("function") && call["function"].is_object() &&
                       call["function"].contains("name") && call["function"]["name"].is_string();
    if (!named) return bad_request(fmt::format("{}: each call must have a function with a name", where), where);
  }
  return {};
}

Failure parse_message(const Json& message, size_t index, text::ChatMessage& out) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object())
    return bad_request(fmt::format("{}: must be an object, not {}", where, shown(message)), where);
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() || !is_word(role->get_ref<const std::string&>())) {
    return bad_request(fmt::format("{}.role: must be a word such as system, user, assistant or tool", where),
                       where + ".role");
  }
  out.role = role->get<std::string>();
  if (out.role == "developer") out.role = "system";  // the newer name of the same thing
  Json extra = Json::object();
  for (const char* name : kExtraFields) {
    const auto it = message.find(name);
    if (it != message.end() && !it->is_null()) extra[name] = *it;
  }
  if (extra.contains("tool_calls")) {
    if (Failure failure = check_tool_calls(extra["tool_calls"], where + ".tool_calls")) return failure;
    if (extra["tool_calls"].empty()) extra.erase("tool_calls");
  }
  const auto content = message.find("content");
  const bool absent = content == message.end() || content->is_null();
  if (absent && out.role != "assistant")
    return bad_request(fmt::format("{}.content: is missing", where), where + ".content");
  if (!absent) {
    if (Failure failure = content_text(*content, where + ".content", out.content)) return failure;
  }
  if (!extra.empty()) out.extra_json = extra.dump();
  return {};
}

Failure check_tools(const Json& tools, std::set<std::string>& names) {
  if (!tools.is_array()) return bad_request(fmt::format("tools: must be a list, not {}", shown(tools)), "tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    const std::string where = fmt::format("tools[{}]", i);
    const bool function = tool.is_object() && tool.contains("type") && tool["type"] == "function" &&
                          tool.contains("function") && tool["function"].is_object();
    if (!function)
      return bad_request(fmt::format("{}: must be of type \"function\" and have a function", where), where);
    const Json& f = tool["function"];
    if (!f.contains("name") || !f["name"].is_string() || f["name"].get_ref<const std::string&>().empty()) {
      return bad_request(fmt::format("{}.function.name: must be a string", where), where + ".function.name");
    }
    names.insert(f["name"].get<std::string>());
  }
  return {};
}

// For a template that has no place for tools: what SmolLM2's model card puts into the system message.
std::string tools_as_text(const Json& tools) {
  return fmt::format(
      "You may call functions. These are available:\n<tools>{}</tools>\n\nTo call some of them, answer with this and "
      "nothing else:\n<tool_call>[{{\"name\": \"function name\", \"arguments\": {{\"argument name\": \"value\"}}}}]"
      "</tool_call>",
      tools.dump());
}

void add_to_system(std::vector<text::ChatMessage>& messages, const std::string& text) {
  if (messages.empty() || messages[0].role != "system") {
    messages.insert(messages.begin(), {.role = "system", .content = text});
  } else {
    messages[0].content += (messages[0].content.empty() ? "" : "\n\n") + text;
  }
}

// "none", "auto", or a wish that only constrained decoding could grant.
Failure parse_tool_choice(const Json& body, bool& wanted) {
  const auto it = body.find("tool_choice");
  if (it == body.end() || it->is_null() || *it == "auto") return {};
  if (*it == "none") {
    wanted = false;
    return {};
  }
  return bad_request(
      fmt::format("tool_choice: {} is not supported by this server: \"auto\" and \"none\" are", shown(*it)),
      "tool_choice");
}

Failure parse_input(const Json& body, const ServedModel& model, text::ChatInput& input) {
  if (!model.chat_template) return bad_request(fmt::format("no chat with this model: {}", model.template_error));
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array() || messages->empty()) {
    return bad_request("messages: must be a list with at least one message", "messages");
  }
  for (const Json& message : *messages) {
    input.messages.emplace_back();
    if (Failure failure = parse_message(message, input.messages.size() - 1, input.messages.back())) return failure;
  }
  Fields f(body);
  f.boolean("add_generation_prompt", input.add_generation_prompt);
  if (const Json* variables = f.object("chat_template_kwargs")) input.extra_json = variables->dump();
  return f.failure();
}

Failure encode(const ServedModel& model, text::ChatInput input, std::vector<int32_t>& ids) {
  auto encoded = text::encode_chat(*model.tokenizer, *model.chat_template, std::move(input));
  if (!encoded.ok()) {
    return bad_request(fmt::format("messages: the chat template says: {}", encoded.status().message()), "messages");
  }
  ids = std::move(*encoded);
  if (ids.empty()) return bad_request("messages: give no token at all", "messages");
  return {};
}

Failure parse_tools(const Json& body, const ServedModel& model, text::ChatInput& input, GenerateRequest& out) {
  bool wanted = true;
  if (Failure failure = parse_tool_choice(body, wanted)) return failure;
  const auto tools = body.find("tools");
  if (tools == body.end() || tools->is_null()) return {};
  if (Failure failure = check_tools(*tools, out.tool_names)) return failure;
  if (tools->empty() || !wanted) return {};
  out.parse_tools = true;
  if (model.template_takes_tools) {
    input.tools_json = tools->dump();
  } else {
    add_to_system(input.messages, tools_as_text(*tools));
  }
  return {};
}

bool ends_with_think(const ServedModel& model, const std::vector<int32_t>& ids) {
  const size_t tail = std::min<size_t>(ids.size(), 16);
  std::string text = model.tokenizer->decode(std::span(ids).last(tail));
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.ends_with("<think>");
}

}  // namespace

Failure encode_messages(const Json& body, const ServedModel& model, std::vector<int32_t>& ids) {
  text::ChatInput input;
  GenerateRequest unused;
  if (Failure failure = parse_input(body, model, input)) return failure;
  if (Failure failure = parse_tools(body, model, input, unused)) return failure;
  return encode(model, std::move(input), ids);
}

Failure parse_chat(const Json& body, const ServedModel& model, GenerateRequest& out) {
  if (Failure failure = check_model(body, model)) return failure;
  out.chat = true;
  Fields f(body);
  parse_common(f, model, out);
  bool logprobs = false;
  int32_t top = 0;
  f.boolean("logprobs", logprobs);
  f.whole("top_logprobs", 0, 20, top);
  if (top > 0 && !logprobs) f.fail("top_logprobs", "needs logprobs: true");
  if (logprobs) out.base.sampling.logprobs = top;
  if (f.failed()) return f.failure();
  if (out.n > model.max_choices) {
    return bad_request(
        fmt::format("n: {} choices are more than this server takes at once ({})", out.n, model.max_choices), "n");
  }
  text::ChatInput input;
  if (Failure failure = parse_input(body, model, input)) return failure;
  if (Failure failure = parse_tools(body, model, input, out)) return failure;
  std::vector<int32_t> ids;
  if (Failure failure = encode(model, std::move(input), ids)) return failure;
  out.opens_in_reasoning = model.thinks && ends_with_think(model, ids);
  out.prompt_text = model.tokenizer->decode(ids);
  out.prompts.push_back(std::move(ids));
  return check_length(out, model);
}

}  // namespace oasis::serve
