// Hugging Face's config.json and generation_config.json.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "oasis/base/mapped_file.h"
#include "oasis/model/config.h"
#include "oasis/model/json_file.h"

namespace oasis::model {

namespace {

using nlohmann::json;

// A JSON object whose fields are read with their types checked. read() leaves `out` alone where the key is absent or
// null.
class Fields {
 public:
  Fields(const json& object, const std::string& source) : object_(object), source_(source) {}

  const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* key) const { return find(key) != nullptr; }

  Status read(const char* key, int64_t& out) const {
    const json* value = find(key);
    if (!value) return {};
    const auto integer = to_integer(*value);
    if (!integer) return wrong(key, *value, "an integer");
    out = *integer;
    return {};
  }
  Status read(const char* key, int& out) const {
    int64_t wide = out;
    OASIS_RETURN_IF_ERROR(read(key, wide));
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max())
      return invalid_argument("'{}': {} is {}, out of the range of 32 bits", source_, key, wide);
    out = static_cast<int>(wide);
    return {};
  }
  Status read(const char* key, float& out) const {
    const json* value = find(key);
    if (!value) return {};
    if (!value->is_number()) return wrong(key, *value, "a number");
    out = value->get<float>();
    return {};
  }
  Status read(const char* key, bool& out) const {
    const json* value = find(key);
    if (!value) return {};
    if (!value->is_boolean()) return wrong(key, *value, "true or false");
    out = value->get<bool>();
    return {};
  }
  Status read(const char* key, std::string& out) const {
    const json* value = find(key);
    if (!value) return {};
    if (!value->is_string()) return wrong(key, *value, "a string");
    out = value->get<std::string>();
    return {};
  }
  template <typename T>
  Status require(const char* key, T& out) const {
    if (!has(key)) return not_found("'{}' has no {}", source_, key);
    return read(key, out);
  }
  template <typename T>
  Status read(const char* key, std::optional<T>& out) const {
    T value{};
    if (!has(key)) return {};
    OASIS_RETURN_IF_ERROR(read(key, value));
    out = value;
    return {};
  }
  // An id or a list of ids.
  Status read(const char* key, std::vector<int32_t>& out) const {
    const json* value = find(key);
    if (!value) return {};
    std::vector<int32_t> ids;
    for (const json& item : value->is_array() ? *value : json::array({*value})) {
      const auto id = to_integer(item);
      if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
        return wrong(key, *value, "a token id or a list of them");
      ids.push_back(static_cast<int32_t>(*id));
    }
    out = std::move(ids);
    return {};
  }
  const std::string& source() const { return source_; }

 private:
  // 8192 and 8192.0, both of which occur.
  static std::optional<int64_t> to_integer(const json& value) {
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) return {};
    if (value.is_number_integer()) return value.get<int64_t>();
    if (!value.is_number_float()) return {};
    const double number = value.get<double>();
    if (std::abs(number) > 0x1p53 || number != std::floor(number)) return {};
    return static_cast<int64_t>(number);
  }
  Status wrong(const char* key, const json& value, std::string_view wanted) const {
    return invalid_argument("'{}': {} is of type {}, it must be {}", source_, key, value.type_name(), wanted);
  }

  const json& object_;
  const std::string& source_;
};

