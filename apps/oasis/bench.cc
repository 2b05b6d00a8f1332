// oasis bench: how fast prefill and decode are, and how close to what memory allows.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "oasis/base/units.h"
#include "oasis/checks.h"
#include "oasis/common.h"
#include "oasis/draft/make_drafter.h"
#include "oasis/flags.h"
#include "oasis/model/random_checkpoint.h"

namespace oasis::app {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

struct BenchFlags : EngineFlags {
  std::optional<std::string> file;
  int prompt_tokens = 512, max_tokens = 128, batch = 1, warm_up = 4;
  bool json = false, measure_bandwidth = false;
  std::string config_json, weights;  // in place of a model
  bool synthetic = false;
  std::string timeline;
};

// The seed in random:SEED, or nothing.
std::optional<uint64_t> random_seed(std::string_view text) {
  constexpr std::string_view kind = "random:";
  uint64_t seed = 0;
  if (!text.starts_with(kind)) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + kind.size(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return seed;
}

// A model of random weights with the shapes of a config.json.
Result<OpenModel> open_random(const BenchFlags& f) {
  OASIS_ASSIGN_OR_RETURN(const model::ModelConfig config, model::read_config_json(f.config_json));
  OpenModel m;
  OASIS_ASSIGN_OR_RETURN(m.device, open_device(f));
  m.checkpoint = model::make_random(config, *random_seed(f.weights), m.device->backend() != Backend::kCpu);
  return m;
}

// What can be said before anything is opened.
Status check_flags(BenchFlags& f) {
  OASIS_RETURN_IF_ERROR(f.resolve());
  if (f.config_json.empty() != f.weights.empty()) return invalid_argument("--config and --weights go together");
  if (f.model.empty() == f.config_json.empty()) {
    return invalid_argument("give exactly one of -m MODEL and --config config.json with --weights random:SEED");
  }
  if (!f.weights.empty() && !random_seed(f.weights)) {
    return invalid_argument("--weights {}: write random:SEED", f.weights);
  }
  return {};
}

// Bytes a second that all threads together read from memory: the best of five passes over half a gibibyte.
Result<double> read_bandwidth(Device& device) {
  if (device.backend() != Backend::kCpu) {
    return unsupported("--measure-bandwidth measures the CPU's memory; for a GPU run cuda_kernels_bench");
  }
  OASIS_ASSIGN_OR_RETURN(auto buffer, device.allocate(size_t{512} << 20));
  std::memset(buffer.data(), 1, buffer.bytes());
  const auto* words = buffer.as<const uint64_t>();
  const auto count = static_cast<int64_t>(buffer.bytes() / 8);
  constexpr int64_t kPieces = 512;
  std::vector<uint64_t> sums(kPieces);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto begin = Clock::now();
    device.foreground().pool().run(kPieces, [&](int64_t piece, int) {
      uint64_t sum = 0;
      for (int64_t i = piece * count / kPieces; i < (piece + 1) * count / kPieces; ++i) sum += words[i];
      sums[static_cast<size_t>(piece)] = sum;
    });
    best = std::max(best, static_cast<double>(buffer.bytes()) / seconds_since(begin));
  }
  return best;
}

Result<std::vector<int32_t>> prompt_of(const BenchFlags& f, const std::string& text, const OpenModel& m, int sequence) {
  std::vector<int32_t> ids;
  if (f.file) {
    ids = m.tokenizer->encode(text, false, false);
    if (static_cast<int>(ids.size()) < f.prompt_tokens) {
      return invalid_argument("-f {}: has {} tokens, --prompt-tokens asks for {}", *f.file, ids.size(),
                              f.prompt_tokens);
    }
    ids.resize(static_cast<size_t>(f.prompt_tokens));
    return ids;
  }
  uint64_t state = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(sequence + 1);
  for (int i = 0; i < f.prompt_tokens; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(m.checkpoint->config().vocab)));
  }
  return ids;
}

