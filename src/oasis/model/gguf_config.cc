#include <algorithm>
#include <cmath>
#include <limits>

#include "oasis/model/gguf_model.h"

namespace oasis::model {

namespace {

// The metadata of one architecture. read() leaves `out` alone where the key is absent.
class Keys {
 public:
  explicit Keys(const GgufFile& file) : file_(file) {}
  void set_prefix(std::string_view arch) { prefix_ = std::string(arch) + "."; }
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  template <typename Integer>
  Status require(std::string_view key, Integer& out) const {
    return read_absolute(full(key), out, true);
  }
  template <typename Integer>
  Status read(std::string_view key, Integer& out) const {
    return read_absolute(full(key), out, false);
  }
  template <typename Integer>
  Status read_absolute(const std::string& key, Integer& out, bool required = false) const {
    if (!required && !file_.has(key)) return {};
    OASIS_ASSIGN_OR_RETURN(const uint64_t value, file_.u64(key));
    if (value > static_cast<uint64_t>(std::numeric_limits<Integer>::max()))
      return data_corruption("'{}': metadata key '{}' is {}, the limit is {}", file_.path(), key, value,
                             std::numeric_limits<Integer>::max());
    out = static_cast<Integer>(value);
    return {};
  }
  Status read(std::string_view key, float& out) const { return read_float(full(key), out); }
  Status read_float(const std::string& key, float& out) const {
    if (!file_.has(key)) return {};
    OASIS_ASSIGN_OR_RETURN(const double value, file_.f64(key));
    out = static_cast<float>(value);
    return {};
  }
  // Something this engine would silently compute otherwise.
  Status refuse_unless(std::string_view key, float wanted) const {
    float value = wanted;
    OASIS_RETURN_IF_ERROR(read(key, value));
    if (value == wanted) return {};
    return unsupported("'{}': metadata key '{}' is {}; only {} is implemented", file_.path(), full(key), value, wanted);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

Status read_sizes(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  OASIS_RETURN_IF_ERROR(keys.require("block_count", config.layers));
  OASIS_RETURN_IF_ERROR(keys.require("embedding_length", config.hidden));
  OASIS_RETURN_IF_ERROR(keys.require("feed_forward_length", config.intermediate));
  OASIS_RETURN_IF_ERROR(keys.require("context_length", config.context));
  OASIS_RETURN_IF_ERROR(keys.require("attention.head_count", config.heads));
  config.kv_heads = config.heads;
  OASIS_RETURN_IF_ERROR(keys.read("attention.head_count_kv", config.kv_heads));
  config.head_dim = config.heads > 0 ? config.hidden / config.heads : 0;
  OASIS_RETURN_IF_ERROR(keys.read("attention.key_length", config.head_dim));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("attention.value_length", static_cast<float>(config.head_dim)));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("rope.dimension_count", static_cast<float>(config.head_dim)));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("expert_count", 0));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("attention.sliding_window", 0));
  const std::string eps = keys.full("attention.layer_norm_rms_epsilon");
  if (!file.has(eps)) return not_found("'{}' has no metadata key '{}'", file.path(), eps);
  OASIS_RETURN_IF_ERROR(keys.read("attention.layer_norm_rms_epsilon", config.rms_eps));
  // Older files have no vocab_size.
  const TensorInfo* embed = file.find("token_embd.weight");
  if (!embed) return not_found("'{}' has no tensor 'token_embd.weight'", file.path());
  config.vocab = embed->shape.front();
  return keys.read("vocab_size", config.vocab);
}

Status read_yarn(const Keys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.original_context = config.context;
  OASIS_RETURN_IF_ERROR(keys.read("rope.scaling.original_context_length", rope.original_context));
  OASIS_RETURN_IF_ERROR(keys.read("rope.scaling.factor", rope.factor));
  OASIS_RETURN_IF_ERROR(keys.read("rope.scaling.yarn_beta_fast", rope.beta_fast));
  OASIS_RETURN_IF_ERROR(keys.read("rope.scaling.yarn_beta_slow", rope.beta_slow));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.yarn_ext_factor", 1));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.yarn_log_multiplier", 0));
  // In GGUF this multiplies what YaRN derives; in config.json it replaces it.
  float multiplier = 1;
  OASIS_RETURN_IF_ERROR(keys.read("rope.scaling.attn_factor", multiplier));
  OASIS_RETURN_IF_ERROR(keys.read("rope.scaling.yarn_attn_factor", multiplier));
  if (multiplier != 1) rope.attention_factor = multiplier * (0.1f * std::log(std::max(rope.factor, 1.0f)) + 1);
  return {};
}

