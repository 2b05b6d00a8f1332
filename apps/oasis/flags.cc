#include "oasis/flags.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <type_traits>

#include "oasis/base/units.h"
#include "oasis/checks.h"
#include "oasis/common.h"

namespace oasis::app {

namespace {

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
// More text than any context holds: what is read from a device that never ends must end.
constexpr size_t kMostText = size_t{256} << 20;

// The number of the GPU, or -1 for the CPU.
Result<int> parse_device(const std::string& name) {
  if (name == "cpu") return -1;
  if (name == "cuda") return 0;
  int gpu = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with("cuda:") || name.size() == 5) return invalid_argument("--device {}: cpu, cuda or cuda:N", name);
  const auto [next, error] = std::from_chars(name.data() + 5, end, gpu);
  if (error != std::errc() || next != end || gpu < 0) return invalid_argument("--device {}: cpu, cuda or cuda:N", name);
  return gpu;
}

Status read_kv_type(std::string_view flag, std::string_view text, kv::KvType& type) {
  for (const kv::KvType t : {kv::KvType::kBf16, kv::KvType::kFp8E4M3}) {
    if (text != kv::to_string(t)) continue;
    type = t;
    return {};
  }
  return invalid_argument("{} {}: bf16 or fp8", flag, text);
}

}  // namespace

void EngineFlags::add_model(CLI::App& app) {
  app.add_option("-m,--model", model, "a .gguf file or a Hugging Face folder (config.json, *.safetensors)")
      ->type_name("PATH")
      ->required();
}

void EngineFlags::add_engine(CLI::App& app) {
  const auto add = [&](const char* group, const char* name, auto& value, const char* type, const char* text) {
    return app.add_option(name, value, text)->group(group)->type_name(type);
  };
  const char* set = "Working set";
  add(set, "--attention", attention, "MODE",
      "dense: reads everything; sparse: the working set; auto: dense while all fits it")
      ->capture_default_str();
  add(set, "--block-size", config.block_size, "N", "tokens a block: 16, 32 or 64")
      ->check(one_of({16, 32, 64}))
      ->capture_default_str();
  add(set, "--top-k-blocks", config.top_k_blocks, "K", "blocks that attention reads a head and step")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  add(set, "--resident-ratio", config.resident_ratio, "X",
      "blocks kept in the fast tier, X times K, from 1 on;\ndefault: what --fast-memory holds, 1 .. 1.5")
      ->check(number(1, 1024));
  add(set, "--block-score", block_score, "RULE", "how blocks are ranked: shrunk (better) or minmax (the paper's)")
      ->capture_default_str();
  add(set, "--kv-dtype", kv_dtype, "TYPE",
      "how keys and values are kept: bf16, or fp8 (half the memory in both\ntiers and half the bytes between them)")
      ->capture_default_str();
  add(set, "--summaries", summaries, "TYPE", "how blocks' summaries are kept: bf16, or fp8 (half the memory and reads)")
      ->capture_default_str();
  add(set, "--fetch", fetch, "MODE",
      "bounded: a few blocks a step, never waited for; exact: waits for\n"
      "all that is wanted; adaptive: as much as the link carries")
      ->capture_default_str();
  add(set, "--fetch-ratio", config.fetch_ratio, "X", "bounded: at most this share of K a head and step, 0 .. 1")
      ->check(number(0, 1))
      ->capture_default_str();
  const char* drafts = "Drafts";
  add(drafts, "--draft", config.draft, "KIND",
      "who guesses the next token: eagle3:DIR (a head trained for the model),\n"
      "ngram, none, auto:DIR (the better of the two), auto (ngram)")
      ->capture_default_str();
  app.add_flag("--accept-drafts", config.accept_drafts,
               "guesses that the model agrees with become output; without it they\nonly say which blocks to fetch")
      ->group(drafts);
  add(drafts, "--draft-tokens", config.draft_tokens, "N", "with --accept-drafts: at most so many a step, 1 .. 8")
      ->check(whole_number(1, 8))
      ->capture_default_str();
  const char* memory = "Memory (sizes: 64MiB, 1.5GiB, 2GB, or bytes)";
  add(memory, "--fast-memory", fast_memory, "SIZE",
      "bound on KV pages, summaries, maps and draft KV; default: as needed");
  add(memory, "--device-memory", device_memory, "SIZE",
      "of a GPU, weights included: bounds the fast tier where --fast-memory does\nnot; default: what is free");
  add(memory, "--capacity-memory", capacity_memory, "SIZE",
      "DRAM for the whole KV (with a file: its cache); default: as needed");
  add(memory, "--capacity-file", capacity_file, "PATH[:SIZE]",
      "keep the whole KV in this file, which is removed at the end");
  add(memory, "--context", config.max_context, "N", "longest sequence in tokens, prompt and output; default: as needed")
      ->check(whole_number(1, kMostTokens));
  add(memory, "--prefill-share", config.prefill_share, "X",
      "of the time, what a prompt gets while others decode, above 0 .. 1 (they wait);\ndefault: a chunk of one layer a "
      "decode step")
      ->check(number_above(0, 1));
  add(memory, "--prefill-chunk", config.prefill_chunk, "N", "prompt tokens that are read at once")
      ->check(whole_number(1, 65536))
      ->capture_default_str();
  const char* machine = "Machine";
  add(machine, "--device", device, "NAME", "where to run: cpu, cuda or cuda:N (GPU number N)")->capture_default_str();
  add(machine, "--threads", threads, "N", "CPU threads; 0: all cores")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
}

