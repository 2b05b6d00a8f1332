#include "oasis/flags.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "oasis/base/units.h"
#include "oasis/common.h"

namespace oasis::app {

void EngineFlags::add_model(CLI::App& app) {
  app.add_option("-m,--model", model, "a .gguf file or a Hugging Face folder (config.json, *.safetensors)")->required();
}

void EngineFlags::add_engine(CLI::App& app) {
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

void SamplingFlags::add(CLI::App& app) {
  auto* s = app.add_option_group("Sampling");
  s->add_option("--temperature", params.temperature, "0: greedy")->capture_default_str();
  s->add_option("--top-k", params.top_k, "keep the k most likely tokens; 0: off")->capture_default_str();
  s->add_option("--top-p", params.top_p, "keep the most likely tokens that make up this probability; 1: off")
      ->capture_default_str();
  s->add_option("--min-p", params.min_p, "drop tokens below this share of the most likely one; 0: off")
      ->capture_default_str();
  s->add_option("--repetition-penalty", params.repetition_penalty, "1: off")->capture_default_str();
  s->add_option("--presence-penalty", params.presence_penalty, "0: off")->capture_default_str();
  s->add_option("--frequency-penalty", params.frequency_penalty, "0: off")->capture_default_str();
  s->add_option("--logit-bias", logit_bias, "ID:VALUE, added to that token's logit (may be given several times)");
  s->add_option("--seed", params.seed, "the same seed and flags give the same tokens")->capture_default_str();
}

Status SamplingFlags::resolve() {
  for (const std::string& text : logit_bias) {
    const size_t colon = text.find(':');
    int32_t id = 0;
    float value = 0;
    const char* end = text.data() + text.size();
    const bool good = colon != std::string::npos &&
                      std::from_chars(text.data(), text.data() + colon, id).ptr == text.data() + colon && colon > 0 &&
                      std::from_chars(text.data() + colon + 1, end, value).ptr == end && colon + 1 < text.size();
    if (!good) return invalid_argument("--logit-bias '{}': write ID:VALUE, for example 42:-5", text);
    params.logit_bias.emplace_back(id, value);
  }
  return {};
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found("cannot read '{}'", path);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return io_error("cannot read '{}'", path);
  return text;
}

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && *next != ',') || (next != end && next + 1 == end)) {
      return invalid_argument("token ids '{}': write ids between commas, for example 1,2,3", text);
    }
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  return ids;
}

std::string metrics_json(const engine::Engine& engine) {
  const auto m = engine.metrics();
  const auto& c = m.core;
  const auto& plan = engine.plan();
  nlohmann::ordered_json j;
  j["settings"] = {{"K", plan.core.attend_blocks},
                   {"R", plan.core.resident_blocks},
                   {"C", plan.core.cap()},
                   {"block_size", plan.core.shape.block_size},
                   {"drafter", engine.drafter().name()}};
  j["memory"] = {{"weights_bytes", m.weight_bytes},
                 {"fast_bytes_limit", m.fast_bytes_limit},
                 {"fast_bytes_planned", plan.fast_bytes()},
                 {"fast_bytes_peak", m.fast_bytes_peak},
                 {"capacity_bytes", m.capacity_bytes},
                 {"workspace_bytes", plan.prefill_workspace_bytes + plan.activation_bytes},
                 {"rss_peak_bytes", peak_rss_bytes()}};
  j["fetch"] = {{"bytes", c.bytes},
                {"blocks", c.blocks},
                {"hits", c.hits},
                {"misses", c.misses},
                {"admitted", c.admitted},
                {"refused", c.refused_cap + c.refused_absent},
                {"refused_by_cap", c.refused_cap},
                {"refused_by_absence", c.refused_absent},
                {"demand", c.demand}};
  j["lookahead"] = {{"agreement", c.agreement()}, {"cover", c.cover()}, {"measured", c.agreement_count}};
  j["stages"] = {{"predict", c.predict_seconds},
                 {"select", c.select_seconds},
                 {"transfer", c.transfer_seconds},
                 {"wait", c.wait_seconds},
                 {"draft", m.draft_seconds}};
  return j.dump();
}

}  // namespace oasis::app