Status read_yarn(const Fields& fields, RopeConfig& rope, int64_t max_positions) {
  rope.original_context = max_positions;
  OASIS_RETURN_IF_ERROR(fields.read("original_max_position_embeddings", rope.original_context));
  if (rope.original_context < 1)
    return invalid_argument("'{}': original_max_position_embeddings is {}, it must be positive", fields.source(),
                            rope.original_context);
  rope.factor = static_cast<float>(static_cast<double>(max_positions) / static_cast<double>(rope.original_context));
  OASIS_RETURN_IF_ERROR(fields.read("factor", rope.factor));
  OASIS_RETURN_IF_ERROR(fields.read("attention_factor", rope.attention_factor));
  OASIS_RETURN_IF_ERROR(fields.read("beta_fast", rope.beta_fast));
  OASIS_RETURN_IF_ERROR(fields.read("beta_slow", rope.beta_slow));
  float mscale = 0, mscale_all_dim = 0;  // DeepSeek's way to state the attention factor
  OASIS_RETURN_IF_ERROR(fields.read("mscale", mscale));
  OASIS_RETURN_IF_ERROR(fields.read("mscale_all_dim", mscale_all_dim));
  if (rope.attention_factor == 0 && mscale > 0 && mscale_all_dim > 0 && rope.factor > 1) {
    const float log_factor = std::log(rope.factor);
    rope.attention_factor = (0.1f * mscale * log_factor + 1) / (0.1f * mscale_all_dim * log_factor + 1);
  }
  bool truncate = true;
  OASIS_RETURN_IF_ERROR(fields.read("truncate", truncate));
  if (!truncate) return unsupported("'{}': YaRN with truncate = false is not implemented", fields.source());
  return {};
}

Status read_llama3(const Fields& fields, RopeConfig& rope) {
  OASIS_RETURN_IF_ERROR(fields.require("factor", rope.factor));
  OASIS_RETURN_IF_ERROR(fields.require("low_freq_factor", rope.low_freq_factor));
  OASIS_RETURN_IF_ERROR(fields.require("high_freq_factor", rope.high_freq_factor));
  return fields.require("original_max_position_embeddings", rope.original_context);
}

// Older files have rope_theta and rope_scaling (with the key "type" or "rope_type"), newer ones all in rope_parameters.
Status read_rope(const Fields& root, ModelConfig& config, int64_t max_positions) {
  RopeConfig& rope = config.rope;
  OASIS_RETURN_IF_ERROR(root.read("rope_theta", rope.theta));
  float rotary_part = 1;
  OASIS_RETURN_IF_ERROR(root.read("partial_rotary_factor", rotary_part));
  const char* key = root.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (const json* object = root.find(key)) {
    if (!object->is_object()) return invalid_argument("'{}': {} is not an object", root.source(), key);
    const Fields fields(*object, root.source());
    OASIS_RETURN_IF_ERROR(fields.read("rope_theta", rope.theta));
    OASIS_RETURN_IF_ERROR(fields.read("partial_rotary_factor", rotary_part));
    std::string type = "default";
    OASIS_RETURN_IF_ERROR(fields.read("type", type));
    OASIS_RETURN_IF_ERROR(fields.read("rope_type", type));
    if (type == "llama3") {
      rope.scaling = RopeScaling::kLlama3;
      OASIS_RETURN_IF_ERROR(read_llama3(fields, rope));
    } else if (type == "yarn") {
      rope.scaling = RopeScaling::kYarn;
      OASIS_RETURN_IF_ERROR(read_yarn(fields, rope, max_positions));
    } else if (type != "default") {
      return unsupported("'{}': RoPE scaling '{}' is not implemented; known are default, llama3 and yarn",
                         root.source(), type);
    }
  }
  if (rotary_part != 1)
    return unsupported("'{}': partial_rotary_factor {} is not implemented, only 1", root.source(), rotary_part);
  return {};
}

// Variants of these architectures that would silently compute something else.
Status refuse_variants(const Fields& root) {
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    bool set = false;
    OASIS_RETURN_IF_ERROR(root.read(key, set));
    if (set) return unsupported("'{}': {} = true is not implemented", root.source(), key);
  }
  std::string activation = "silu";
  OASIS_RETURN_IF_ERROR(root.read("hidden_act", activation));
  if (activation != "silu")
    return unsupported("'{}': hidden_act '{}' is not implemented, only silu", root.source(), activation);
  if (root.has("quantization_config"))
    return unsupported(
        "'{}' has a quantization_config; quantised weights are read from GGUF only: use the unquantised checkpoint "
        "or a GGUF file of it",
        root.source());
  return {};
}

