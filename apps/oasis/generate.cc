// oasis generate: one prompt, one continuation.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "oasis/common.h"
#include "oasis/flags.h"
#include "oasis/text/chat_prompt.h"

namespace oasis::app {
namespace {

struct GenerateFlags : EngineFlags {
  std::string prompt, file, token_ids, system, follow;
  bool chat = false, json = false, ignore_eos = false;
  int max_tokens = 128, logprobs = -1;
  std::vector<std::string> stop;
  SamplingFlags sampling;
};

Result<std::vector<int32_t>> prompt_ids(const GenerateFlags& f, const text::Tokenizer& tokenizer) {
  const int given = !f.prompt.empty() + !f.file.empty() + !f.token_ids.empty();
  if (given != 1) return invalid_argument("give exactly one of -p TEXT, -f FILE and --token-ids IDS");
  if (!f.token_ids.empty()) return parse_ids(f.token_ids);
  std::string text = f.prompt;
  if (!f.file.empty()) {
    OASIS_ASSIGN_OR_RETURN(text, read_file(f.file));
  }
  if (!f.chat) return tokenizer.encode(text, true, tokenizer.add_bos());
  OASIS_ASSIGN_OR_RETURN(auto chat_template, text::ChatTemplate::compile(tokenizer.chat_template()));
  text::ChatInput input;
  if (!f.system.empty()) input.messages.push_back({.role = "system", .content = f.system});
  input.messages.push_back({.role = "user", .content = text});
  return text::encode_chat(tokenizer, chat_template, std::move(input));
}

int run(GenerateFlags& f) {
  if (Status s = f.resolve(); !s.ok()) return fail(s);
  if (Status s = f.sampling.resolve(); !s.ok()) return fail(s);
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status());
  auto ids = prompt_ids(f, *opened->tokenizer);
  if (!ids.ok()) return fail(ids.status());
  if (f.max_tokens < 1) return fail(invalid_argument("-n {}: must be at least 1", f.max_tokens));
  const auto& m = opened->checkpoint->config();
  if (f.config.max_context == 0) {
    f.config.max_context = std::min<int64_t>(m.context, static_cast<int64_t>(ids->size()) + f.max_tokens);
  }
  auto engine = engine::Engine::create(*opened->device, *opened->checkpoint, &*opened->tokenizer, f.config);
  if (!engine.ok()) return fail(engine.status());

  Progress progress("prefill");
  std::vector<int32_t> output;
  nlohmann::ordered_json logprobs = nlohmann::ordered_json::array();
  std::string text;
  engine::Event last;
  engine::Request request;
  request.prompt = *ids;
  request.max_tokens = f.max_tokens;
  request.sampling = f.sampling.params;
  request.sampling.logprobs = f.json ? f.logprobs : -1;
  request.stop = f.stop;
  request.ignore_eos = f.ignore_eos;
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
    if (!f.json && !e.text.empty()) {
      fmt::print("{}", e.text);
      std::fflush(stdout);
    }
    if (e.finish != engine::FinishReason::kNone) last = e;
  };
  int64_t followed = 0;
  if (!f.follow.empty()) {
    auto forced = parse_ids(f.follow);
    if (!forced.ok()) return fail(forced.status());
    request.forced = std::move(*forced);
    request.on_logits = [&followed, ids = request.forced](int32_t index, std::span<const float> z) {
      if (static_cast<size_t>(index) >= ids.size()) return;
      followed += std::max_element(z.begin(), z.end()) - z.begin() == ids[static_cast<size_t>(index)];
    };
  }
  auto id = (*engine)->submit(std::move(request));
  if (!id.ok()) return fail(id.status());
  watch_interrupt();
  while ((*engine)->step()) {
    if (interrupted()) (*engine)->cancel(*id);
  }
  if (last.finish == engine::FinishReason::kError) return fail(last.error);
  if (!f.json) {
    fmt::print("\n");
    return kDone;
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
  if (!f.follow.empty()) j["followed"] = followed;
  j.update(nlohmann::ordered_json::parse(metrics_json(**engine)));
  fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return kDone;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  auto* sub = app.add_subcommand("generate", "continue a prompt");
  flags->add_model(*sub);
  sub->add_option("-p,--prompt", flags->prompt, "the prompt");
  sub->add_option("-f,--file", flags->file, "read the prompt from a file");
  sub->add_option("--token-ids", flags->token_ids, "the prompt as token ids, for example 1,2,3");
  sub->add_flag("--chat", flags->chat, "the prompt is a user's message: apply the model's chat template");
  sub->add_option("--system", flags->system, "with --chat: the system message");
  sub->add_option("-n,--max-tokens", flags->max_tokens, "tokens to generate at most")->capture_default_str();
  sub->add_option("--stop", flags->stop, "end before this text (may be given several times)");
  sub->add_flag("--ignore-eos", flags->ignore_eos, "go on after an end-of-sequence token");
  sub->add_flag("--json", flags->json, "print one JSON object with the result and all counters");
  sub->add_option("--logprobs", flags->logprobs,
                  "with --json: log-probabilities of each token and of the N most likely");
  sub->add_option("--follow", flags->follow,
                  "go on with these token ids whatever the model chooses; --json says how often its best token was the "
                  "one (for comparisons)");
  flags->sampling.add(*sub);
  flags->add_engine(*sub);
  sub->footer(
      "Examples:\n"
      "  oasis generate -m model.gguf -p 'Once upon a time' -n 64\n"
      "  oasis generate -m model.gguf -f report.txt --chat --fast-memory 64MiB\n"
      "  oasis generate -m model.gguf -f book.txt --capacity-file /var/tmp/kv:20GiB --draft ngram --accept-drafts");
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
