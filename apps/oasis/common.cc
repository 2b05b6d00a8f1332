#include "oasis/common.h"

#include <sys/resource.h>
#include <unistd.h>

#include "oasis/base/units.h"

namespace oasis::app {

int fail(const Status& status) {
  fmt::print(stderr, "oasis: {}\n", status.message());
  return status.code() == StatusCode::kInvalidArgument ? kUsage : kFailed;
}

void EngineFlags::add_model(CLI::App& app) {
  app.add_option("-m,--model", model, "a .gguf file or a Hugging Face folder (config.json, *.safetensors)")->required();
}

void EngineFlags::add_all(CLI::App& app) {
  add_model(app);
  app.add_option("--device", device, "where to run: cpu")->capture_default_str();
  app.add_option("--threads", threads, "CPU threads; 0: all cores")->capture_default_str();
  auto* group = app.add_option_group("Working set");
  group->add_option("--attention", attention, "auto (dense until the working set is full, sparse after), dense, sparse")
      ->capture_default_str();
  group->add_option("--block-size", config.block_size, "tokens a block: 16, 32 or 64")->capture_default_str();
  group->add_option("--top-k-blocks", config.top_k_blocks, "blocks that attention reads a head and step (K)")
      ->capture_default_str();
  group->add_option("--block-score", block_score, "shrunk (better) or minmax (the paper's)")->capture_default_str();
  group->add_option("--resident-ratio", config.resident_ratio,
                    "blocks kept in the fast tier, in units of K; default: what --fast-memory holds, 1 .. 1.5");
  group
      ->add_option("--fetch", fetch,
                   "bounded (a fixed cap), exact (waits for what was missed), adaptive (by margin, as the link allows)")
      ->capture_default_str();
  group->add_option("--fetch-ratio", config.fetch_ratio, "bounded: at most this share of K is fetched a head and step")
      ->capture_default_str();
  auto* drafts = app.add_option_group("Drafts");
  drafts->add_option("--draft", config.draft, "auto, auto:DIR, eagle3:DIR, ngram or none")->capture_default_str();
  drafts->add_option("--draft-tokens", config.draft_tokens, "most drafts accepted a step, 1 .. 8")
      ->capture_default_str();
  drafts->add_flag("--accept-drafts", config.accept_drafts,
                   "accept drafts that the model agrees with; default: they only look ahead");
  auto* memory = app.add_option_group("Memory");
  memory->add_option("--fast-memory", fast_memory,
                     "bound on KV pages, summaries, maps and draft KV, e.g. 64MiB; default: as needed");
  memory->add_option("--capacity-memory", capacity_memory,
                     "DRAM for the whole KV (with a file: its cache); default: as needed");
  memory->add_option("--capacity-file", capacity_file, "keep the whole KV in this file: PATH or PATH:SIZE");
  memory->add_option("--context", config.max_context, "longest sequence in tokens; default: what the request needs");
  memory->add_option("--prefill-chunk", config.prefill_chunk, "prompt tokens a work item")->capture_default_str();
}

Status EngineFlags::resolve() {
  if (device != "cpu") return invalid_argument("--device {}: this build has cpu", device);
  if (threads < 0 || threads > 1024) return invalid_argument("--threads {}: must lie in 0 .. 1024", threads);
  if (attention == "auto")
    config.attention = engine::Attention::kAuto;
  else if (attention == "dense")
    config.attention = engine::Attention::kDense;
  else if (attention == "sparse")
    config.attention = engine::Attention::kSparse;
  else
    return invalid_argument("--attention {}: auto, dense or sparse", attention);
  if (block_score == "shrunk")
    config.block_score = lookahead::BlockScore::kShrunk;
  else if (block_score == "minmax")
    config.block_score = lookahead::BlockScore::kMinMax;
  else
    return invalid_argument("--block-score {}: shrunk or minmax", block_score);
  if (fetch == "bounded")
    config.fetch = lookahead::FetchMode::kBounded;
  else if (fetch == "exact")
    config.fetch = lookahead::FetchMode::kExact;
  else if (fetch == "adaptive")
    config.fetch = lookahead::FetchMode::kAdaptive;
  else
    return invalid_argument("--fetch {}: bounded, exact or adaptive", fetch);
  const auto size = [](const std::string& text, const char* flag, uint64_t& out) -> Status {
    if (text.empty()) return {};
    auto bytes = parse_bytes(text);
    if (!bytes.ok()) return invalid_argument("{}: {}", flag, bytes.status().message());
    if (*bytes == 0) return invalid_argument("{} 0: must be positive", flag);
    out = *bytes;
    return {};
  };
  OASIS_RETURN_IF_ERROR(size(fast_memory, "--fast-memory", config.fast_memory));
  OASIS_RETURN_IF_ERROR(size(capacity_memory, "--capacity-memory", config.capacity_memory));
  if (!capacity_file.empty()) {
    // PATH:SIZE, where what follows the last colon reads as a size.
    const size_t colon = capacity_file.rfind(':');
    config.capacity_file = capacity_file;
    if (colon != std::string::npos && parse_bytes(std::string_view(capacity_file).substr(colon + 1)).ok()) {
      config.capacity_file = capacity_file.substr(0, colon);
      OASIS_RETURN_IF_ERROR(size(capacity_file.substr(colon + 1), "--capacity-file", config.capacity_file_bytes));
    }
  }
  return engine::validate(config);
}

Result<OpenModel> open_model(const EngineFlags& flags) {
  OpenModel m;
  m.device = make_cpu_device(flags.threads);
  OASIS_ASSIGN_OR_RETURN(m.checkpoint, model::Checkpoint::open(flags.model));
  OASIS_ASSIGN_OR_RETURN(auto spec, m.checkpoint->tokenizer_spec());
  OASIS_ASSIGN_OR_RETURN(m.tokenizer, text::Tokenizer::create(std::move(spec)));
  return m;
}

Progress::Progress(std::string what) : what_(std::move(what)), shown_(::isatty(STDERR_FILENO) == 1) {}
Progress::~Progress() { clear(); }

void Progress::update(int64_t done, int64_t total) {
  if (!shown_ || total <= 0) return;
  const int percent = static_cast<int>(100 * done / total);
  if (percent == last_) return;
  last_ = percent;
  drawn_ = true;
  const int filled = percent * 30 / 100;
  fmt::print(stderr, "\r{} [{}{}] {:3}%  {} of {}", what_, std::string(static_cast<size_t>(filled), '#'),
             std::string(static_cast<size_t>(30 - filled), '.'), percent, done, total);
}

void Progress::clear() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  drawn_ = false;
  last_ = -1;
}

int64_t peak_rss_bytes() {
  struct rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace oasis::app
