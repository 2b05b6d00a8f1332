// oasis generate: one prompt, one continuation.
#include <charconv>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "oasis/common.h"
#include "oasis/text/chat_prompt.h"

namespace oasis::app {
namespace {

struct GenerateFlags : EngineFlags {
  std::string prompt, file, token_ids;
  bool chat = false, json = false, ignore_eos = false;
  int max_tokens = 128;
  std::vector<std::string> stop;
  engine::SamplingParams sampling;
};

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found("cannot read '{}'", path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && *next != ',')) {
      return invalid_argument("--token-ids '{}': write ids between commas, for example 1,2,3", text);
    }
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  return ids;
}

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
  input.messages.push_back({.role = "user", .content = text});
  return text::encode_chat(tokenizer, chat_template, std::move(input));
}

int run(GenerateFlags& f) {
  if (Status s = f.resolve(); !s.ok()) return fail(s);
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
  std::string text;
  engine::Event last;
  engine::Request request;
  request.prompt = *ids;
  request.max_tokens = f.max_tokens;
  request.sampling = f.sampling;
  request.stop = f.stop;
  request.ignore_eos = f.ignore_eos;
  request.on_event = [&](const engine::Event& e) {
    if (e.tokens.empty() && e.finish == engine::FinishReason::kNone)
      progress.update(e.prefilled, e.prompt_tokens);
    else
      progress.clear();
    for (const auto& t : e.tokens) output.push_back(t.token);
    text += e.text;
    if (!f.json && !e.text.empty()) {
      fmt::print("{}", e.text);
      std::fflush(stdout);
    }
    if (e.finish != engine::FinishReason::kNone) last = e;
  };
  auto id = (*engine)->submit(std::move(request));
  if (!id.ok()) return fail(id.status());
  (*engine)->run_until_idle();
  if (last.finish == engine::FinishReason::kError) return fail(last.error);
  if (!f.json) {
    fmt::print("\n");
    return kDone;
  }
  const auto stats = (*engine)->take_stats(*id).value_or(engine::RequestStats{});
  const auto metrics = (*engine)->metrics();
  const auto& c = metrics.core;
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
  j["memory"] = {{"weights_bytes", metrics.weight_bytes},
                 {"fast_bytes_limit", metrics.fast_bytes_limit},
                 {"fast_bytes_peak", metrics.fast_bytes_peak},
                 {"capacity_bytes", metrics.capacity_bytes},
                 {"rss_peak_bytes", peak_rss_bytes()}};
  j["fetch"] = {{"bytes", c.bytes},   {"blocks", c.blocks},     {"hits", c.hits},
                {"misses", c.misses}, {"admitted", c.admitted}, {"refused", c.refused_cap + c.refused_absent},
                {"demand", c.demand}};
  j["lookahead"] = {{"agreement", c.agreement()}};
  j["draft"] = {{"name", (*engine)->drafter().name()},
                {"proposed", stats.proposed},
                {"compared", stats.compared},
                {"right", stats.right},
                {"accepted", stats.accepted}};
  j["stages"] = {{"predict", c.predict_seconds},
                 {"select", c.select_seconds},
                 {"transfer", c.transfer_seconds},
                 {"wait", c.wait_seconds}};
  fmt::print("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return kDone;
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  auto* sub = app.add_subcommand("generate", "continue a prompt");
  flags->add_all(*sub);
  sub->add_option("-p,--prompt", flags->prompt, "the prompt");
  sub->add_option("-f,--file", flags->file, "read the prompt from a file");
  sub->add_option("--token-ids", flags->token_ids, "the prompt as token ids, for example 1,2,3");
  sub->add_flag("--chat", flags->chat, "the prompt is a user's message: apply the model's chat template");
  sub->add_option("-n,--max-tokens", flags->max_tokens, "tokens to generate at most")->capture_default_str();
  sub->add_option("--stop", flags->stop, "end before this text (may be given several times)");
  sub->add_flag("--ignore-eos", flags->ignore_eos, "go on after an end-of-sequence token");
  sub->add_flag("--json", flags->json, "print one JSON object with the result and all counters");
  auto* s = sub->add_option_group("Sampling");
  s->add_option("--temperature", flags->sampling.temperature, "0: greedy")->capture_default_str();
  s->add_option("--top-k", flags->sampling.top_k, "0: off")->capture_default_str();
  s->add_option("--top-p", flags->sampling.top_p, "1: off")->capture_default_str();
  s->add_option("--min-p", flags->sampling.min_p, "0: off")->capture_default_str();
  s->add_option("--repetition-penalty", flags->sampling.repetition_penalty, "1: off")->capture_default_str();
  s->add_option("--presence-penalty", flags->sampling.presence_penalty)->capture_default_str();
  s->add_option("--frequency-penalty", flags->sampling.frequency_penalty)->capture_default_str();
  s->add_option("--seed", flags->sampling.seed, "the same seed and flags give the same tokens")->capture_default_str();
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