Status EngineFlags::resolve() {
  OASIS_RETURN_IF_ERROR(parse_device(device).status());
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
  OASIS_RETURN_IF_ERROR(read_kv_type("--kv-dtype", kv_dtype, config.kv_type));
  OASIS_RETURN_IF_ERROR(read_kv_type("--summaries", summaries, config.summary_type));
  if (fetch == "bounded")
    config.fetch = lookahead::FetchMode::kBounded;
  else if (fetch == "exact")
    config.fetch = lookahead::FetchMode::kExact;
  else if (fetch == "adaptive")
    config.fetch = lookahead::FetchMode::kAdaptive;
  else
    return invalid_argument("--fetch {}: bounded, exact or adaptive", fetch);
  const auto size = [](std::string_view text, const char* flag, uint64_t& out) -> Status {
    auto bytes = parse_bytes(text);
    if (!bytes.ok()) return invalid_argument("{}: {}", flag, bytes.status().message());
    if (*bytes == 0) return invalid_argument("{} 0: must be positive", flag);
    out = *bytes;
    return {};
  };
  if (fast_memory) OASIS_RETURN_IF_ERROR(size(*fast_memory, "--fast-memory", config.fast_memory));
  if (device_memory) OASIS_RETURN_IF_ERROR(size(*device_memory, "--device-memory", config.device_memory));
  if (capacity_memory) OASIS_RETURN_IF_ERROR(size(*capacity_memory, "--capacity-memory", config.capacity_memory));
  if (capacity_file) {
    // What follows the last colon is a size if it begins like one, so that a mistyped size is not taken for a name.
    const std::string_view all = *capacity_file;
    const size_t colon = all.rfind(':');
    const std::string_view end = colon == all.npos ? std::string_view() : all.substr(colon + 1);
    const bool sized = !end.empty() && end[0] >= '0' && end[0] <= '9' && end.find('/') == end.npos;
    config.capacity_file = all.substr(0, sized ? colon : all.size());
    if (config.capacity_file.empty()) return invalid_argument("--capacity-file '{}': names no file", all);
    if (sized) OASIS_RETURN_IF_ERROR(size(end, "--capacity-file PATH:SIZE", config.capacity_file_bytes));
  }
  return engine::validate(config);
}

Result<std::unique_ptr<Device>> open_device(const EngineFlags& flags) {
  OASIS_ASSIGN_OR_RETURN(const int gpu, parse_device(flags.device));
  if (gpu >= 0) {
    auto device = make_cuda_device(gpu);
    if (device.ok()) return device;
    return Status(device.status().code(), fmt::format("--device {}: {}", flags.device, device.status().message()));
  }
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());  // 0: not known
  if (cores > 0 && flags.threads > cores) {
    complain(fmt::format("--threads {}: more than the {} cores that there are, which is slower", flags.threads, cores));
  }
  return make_cpu_device(flags.threads);
}

