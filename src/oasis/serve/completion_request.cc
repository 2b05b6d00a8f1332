// /v1/completions: a prompt in one of four forms.
#include <fmt/format.h>

#include "oasis/serve/request.h"

namespace oasis::serve {
namespace {

Failure add_prompt(const Json& prompt, const ServedModel& model, bool add_special, GenerateRequest& out) {
  std::vector<int32_t> ids;
  if (prompt.is_string()) {
    const auto& text = prompt.get_ref<const std::string&>();
    if (text.empty()) return bad_request("prompt: must not be empty", "prompt");
    ids = model.tokenizer->encode(text, true, add_special && model.tokenizer->add_bos());
    out.prompt_text += text;
  } else {
    const Json holder = {{"prompt", prompt}};
    Fields f(holder);
    f.ids("prompt", model.vocab, ids);
    if (f.failed()) return f.failure();
  }
  if (ids.empty()) return bad_request("prompt: must have at least one token", "prompt");
  out.prompts.push_back(std::move(ids));
  return {};
}

// A string, a list of ids, a list of strings, or a list of lists of ids.
Failure parse_prompts(const Json& body, const ServedModel& model, bool add_special, GenerateRequest& out) {
  const auto it = body.find("prompt");
  if (it == body.end() || it->is_null()) return bad_request("prompt: is missing", "prompt");
  const Json& prompt = *it;
  if (prompt.is_string()) return add_prompt(prompt, model, add_special, out);
  if (!prompt.is_array()) {
    return bad_request(fmt::format("prompt: must be a string or a list, not {}", shown(prompt)), "prompt");
  }
  if (prompt.empty()) return bad_request("prompt: must not be empty", "prompt");
  if (prompt[0].is_number()) return add_prompt(prompt, model, add_special, out);
  if (static_cast<int64_t>(prompt.size()) * out.n > model.max_choices) {
    return bad_request(fmt::format("prompt: {} prompts, n = {} each, are more than this server takes at once ({})",
                                   prompt.size(), out.n, model.max_choices),
                       "prompt");
  }
  for (const Json& item : prompt) {
    if (item.type() != prompt[0].type() || (!item.is_string() && !item.is_array())) {
      return bad_request("prompt: a list holds token ids, or strings, or lists of token ids, and nothing else",
                         "prompt");
    }
    if (Failure failure = add_prompt(item, model, add_special, out)) return failure;
  }
  return {};
}

}  // namespace

Failure parse_completion(const Json& body, const ServedModel& model, GenerateRequest& out) {
  if (Failure failure = check_model(body, model)) return failure;
  Fields f(body);
  out.base.max_tokens = 16;  // the API's default
  parse_common(f, model, out);
  f.boolean("echo", out.echo);
  bool add_special = true;
  f.boolean("add_special_tokens", add_special);
  f.whole("logprobs", 0, 20, out.base.sampling.logprobs);
  if (f.failed()) return f.failure();
  if (out.echo) out.base.prompt_logprobs = out.base.sampling.logprobs;
  if (out.base.max_tokens == 0) {
    if (!out.echo) return bad_request("max_tokens: 0 needs echo: true, or there is nothing to answer", "max_tokens");
    out.prompt_only = true;
    out.base.max_tokens = 1;
  }
  if (out.n > model.max_choices) {
    return bad_request(
        fmt::format("n: {} choices are more than this server takes at once ({})", out.n, model.max_choices), "n");
  }
  if (Failure failure = parse_prompts(body, model, add_special, out)) return failure;
  return check_length(out, model);
}

}  // namespace oasis::serve
