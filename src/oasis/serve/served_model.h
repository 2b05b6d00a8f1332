// The model as the API sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "oasis/text/chat_template.h"
#include "oasis/text/tokenizer.h"

namespace oasis::serve {

struct ServedModel {
  std::string name;
  const text::Tokenizer* tokenizer = nullptr;       // borrowed
  std::optional<text::ChatTemplate> chat_template;  // not set: no chat
  std::string template_error;                       // why there is none, where the model has one
  int64_t vocab = 0;
  int64_t context = 0;               // tokens of the longest sequence, prompt and output
  int64_t created = 0;               // Unix seconds
  int32_t max_choices = 1;           // choices of one request: what may run and wait at once
  float temperature = 1, top_p = 1;  // where a request does not say: the model's own, else the API's
  int32_t top_k = 0;
  // What the chat template says of the format.
  bool template_takes_tools = false;
  bool tagged_tool_calls = false;  // <tool_call>{..}</tool_call>; otherwise bare JSON objects count too
  bool thinks = false;             // <think>..</think> opens an answer
};

// Fills in everything that follows from the tokenizer.
void describe_template(ServedModel& model);

}  // namespace oasis::serve