Result<OpenModel> open_model(const EngineFlags& flags) {
  OpenModel m;
  OASIS_ASSIGN_OR_RETURN(m.device, open_device(flags));
  OASIS_ASSIGN_OR_RETURN(m.checkpoint, model::Checkpoint::open(flags.model));
  OASIS_ASSIGN_OR_RETURN(auto spec, m.checkpoint->tokenizer_spec());
  OASIS_ASSIGN_OR_RETURN(m.tokenizer, text::Tokenizer::create(std::move(spec)));
  return m;
}

void SamplingFlags::add(CLI::App& app) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const auto add = [&](const char* name, auto& value, const char* text, CLI::Validator check) {
    using Value = std::remove_reference_t<decltype(value)>;
    app.add_option(name, value, text)
        ->group("Sampling")
        ->type_name(std::is_integral_v<Value> ? "N" : "X")
        ->check(std::move(check))
        ->capture_default_str();
  };
  add("--temperature", params.temperature, "0: always the likeliest token; 1: as the model says", number(0, kMost));
  add("--top-k", params.top_k, "keep the k most likely tokens; 0: off", whole_number(0, kMostTokens));
  add("--top-p", params.top_p, "keep the likeliest tokens that make up this probability; 1: off", number_above(0, 1));
  add("--min-p", params.min_p, "drop tokens below this share of the likeliest one's probability; 0: off", number(0, 1));
  add("--repetition-penalty", params.repetition_penalty, "0.01 .. 100; 1: off", number(0.01, 100));
  add("--presence-penalty", params.presence_penalty, "-2 .. 2; 0: off", number(-2, 2));
  add("--frequency-penalty", params.frequency_penalty, "-2 .. 2; 0: off", number(-2, 2));
  app.add_option("--logit-bias", logit_bias, "added to that token's logit, -100 .. 100 (may be given several times)")
      ->group("Sampling")
      ->type_name("ID:VALUE")
      ->allow_extra_args(false);
  add("--seed", params.seed, "the same seed and flags give the same tokens", seed_number());
}

Status SamplingFlags::resolve() {
  for (const std::string& text : logit_bias) {
    const size_t colon = text.find(':');
    int32_t id = 0;
    float value = 0;
    const char* end = text.data() + text.size();
    const auto reads = [](const char* from, const char* to, auto& out) {
      const auto [next, error] = std::from_chars(from, to, out);
      return error == std::errc() && next == to;
    };
    if (colon == text.npos || !reads(text.data(), text.data() + colon, id) ||
        !reads(text.data() + colon + 1, end, value)) {
      return invalid_argument("--logit-bias '{}': write ID:VALUE, for example 42:-5", text);
    }
    if (!(value >= -100 && value <= 100)) {
      return invalid_argument("--logit-bias '{}': the value must lie in -100 .. 100", text);
    }
    params.logit_bias.emplace_back(id, value);
  }
  return {};
}

Result<std::string> read_text(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : "'" + path + "'";
  std::FILE* in = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (!in) return not_found("cannot read {}: {}", name, std::strerror(errno));
  std::string text;
  std::vector<char> piece(size_t{1} << 16);
  for (size_t n; text.size() <= kMostText && (n = std::fread(piece.data(), 1, piece.size(), in)) > 0;) {
    text.append(piece.data(), n);
  }
  const int error = std::ferror(in) ? errno : 0;
  if (in != stdin) std::fclose(in);
  if (error != 0) return io_error("cannot read {}: {}", name, std::strerror(error));
  if (text.size() > kMostText) return invalid_argument("{} has more than {}", name, format_bytes(kMostText));
  return text;
}

Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view text) {
  const auto trimmed = [](std::string_view s) {
    const size_t begin = s.find_first_not_of(" \t\n");
    return begin == s.npos ? std::string_view() : s.substr(begin, s.find_last_not_of(" \t\n") + 1 - begin);
  };
  text = trimmed(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<int32_t> ids;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view item = trimmed(text.substr(at, comma - at));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size() || id < 0) {
      return invalid_argument("{}: '{}' is not a token id: write ids between commas, for example 1,2,3", flag,
                              item.substr(0, 80));
    }
    ids.push_back(id);
    at = comma + 1;
  }
  return ids;
}

Status check_ids(std::string_view flag, const std::vector<int32_t>& ids, int64_t vocab) {
  for (const int32_t id : ids) {
    if (id >= vocab) return invalid_argument("{}: id {}: this model's ids lie in 0 .. {}", flag, id, vocab - 1);
  }
  return {};
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
                   {"kv_dtype", kv::to_string(plan.core.shape.type)},
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
