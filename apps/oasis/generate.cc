// oasis generate: one prompt, one continuation.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "oasis/checks.h"
#include "oasis/common.h"
#include "oasis/flags.h"
#include "oasis/text/chat_prompt.h"

namespace oasis::app {
namespace {

struct GenerateFlags : EngineFlags {
  std::optional<std::string> prompt, file, token_ids, system, follow;
  bool chat = false, json = false, ignore_eos = false;
  int max_tokens = 128, logprobs = -1;
  std::vector<std::string> stop;
  SamplingFlags sampling;
};

// What can be said before the model is opened.
Status check_flags(GenerateFlags& f) {
  OASIS_RETURN_IF_ERROR(f.resolve());
  OASIS_RETURN_IF_ERROR(f.sampling.resolve());
  if (f.prompt.has_value() + f.file.has_value() + f.token_ids.has_value() != 1) {
    return invalid_argument("give exactly one of -p TEXT, -f FILE and --token-ids IDS");
  }
  if (f.token_ids && f.chat) return invalid_argument("--chat: needs a text (-p or -f), not --token-ids");
  if (f.system && !f.chat) return invalid_argument("--system: needs --chat");
  if (f.logprobs >= 0 && !f.json) return invalid_argument("--logprobs: needs --json");
  return {};
}

Result<std::vector<int32_t>> encode_prompt(const GenerateFlags& f, const std::string& text,
                                           const text::Tokenizer& tokenizer) {
  if (!f.chat) return tokenizer.encode(text, true, tokenizer.add_bos());
  if (tokenizer.chat_template().empty()) {
    return unsupported("--chat: '{}' has no chat template; leave --chat out", f.model);
  }
  OASIS_ASSIGN_OR_RETURN(auto chat_template, text::ChatTemplate::compile(tokenizer.chat_template()));
  text::ChatInput input;
  if (f.system) input.messages.push_back({.role = "system", .content = *f.system});
  input.messages.push_back({.role = "user", .content = text});
  return text::encode_chat(tokenizer, chat_template, std::move(input));
}

// The whole input of the request, checked against the model.
Status make_request(GenerateFlags& f, const std::string& text, const OpenModel& model, engine::Request& request) {
  const auto& m = model.checkpoint->config();
  const char* source = f.token_ids ? "--token-ids" : f.file ? "-f" : "-p";
  if (f.token_ids) {
    OASIS_ASSIGN_OR_RETURN(request.prompt, parse_ids(source, *f.token_ids));
    OASIS_RETURN_IF_ERROR(check_ids(source, request.prompt, m.vocab));
  } else {
    OASIS_ASSIGN_OR_RETURN(request.prompt, encode_prompt(f, text, *model.tokenizer));
  }
  if (f.follow) {
    OASIS_ASSIGN_OR_RETURN(request.forced, parse_ids("--follow", *f.follow));
    OASIS_RETURN_IF_ERROR(check_ids("--follow", request.forced, m.vocab));
  }
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid_argument("{}: the prompt is empty", source);
  if (length >= m.context) {
    return invalid_argument("{}: the prompt has {} tokens, and this model's context ends at {}", source, length,
                            m.context);
  }
  auto& context = f.config.max_context;
  if (context == 0) context = std::min<int64_t>(m.context, length + f.max_tokens);
  if (length >= context) {
    return invalid_argument("--context {}: the prompt has {} tokens, and an output needs room too", context, length);
  }
  request.max_tokens = f.max_tokens;
  request.sampling = f.sampling.params;
  request.sampling.logprobs = f.logprobs;
  request.stop = f.stop;
  request.ignore_eos = f.ignore_eos;
  return {};
}

int run(GenerateFlags& f) {
  if (Status s = check_flags(f); !s.ok()) return fail(s);
  std::string prompt_text = f.prompt.value_or("");
  if (f.file) {
    auto read = read_text(*f.file);
    if (!read.ok()) return fail(read.status(), kFailed);
    prompt_text = std::move(*read);
  }
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  engine::Request request;
  if (Status s = make_request(f, prompt_text, *opened, request); !s.ok()) return fail(s);
  watch_interrupt();
  auto engine = engine::Engine::create(*opened->device, *opened->checkpoint, &*opened->tokenizer, f.config);
  if (!engine.ok()) return fail(engine.status());

  Progress progress("prefill");
  std::vector<int32_t> output;
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
  std::string text;
  engine::Event last;
  request.on_event = [&](const engine::Event& e) {
    if (e.tokens.empty() && e.finish == engine::FinishReason::kNone)
      progress.update(e.prefilled, e.prompt_tokens);
    else
      progress.clear();
    for (const auto& t : e.tokens) {
      output.push_back(t.token);
      if (f.logprobs < 0) continue;
      nlohmann::ordered_json top = nlohmann::ordered_json::array();
      for (const auto& l : t.top) top.push_back({{"token", l.token}, {"logprob", l.logprob}});
      logprobs.push_back({{"token", t.token}, {"logprob", t.logprob}, {"top", top}});
    }
    text += e.text;
    if (!f.json) write_out(e.text);
    if (e.finish != engine::FinishReason::kNone) last = e;
  };
  int64_t followed = 0;
  if (f.follow) {
    request.on_logits = [&followed, ids = request.forced](int32_t index, std::span<const float> z) {
      if (static_cast<size_t>(index) >= ids.size()) return;
      followed += std::max_element(z.begin(), z.end()) - z.begin() == ids[static_cast<size_t>(index)];
    };
  }
  auto id = (*engine)->submit(std::move(request));
  if (!id.ok()) return fail(id.status());
  do {
    if (interrupted() != 0 || output_lost()) (*engine)->cancel(*id);
  } while ((*engine)->step());
  progress.clear();
  if (last.finish == engine::FinishReason::kError) return fail(last.error);
  const int code = interrupted() != 0 ? 128 + interrupted() : kDone;
  if (code == kDone) {
    if (Status s = (*engine)->save_prefix_cache(); !s.ok()) complain(s.message());
  }
  if (!f.json) {
    write_out("\n");
    return code;
  }
  const auto stats = (*engine)->take_stats(*id).value_or(engine::RequestStats{});
  const double tps = stats.decode_seconds > 0 ? (stats.output_tokens - 1) / stats.decode_seconds : 0;
  nlohmann::ordered_json j;
  j["prompt_tokens"] = stats.prompt_tokens;
  j["token_ids"] = output;
  j["text"] = text;
  j["finish_reason"] = std::string(to_string(last.finish));
  j["prefill"] = {{"seconds", stats.prefill_seconds}};
  j["decode"] = {{"steps", stats.steps},
                 {"tokens", stats.output_tokens},
                 {"seconds", stats.decode_seconds},
                 {"tokens_per_second", tps}};
  j["draft"] = {
      {"proposed", stats.proposed}, {"compared", stats.compared}, {"right", stats.right}, {"accepted", stats.accepted}};
  j["attention"] = {{"sparse_steps", stats.sparse_steps}, {"dense_steps", stats.steps - stats.sparse_steps}};
  if (f.logprobs >= 0) j["logprobs"] = logprobs;
  if (f.follow) j["followed"] = followed;
  j.update(nlohmann::ordered_json::parse(metrics_json(**engine)));
  emit("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return code;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  auto* sub = app.add_subcommand("generate", "continue a prompt");
  flags->add_model(*sub);
  const auto add = [&](const char* group, const char* name, auto& value, const char* type, const char* text) {
    return sub->add_option(name, value, text)->group(group)->type_name(type);
  };
  const char* prompt = "Prompt (one of the first three)";
  add(prompt, "-p,--prompt", flags->prompt, "TEXT", "the prompt");
  add(prompt, "-f,--file", flags->file, "FILE", "read the prompt from a file; -: from standard input");
  add(prompt, "--token-ids", flags->token_ids, "IDS", "the prompt as token ids, for example 1,2,3");
  sub->add_flag("--chat", flags->chat, "the prompt is a user's message: apply the model's chat template")
      ->group(prompt);
  add(prompt, "--system", flags->system, "TEXT", "with --chat: the system message");
  const char* output = "Output";
  add(output, "-n,--max-tokens", flags->max_tokens, "N", "tokens to generate at most")
      ->check(whole_number(1, std::numeric_limits<int32_t>::max()))
      ->capture_default_str();
  add(output, "--stop", flags->stop, "TEXT", "end before this text (may be given several times)")
      ->check(not_empty())
      ->allow_extra_args(false);
  sub->add_flag("--ignore-eos", flags->ignore_eos, "go on after an end-of-sequence token")->group(output);
  sub->add_flag("--json", flags->json, "print one JSON object with the result and all counters")->group(output);
  add(output, "--logprobs", flags->logprobs, "N",
      "with --json: log-probabilities of each token and of the N likeliest, 0 .. 20")
      ->check(whole_number(0, 20));
  add(output, "--follow", flags->follow, "IDS",
      "go on with these token ids whatever the model chooses; --json says how\n"
      "often its best token was the one (for comparisons)");
  flags->sampling.add(*sub);
  flags->add_engine(*sub);
  sub->footer(fmt::format(
      "Examples:\n"
      "  oasis generate -m model.gguf -p 'Once upon a time' -n 64\n"
      "  oasis generate -m model.gguf -f report.txt --chat --fast-memory 64MiB\n"
      "  oasis generate -m model.gguf -f book.txt --capacity-file /var/tmp/kv --draft ngram --accept-drafts\n"
      "{}",
      kExitCodes));
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
