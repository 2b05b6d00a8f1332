// Bodies of requests, and model output that is taken apart for reasoning and tool calls.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "oasis/serve/chat_output.h"
#include "oasis/serve/request.h"

namespace oasis::serve {
namespace {

// A byte a token, and a short template of the usual form.
const ServedModel& model() {
  static const text::Tokenizer tokenizer = [] {
    text::TokenizerSpec spec;
    for (char c = '!'; c <= '~'; ++c) spec.tokens.emplace_back(1, c);
    spec.tokens.emplace_back("<|im_end|>");
    spec.types.assign(spec.tokens.size(), text::kNormal);
    spec.types.back() = text::kControl;
    spec.chat_template =
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% endfor %}<|im_end|>{% endfor %}{{ tools | tojson }}<think>";
    auto made = text::Tokenizer::create(std::move(spec));
    if (!made.ok()) std::abort();
    return std::move(*made);
  }();
  static const ServedModel served = [] {
    ServedModel m{.name = "m", .tokenizer = &tokenizer, .vocab = tokenizer.vocab_size(), .context = 1000};
    m.max_choices = 8;
    describe_template(m);
    return m;
  }();
  return served;
}

// Taken: what the engine is given lies within its limits.
void check(const GenerateRequest& r) {
  if (r.prompts.empty() || r.choices() < 1 || r.choices() > model().max_choices) std::abort();
  for (const auto& prompt : r.prompts) {
    if (prompt.empty() || static_cast<int64_t>(prompt.size()) >= model().context) std::abort();
    for (const int32_t id : prompt) {
      if (id < 0 || id >= model().vocab) std::abort();
    }
  }
  if (!engine::validate(r.base.sampling, model().vocab).ok()) std::abort();
}

// In pieces or whole, an answer says the same.
void take_apart(std::string_view text) {
  const ChatFormat format{.thinks = true, .tools = true, .bare_calls = true, .tool_names = {"f"}};
  std::string results[2];
  for (int run = 0; run < 2; ++run) {
    const size_t piece = run == 0 ? 3 : text.size() + 1;
    ChatOutput output(format);
    ChatDelta all;
    const auto add = [&](ChatDelta d) {
      all.reasoning += d.reasoning;
      all.content += d.content;
      for (auto& call : d.calls) all.calls.push_back(std::move(call));
    };
    for (size_t at = 0; at < text.size(); at += piece) add(output.push(text.substr(at, piece)));
    add(output.finish());
    std::string& result = results[run];
    result = all.reasoning + '\0' + all.content;
    for (const auto& call : all.calls) result += '\0' + call.name + '\0' + call.arguments;
  }
  if (results[0] != results[1]) std::abort();
}

}  // namespace
}  // namespace oasis::serve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oasis::serve;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 2) {
    take_apart(body);
    return 0;
  }
  Json json;
  if (parse_object(body, json)) return 0;
  GenerateRequest request;
  const auto failure = data[0] % 3 == 0 ? parse_completion(json, model(), request) : parse_chat(json, model(), request);
  if (!failure) check(request);
  return 0;
}