// What one step must read: all weights, the listed block-heads, the summaries.
int64_t bytes_a_step(const engine::Engine& engine, const BenchFlags& f, bool sparse, double context,
                     int64_t weight_bytes) {
  const auto& c = engine.plan().core;
  const auto& shape = c.shape;
  const double blocks = context / shape.block_size;
  const double listed = sparse ? std::min<double>(blocks, c.attend_blocks + 2) : blocks;
  const double heads = static_cast<double>(shape.layers) * shape.kv_heads;
  double each = listed * heads * static_cast<double>(shape.block_head_bytes());
  if (sparse) each += blocks * heads * static_cast<double>(shape.summary_rows_bytes());
  return weight_bytes + static_cast<int64_t>(each * f.batch);
}

// The last two steps in the format of Chrome's tracing (chrome://tracing, ui.perfetto.dev); times in microseconds.
Status write_timeline(engine::Engine& engine, const std::string& path) {
  const auto spans = engine.timeline();
  if (spans.empty()) return unsupported("--timeline: only steps captured on a GPU (--device cuda, sparse) are stamped");
  auto events = nlohmann::ordered_json::array();
  for (const auto& s : spans) {
    nlohmann::ordered_json e = {{"name", s.name},
                                {"ph", "X"},
                                {"pid", 0},
                                {"tid", s.track},
                                {"ts", static_cast<double>(s.begin_ns) / 1e3},
                                {"dur", static_cast<double>(s.end_ns - s.begin_ns) / 1e3}};
    e["args"] = {{"step", s.step}};
    if (s.layer >= 0) e["args"]["layer"] = s.layer;
    events.push_back(std::move(e));
  }
  std::ofstream out(path);
  out << nlohmann::ordered_json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ns"}}.dump() << '\n';
  if (!out.flush()) return Status(StatusCode::kIo, fmt::format("--timeline {}: cannot be written", path));
  return {};
}

const char* homes_of(const BenchFlags& f) {
  return f.config.synthetic_own_homes ? "every sequence has its own homes"
                                      : "sequences share one prompt's homes (not summaries or slots)";
}

