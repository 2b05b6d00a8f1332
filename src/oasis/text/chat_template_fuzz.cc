// Any template, over a conversation that uses every field, ends in a text or an error.
#include <cstdint>
#include <string>

#include "oasis/base/status.h"
#include "oasis/text/chat_template.h"
#include "oasis/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oasis::text;
  const auto compiled = ChatTemplate::compile(std::string(reinterpret_cast<const char*>(data), size));
  if (!compiled.ok()) return 0;
  ChatInput input;
  input.messages = {{"system", "Be brief.", ""},
                    {"user", "naïve \"q\"\n", R"({"n": 1.5, "list": [1, {"a": null}]})"},
                    {"assistant", "", R"({"tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]})"},
                    {"tool", "<tool_response>3</tool_response>", ""}};
  input.tools_json = R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])";
  input.extra_json = R"({"enable_thinking": false, "s": "text", "z": null})";
  input.bos_token = "<s>";
  input.now_unix_seconds = 1785060000;
  const auto rendered = compiled->render_marked(input);
  if (!rendered.ok()) {
    OASIS_CHECK(!rendered.status().message().empty(), "an error without a message");
    return 0;
  }
  OASIS_CHECK(is_valid_utf8(rendered->text), "the text is not UTF-8");
  OASIS_CHECK(rendered->from_input.empty() || rendered->from_input.size() == rendered->text.size(),
              "marks: {}, bytes: {}", rendered->from_input.size(), rendered->text.size());
  return 0;
}
