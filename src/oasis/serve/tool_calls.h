// Tool calls in a model's text.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace oasis::serve {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object as text, as the API has it
};

// What stands between <tool_call> and </tool_call>: {"name", "arguments"} (Qwen3) or a list of them (SmolLM2). Nothing
// if it is anything else.
std::optional<std::vector<ToolCall>> parse_tagged_calls(std::string_view text);

// A whole answer that is one call or several with ';' between: {"name", "parameters"} (Llama 3.1). All must be of
// `known` tools: an answer may be JSON without being a call.
std::optional<std::vector<ToolCall>> parse_bare_calls(std::string_view text, const std::set<std::string>& known);

}  // namespace oasis::serve