Status read_rope(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.interleaved = config.arch == Arch::kLlama;
  OASIS_RETURN_IF_ERROR(keys.read("rope.freq_base", rope.theta));
  OASIS_RETURN_IF_ERROR(keys.refuse_unless("rope.scale_linear", 1));
  std::string_view type = "none";
  if (const std::string key = keys.full("rope.scaling.type"); file.has(key)) {
    OASIS_ASSIGN_OR_RETURN(type, file.string(key));
  }
  if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    OASIS_RETURN_IF_ERROR(read_yarn(keys, config));
  } else if (type != "none") {
    return unsupported("'{}': RoPE scaling '{}' is not implemented; known are none and yarn", file.path(),
                       printable(type));
  }
  if (const TensorInfo* divisors = file.find("rope_freqs.weight")) {
    if (divisors->shape != std::vector<int64_t>{config.head_dim / 2})
      return data_corruption("'{}': tensor 'rope_freqs.weight' has shape {}, it must be [{}]", file.path(),
                             to_string(divisors->shape), config.head_dim / 2);
    OASIS_ASSIGN_OR_RETURN(rope.freq_divisors, to_floats(*divisors, "rope_freqs.weight"));
  }
  return {};
}

// GGUF names one end-of-sequence token where the original names several: the family's other ones are found by their
// text.
Status add_family_ends(const GgufFile& file, ModelConfig& config) {
  if (!file.has("tokenizer.ggml.pre") || !file.has("tokenizer.ggml.tokens")) return {};
  OASIS_ASSIGN_OR_RETURN(const std::string_view pre, file.string("tokenizer.ggml.pre"));
  std::vector<std::string_view> ends;
  if (pre == "llama-bpe") ends = {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"};
  if (pre == "qwen2") ends = {"<|endoftext|>", "<|im_end|>"};
  if (ends.empty()) return {};
  OASIS_ASSIGN_OR_RETURN(const auto tokens, file.strings("tokenizer.ggml.tokens"));
  const size_t count = std::min(tokens.size(), static_cast<size_t>(config.vocab));
  for (size_t id = 0; id < count; ++id)
    if (std::ranges::find(ends, tokens[id]) != ends.end()) config.eos_ids.push_back(static_cast<int32_t>(id));
  return {};
}

Status read_tokens(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  OASIS_RETURN_IF_ERROR(keys.read_absolute("tokenizer.ggml.bos_token_id", config.bos_id));
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    int32_t id = -1;
    OASIS_RETURN_IF_ERROR(keys.read_absolute(key, id));
    if (id >= 0) config.eos_ids.push_back(id);
  }
  OASIS_RETURN_IF_ERROR(add_family_ends(file, config));
  std::ranges::sort(config.eos_ids);
  config.eos_ids.erase(std::ranges::unique(config.eos_ids).begin(), config.eos_ids.end());
  return {};
}

Status read_sampling(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  if (file.has("general.sampling.temp"))
    OASIS_RETURN_IF_ERROR(keys.read_float("general.sampling.temp", config.temperature.emplace()));
  if (file.has("general.sampling.top_p"))
    OASIS_RETURN_IF_ERROR(keys.read_float("general.sampling.top_p", config.top_p.emplace()));
  if (file.has("general.sampling.top_k"))
    OASIS_RETURN_IF_ERROR(keys.read_absolute("general.sampling.top_k", config.top_k.emplace()));
  return {};
}

Result<Arch> read_arch(const GgufFile& file) {
  OASIS_ASSIGN_OR_RETURN(const std::string_view arch, file.string("general.architecture"));
  if (arch == "llama") return Arch::kLlama;
  if (arch == "qwen3") return Arch::kQwen3;
  return unsupported("'{}': architecture '{}' is not implemented; known are llama and qwen3", file.path(),
                     printable(arch));
}

}  // namespace

Result<ModelConfig> config_from_gguf(const GgufFile& file) {
  ModelConfig config;
  OASIS_ASSIGN_OR_RETURN(config.arch, read_arch(file));
  Keys keys(file);
  keys.set_prefix(to_string(config.arch));
  config.qk_norm = config.arch == Arch::kQwen3;
  if (file.has("general.name")) {
    OASIS_ASSIGN_OR_RETURN(const std::string_view name, file.string("general.name"));
    config.name = printable(name);
  }
  OASIS_RETURN_IF_ERROR(read_sizes(file, keys, config));
  OASIS_RETURN_IF_ERROR(read_rope(file, keys, config));
  OASIS_RETURN_IF_ERROR(read_tokens(file, keys, config));
  OASIS_RETURN_IF_ERROR(read_sampling(file, keys, config));
  config.tied_embeddings = !file.find("output.weight");
  OASIS_RETURN_IF_ERROR(complete(config, file.path()));
  return config;
}

}  // namespace oasis::model