Result<Arch> read_arch(const Fields& root) {
  std::string type;
  OASIS_RETURN_IF_ERROR(root.require("model_type", type));
  if (type == "llama") return Arch::kLlama;
  if (type == "qwen3") return Arch::kQwen3;
  return unsupported("'{}': model_type '{}' is not implemented; known are llama and qwen3", root.source(), type);
}

Status read_sizes(const Fields& root, ModelConfig& config) {
  OASIS_RETURN_IF_ERROR(root.require("num_hidden_layers", config.layers));
  OASIS_RETURN_IF_ERROR(root.require("hidden_size", config.hidden));
  OASIS_RETURN_IF_ERROR(root.require("num_attention_heads", config.heads));
  config.kv_heads = config.heads;
  OASIS_RETURN_IF_ERROR(root.read("num_key_value_heads", config.kv_heads));
  // The defaults where head_dim is absent are those of transformers' LlamaConfig and Qwen3Config.
  if (config.arch == Arch::kQwen3)
    config.head_dim = 128;
  else
    config.head_dim = config.heads > 0 ? config.hidden / config.heads : 0;
  OASIS_RETURN_IF_ERROR(root.read("head_dim", config.head_dim));
  OASIS_RETURN_IF_ERROR(root.require("intermediate_size", config.intermediate));
  OASIS_RETURN_IF_ERROR(root.require("vocab_size", config.vocab));
  OASIS_RETURN_IF_ERROR(root.require("max_position_embeddings", config.context));
  OASIS_RETURN_IF_ERROR(root.read("rms_norm_eps", config.rms_eps));
  return root.read("tie_word_embeddings", config.tied_embeddings);
}

}  // namespace

Result<ModelConfig> parse_config_json(std::string_view text, const std::string& source) {
  OASIS_ASSIGN_OR_RETURN(const json parsed, parse_json(text, source));
  if (!parsed.is_object()) return invalid_argument("'{}' is not a JSON object", source);
  const Fields root(parsed, source);
  ModelConfig config;
  OASIS_ASSIGN_OR_RETURN(config.arch, read_arch(root));
  config.qk_norm = config.arch == Arch::kQwen3;
  OASIS_RETURN_IF_ERROR(root.read("_name_or_path", config.name));
  OASIS_RETURN_IF_ERROR(refuse_variants(root));
  OASIS_RETURN_IF_ERROR(read_sizes(root, config));
  OASIS_RETURN_IF_ERROR(read_rope(root, config, config.context));
  OASIS_RETURN_IF_ERROR(root.read("bos_token_id", config.bos_id));
  OASIS_RETURN_IF_ERROR(root.read("eos_token_id", config.eos_ids));
  OASIS_RETURN_IF_ERROR(complete(config, source));
  return config;
}

Result<ModelConfig> read_config_json(const std::string& path) {
  OASIS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > (1u << 24))
    return invalid_argument("'{}' has {} bytes; a config has at most 2^24", path, bytes.size());
  return parse_config_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Status apply_generation_config(std::string_view text, const std::string& source, ModelConfig& config) {
  auto parsed = parse_json(text, source);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_object()) return invalid_argument("'{}' is not a JSON object", source);
  const Fields root(*parsed, source);
  OASIS_RETURN_IF_ERROR(root.read("eos_token_id", config.eos_ids));
  bool do_sample = true;  // false: the author's other values are ignored by every reader of this file
  OASIS_RETURN_IF_ERROR(root.read("do_sample", do_sample));
  if (do_sample) {
    OASIS_RETURN_IF_ERROR(root.read("temperature", config.temperature));
    OASIS_RETURN_IF_ERROR(root.read("top_p", config.top_p));
    OASIS_RETURN_IF_ERROR(root.read("top_k", config.top_k));
  }
  return complete(config, source);
}

}  // namespace oasis::model
