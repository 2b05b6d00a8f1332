#include "oasis/serve/served_model.h"

namespace oasis::serve {

void describe_template(ServedModel& model) {
  const std::string& source = model.tokenizer->chat_template();
  const auto mentions = [&](std::string_view words) { return source.find(words) != source.npos; };
  model.template_takes_tools = mentions("tools");
  model.tagged_tool_calls = mentions("<tool_call>");
  model.thinks = mentions("<think>") || mentions("</think>");
  if (source.empty()) {
    model.template_error = "the model has no chat template";
    return;
  }
  auto compiled = text::ChatTemplate::compile(source);
  if (compiled.ok()) {
    model.chat_template = std::move(*compiled);
  } else {
    model.template_error = compiled.status().message();
  }
}

}  // namespace oasis::serve