int run(BenchFlags& f) {
  if (Status s = check_flags(f); !s.ok()) return fail(s);
  std::string text;
  if (f.file) {
    auto read = read_text(*f.file);
    if (!read.ok()) return fail(read.status(), kFailed);
    text = std::move(*read);
  }
  auto opened = f.model.empty() ? open_random(f) : open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  if (f.file && !opened->tokenizer) return fail(invalid_argument("-f {}: a model without a tokenizer", *f.file));
  watch_interrupt();
  if (f.config.prefill_share == 0) f.config.prefill_share = 1;  // nobody decodes before all prompts are in
  // With less the earlier sequences decode up to a token between two items of a later prompt: they get that many more,
  // so that all of them still run when the last prompt is in.
  const auto& m = opened->checkpoint->config();
  const int items = m.layers * ((f.prompt_tokens + f.config.prefill_chunk - 1) / f.config.prefill_chunk);
  const bool waits = f.config.prefill_share == 1;  // then nobody decodes before
  const auto tokens_of = [&](int sequence) {
    return f.max_tokens + (f.synthetic ? 2 * f.batch : waits ? 1 : items * (f.batch - 1 - sequence));
  };
  if (f.config.max_context == 0) {
    f.config.max_context = int64_t{f.prompt_tokens} + tokens_of(0);
    if (f.config.max_context > m.context) {
      return fail(invalid_argument(
          "--prompt-tokens {}: with {} tokens of output (--max-tokens, and more for each of --batch) it is longer than "
          "this model's context of {}",
          f.prompt_tokens, tokens_of(0), m.context));
    }
  }
  f.config.max_sequences = f.batch;
  f.config.prefix_cache = false;
  f.config.synthetic_prompts = f.synthetic;
  f.config.timeline = !f.timeline.empty();
  if (f.synthetic && f.config.capacity_memory == 0) {
    // The homes of the prompts, or of one that all share, and each one's own of what it decodes.
    auto drafter = draft::plan_drafter(f.config.draft, *opened->checkpoint,
                                       {.max_sequences = f.batch, .block_size = f.config.block_size});
    if (!drafter.ok()) return fail(drafter.status());
    auto plan =
        engine::plan_memory(m, f.config, {.fast_bytes = drafter->fast_bytes, .home_bytes = drafter->home_bytes});
    if (!plan.ok()) return fail(plan.status());
    const int bs = f.config.block_size;
    const int64_t prompts = f.config.synthetic_own_homes ? f.batch : 1;
    const int64_t homes = prompts * (f.prompt_tokens / bs + 4) + int64_t{f.batch} * (tokens_of(0) / bs + 3);
    f.config.capacity_memory = static_cast<uint64_t>(homes * plan->home_bytes);
  }
  const text::Tokenizer* tokenizer = opened->tokenizer ? &*opened->tokenizer : nullptr;
  auto made = engine::Engine::create(*opened->device, *opened->checkpoint, tokenizer, f.config);
  if (!made.ok()) return fail(made.status());
  auto& engine = **made;
  double bandwidth = 0;
  if (f.measure_bandwidth) {
    auto measured = read_bandwidth(*opened->device);
    if (!measured.ok()) return fail(measured.status());
    bandwidth = *measured;
  }

  Progress progress("bench");
  const int64_t work = int64_t{f.batch} * (f.prompt_tokens + f.max_tokens);
  std::vector<int64_t> done(static_cast<size_t>(f.batch));
  Status error;
  std::vector<engine::RequestId> ids;
  for (int b = 0; b < f.batch; ++b) {
    auto prompt = prompt_of(f, text, *opened, b);
    if (!prompt.ok()) return fail(prompt.status());
    engine::Request r;
    r.prompt = std::move(*prompt);
    r.max_tokens = tokens_of(b);
    r.ignore_eos = true;
    if (f.synthetic) {  // one token for ever, so that prompt lookup drafts at every step
      std::fill(r.prompt.begin(), r.prompt.end(), 1);
      r.forced.assign(static_cast<size_t>(r.max_tokens), 1);
    }
    r.on_event = [&, b](const engine::Event& e) {
      auto& mine = done[static_cast<size_t>(b)];
      mine = std::max<int64_t>(mine, e.prefilled) + static_cast<int64_t>(e.tokens.size());
      int64_t sum = 0;
      for (const int64_t d : done) sum += d;
      progress.update(std::min(sum, work), work);
      if (e.finish == engine::FinishReason::kError) error = e.error;
    };
    auto id = engine.submit(std::move(r));
    if (!id.ok()) return fail(id.status());
    ids.push_back(*id);
  }
  // Steps in which all sequences decode are timed one by one.
  std::vector<double> steps;
  double all_decode = 0;
  int64_t counted_tokens = 0, fetched_bytes = 0;
  for (;;) {
    const auto before = engine.metrics();
    const auto begin = Clock::now();
    if (!engine.step()) break;
    const double seconds = seconds_since(begin);
    const auto after = engine.metrics();
    if (before.running == f.batch && after.steps > before.steps && before.prefilling == 0) {
      steps.push_back(seconds);
      all_decode += seconds;
      counted_tokens += after.output_tokens - before.output_tokens;
      fetched_bytes += after.core.bytes - before.core.bytes;
    }
    if (static_cast<int>(steps.size()) >= f.max_tokens) break;
    if (interrupted() != 0) return fail(Status(StatusCode::kCancelled, "interrupted"), 128 + interrupted());
  }
  if (!f.timeline.empty()) {
    if (Status s = write_timeline(engine, f.timeline); !s.ok()) return fail(s, kFailed);
  }
  for (const auto id : ids) engine.cancel(id);
  engine.run_until_idle();
  progress.clear();
  if (!error.ok()) return fail(error);

  double prefill = 0;
  int64_t sparse_steps = 0, proposed = 0, accepted = 0, right = 0, compared = 0;
  for (const auto id : ids) {
    const auto s = engine.take_stats(id).value_or(engine::RequestStats{});
    prefill += s.prefill_seconds;
    sparse_steps += s.sparse_steps;
    proposed += s.proposed, accepted += s.accepted, right += s.right, compared += s.compared;
  }
  const bool sparse = sparse_steps > 0;
  const int skip = std::min<int>(f.warm_up, static_cast<int>(steps.size()) / 2);
  std::vector<double> timed(steps.begin() + skip, steps.end());
  std::sort(timed.begin(), timed.end());
  const double median = timed.empty() ? 0 : timed[timed.size() / 2];
  const double per_step = steps.empty() ? 0 : static_cast<double>(counted_tokens) / static_cast<double>(steps.size());
  const double rate = all_decode > 0 ? static_cast<double>(counted_tokens) / all_decode : 0;
  const auto metrics = engine.metrics();
  const int64_t read = bytes_a_step(engine, f, sparse, f.prompt_tokens + f.max_tokens / 2.0, metrics.weight_bytes);

  nlohmann::ordered_json j;
  if (!f.weights.empty()) j["weights"] = f.weights;
  if (f.synthetic) j["synthetic"] = fmt::format("KV is noise; {}", homes_of(f));
  j["prefill"] = {{"tokens", int64_t{f.batch} * f.prompt_tokens},
                  {"seconds", prefill},
                  {"tokens_per_second", prefill > 0 ? f.batch * f.prompt_tokens / prefill : 0}};
  j["decode"] = {{"steps", steps.size()},
                 {"tokens", counted_tokens},
                 {"seconds", all_decode},
                 {"tokens_per_second", rate},
                 {"step_ms_median", median * 1e3},
                 {"tokens_per_step", per_step},
                 {"tokens_per_second_median", median > 0 ? per_step / median : 0},
                 {"sparse_steps", sparse_steps},
                 {"all_steps", metrics.core.steps},
                 {"fetched_bytes_per_step", steps.empty() ? 0 : fetched_bytes / static_cast<int64_t>(steps.size())},
                 {"bytes_per_step", read}};
  if (bandwidth > 0) {
    j["decode"]["read_bandwidth"] = bandwidth;
    j["decode"]["share_of_bandwidth"] = median > 0 ? static_cast<double>(read) / median / bandwidth : 0;
  }
  j["draft"] = {{"proposed", proposed}, {"compared", compared}, {"right", right}, {"accepted", accepted}};
  j.update(nlohmann::ordered_json::parse(metrics_json(engine)));
  j["memory"]["device_bytes_in_use"] = opened->device->memory_in_use();
  if (f.json) {
    emit("{}\n", j.dump(2));
    return kDone;
  }
  if (f.synthetic) {
    emit("synthetic: weights {}, KV is noise, {}\n", f.weights.empty() ? "of the model" : f.weights, homes_of(f));
  }
  emit("prefill   {:8.1f} tok/s   {} tokens in {:.2f} s\n", j["prefill"]["tokens_per_second"].get<double>(),
       f.batch * f.prompt_tokens, prefill);
  emit("decode    {:8.1f} tok/s   {} tokens in {} steps, median {:.2f} ms a step, {:.2f} tokens a step\n", rate,
       counted_tokens, steps.size(), median * 1e3, per_step);
  emit("reads     {:>8}/step   weights, {} and summaries", format_bytes(static_cast<uint64_t>(read)),
       sparse ? "the selected blocks" : "all KV");
  if (bandwidth > 0) {
    emit("; {:.1f} GB/s of {:.1f} measured", median > 0 ? static_cast<double>(read) / median / 1e9 : 0,
         bandwidth / 1e9);
  }
  const double n = std::max<double>(1, static_cast<double>(metrics.core.steps));
  emit("\nfetched   {:>8}/step   agreement {:.3f}, cover {:.3f}\n",
       format_bytes(static_cast<uint64_t>(static_cast<double>(metrics.core.bytes) / n)), metrics.core.agreement(),
       metrics.core.cover());
  emit("stages    predict {:.2f}, select {:.2f}, transfer {:.2f} (background), wait {:.2f}, draft {:.2f} ms a step\n",
       metrics.core.predict_seconds / n * 1e3, metrics.core.select_seconds / n * 1e3,
       metrics.core.transfer_seconds / n * 1e3, metrics.core.wait_seconds / n * 1e3, metrics.draft_seconds / n * 1e3);
  emit("fast tier {:>8} at most of {}\n", format_bytes(static_cast<uint64_t>(metrics.fast_bytes_peak)),
       format_bytes(static_cast<uint64_t>(metrics.fast_bytes_limit)));
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  auto* sub = app.add_subcommand("bench", "measure prefill and decode");
  sub->add_option("-m,--model", flags->model, "a .gguf file or a Hugging Face folder")->type_name("PATH");
  sub->add_option("--config", flags->config_json, "a config.json in place of a model, with --weights")
      ->type_name("FILE");
  sub->add_option("--weights", flags->weights, "random:SEED: weights drawn at random")->type_name("KIND");
  sub->add_flag(
      "--synthetic", flags->synthetic,
      "do not read the prompts: their KV is noise, and sequences share one prompt's\nblocks in the capacity tier");
  sub->add_flag("--own-homes", flags->config.synthetic_own_homes,
                "with --synthetic: no sharing, every sequence has its prompt's blocks in the capacity tier")
      ->needs("--synthetic");
  sub->add_option(
         "--misses", flags->config.forced_misses,
         "with --synthetic on a GPU: so many predicted blocks a head and step are\nmade absent (predict runs in full)")
      ->type_name("N")
      ->check(whole_number(0, 65536));
  const auto add = [&](const char* name, int& value, int most, const char* text) {
    sub->add_option(name, value, text)->type_name("N")->check(whole_number(1, most))->capture_default_str();
  };
  constexpr int kMostTokens = 1 << 30;  // so that prompt and output together are an int
  add("--prompt-tokens", flags->prompt_tokens, kMostTokens, "length of each prompt");
  sub->add_option("-f,--file", flags->file, "take the prompt from this text instead of random tokens")
      ->type_name("FILE");
  add("-n,--max-tokens", flags->max_tokens, kMostTokens, "tokens to decode a sequence");
  add("--batch", flags->batch, 4096, "sequences at once");
  sub->add_option("--warm-up", flags->warm_up, "first steps that the median leaves out")
      ->type_name("N")
      ->check(whole_number(0, kMostTokens))
      ->capture_default_str();
  sub->add_flag("--measure-bandwidth", flags->measure_bandwidth, "also measure how fast memory can be read");
  sub->add_flag("--serial", flags->config.serial,
                "one thing after another: no captured graphs, transfers joined (for profilers)");
  sub->add_option("--timeline", flags->timeline,
                  "on a GPU: write when each part of the last two steps ran there, for Chrome's tracing\n"
                  "(a picture of it: bench/timeline_picture.py)")
      ->type_name("FILE");
  sub->add_flag("--json", flags->json, "print one JSON object");
  flags->add_engine(*sub);
  sub->get_option("--prefill-share")
      ->description("as in serve; here by default 1: nobody decodes before all prompts are in");
  sub->footer(fmt::format(
      "Example:\n  oasis bench -m model.gguf --prompt-tokens 7500 -n 256 --fast-memory 80MiB --measure-bandwidth\n{}",
      kExitCodes));
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
