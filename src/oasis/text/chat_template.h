// Chat templates: the part of Jinja that models' templates use, rendered as Python's jinja2 does under the settings of
// the transformers library (trim_blocks, lstrip_blocks, immutable values).
//
// A template comes with a model file and is not trusted: nesting, work and output are bounded, and what is outside the
// subset is an error that names it and its line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::text {

struct ChatMessage {
  std::string role;
  std::string content;
  // A JSON object with further fields of the message: tool_calls, tool_call_id, name, reasoning_content, ... A field
  // "content" here replaces the above (null, or a list of parts). Empty: none. Where tool_calls[].function.arguments is
  // a string holding a JSON object, the template sees the object.
  std::string extra_json;
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::string tools_json;  // a JSON array of tool definitions; empty: no tools (`tools` is none)
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::string extra_json;  // a JSON object of further variables (chat_template_kwargs, as enable_thinking); empty: none
  std::optional<int64_t> now_unix_seconds;  // for strftime_now, in UTC; not set: the clock, in local time
};

// Rendered text and, for each of its bytes, whether it came from the input (messages, tools, extra variables) and not
// from the template. Roles made of letters, digits, '_' and '-' alone, and the BOS and EOS texts, count as the
// template's.
struct RenderedChat {
  std::string text;
  std::string from_input;  // as long as text: 1 or 0; or empty: nothing from the input
};

class ChatTemplate {
 public:
  static Result<ChatTemplate> compile(std::string source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Invalid UTF-8 in the input counts as U+FFFD. May be called from any number of threads.
  Result<std::string> render(const ChatInput& input) const;
  Result<RenderedChat> render_marked(const ChatInput& input) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace oasis::text
