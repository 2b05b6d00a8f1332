#include "oasis/model/bind_weights.h"

#include <cstring>

namespace oasis::model {

namespace {

struct Names {
  std::string_view embed, lm_head, output_norm;
  std::string_view layer_prefix, layer_suffix;  // around the layer's number
  std::string_view q, k, v, o, gate, up, down, attn_norm, ffn_norm, q_norm, k_norm;
};

constexpr Names kHuggingFaceNames = {
    .embed = "model.embed_tokens.weight",
    .lm_head = "lm_head.weight",
    .output_norm = "model.norm.weight",
    .layer_prefix = "model.layers.",
    .layer_suffix = ".",
    .q = "self_attn.q_proj.weight",
    .k = "self_attn.k_proj.weight",
    .v = "self_attn.v_proj.weight",
    .o = "self_attn.o_proj.weight",
    .gate = "mlp.gate_proj.weight",
    .up = "mlp.up_proj.weight",
    .down = "mlp.down_proj.weight",
    .attn_norm = "input_layernorm.weight",
    .ffn_norm = "post_attention_layernorm.weight",
    .q_norm = "self_attn.q_norm.weight",
    .k_norm = "self_attn.k_norm.weight",
};

constexpr Names kGgufNames = {
    .embed = "token_embd.weight",
    .lm_head = "output.weight",
    .output_norm = "output_norm.weight",
    .layer_prefix = "blk.",
    .layer_suffix = ".",
    .q = "attn_q.weight",
    .k = "attn_k.weight",
    .v = "attn_v.weight",
    .o = "attn_output.weight",
    .gate = "ffn_gate.weight",
    .up = "ffn_up.weight",
    .down = "ffn_down.weight",
    .attn_norm = "attn_norm.weight",
    .ffn_norm = "ffn_norm.weight",
    .q_norm = "attn_q_norm.weight",
    .k_norm = "attn_k_norm.weight",
};

// Bytes that an element's address must be a multiple of; quantised blocks are read bytewise or as 16-bit scales.
size_t alignment_of(DType type) {
  const DTypeInfo i = info(type);
  return i.block_elements > 1 ? 2 : i.block_bytes;
}

class Binder {
 public:
  Binder(const ModelConfig& config, const TensorTable& tensors, const Names& names, const std::string& source,
         std::vector<std::vector<std::byte>>& owned)
      : config_(config), tensors_(tensors), names_(names), source_(source), owned_(owned) {}

  Result<ModelWeights> bind() {
    OASIS_RETURN_IF_ERROR(refuse_biases());
    ModelWeights weights;
    OASIS_RETURN_IF_ERROR(matrix(std::string(names_.embed), config_.vocab, config_.hidden, weights.embed));
    OASIS_RETURN_IF_ERROR(norm(std::string(names_.output_norm), config_.hidden, weights.output_norm));
    OASIS_RETURN_IF_ERROR(bind_head(weights));
    for (int i = 0; i < config_.layers; ++i) OASIS_RETURN_IF_ERROR(bind_layer(i, weights.layers.emplace_back()));
    return weights;
  }

 private:
  // These architectures have none; a fine-tune that does would silently compute something else.
  Status refuse_biases() const {
    for (const auto& [name, tensor] : tensors_)
      if (name.ends_with(".bias"))
        return unsupported("'{}': tensor '{}': biases are not implemented", source_, printable(name));
    return {};
  }

  // A head that is present is used, whatever the config declares.
  Status bind_head(ModelWeights& weights) {
    const std::string name(names_.lm_head);
    if (tensors_.contains(name)) return matrix(name, config_.vocab, config_.hidden, weights.lm_head);
    if (!config_.tied_embeddings)
      return not_found("'{}' has no tensor '{}', and its embeddings are not tied (tie_word_embeddings is false)",
                       source_, name);
    weights.lm_head = weights.embed;
    return {};
  }

  Status bind_layer(int index, LayerWeights& layer) {
    const int64_t hidden = config_.hidden, intermediate = config_.intermediate, head_dim = config_.head_dim;
    const int64_t q_rows = config_.heads * head_dim, kv_rows = config_.kv_heads * head_dim;
    const auto name = [&](std::string_view part) {
      return fmt::format("{}{}{}{}", names_.layer_prefix, index, names_.layer_suffix, part);
    };
    OASIS_RETURN_IF_ERROR(norm(name(names_.attn_norm), hidden, layer.attn_norm));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.q), q_rows, hidden, layer.q));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.k), kv_rows, hidden, layer.k));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.v), kv_rows, hidden, layer.v));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.o), hidden, q_rows, layer.o));
    OASIS_RETURN_IF_ERROR(norm(name(names_.ffn_norm), hidden, layer.ffn_norm));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.gate), intermediate, hidden, layer.gate));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.up), intermediate, hidden, layer.up));
    OASIS_RETURN_IF_ERROR(matrix(name(names_.down), hidden, intermediate, layer.down));
    if (!config_.qk_norm) return {};
    OASIS_RETURN_IF_ERROR(norm(name(names_.q_norm), head_dim, layer.q_norm));
    return norm(name(names_.k_norm), head_dim, layer.k_norm);
  }

  Result<const TensorInfo*> find(const std::string& name, const std::vector<int64_t>& shape) const {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return not_found("'{}' has no tensor '{}'", source_, name);
    if (it->second->shape != shape)
      return data_corruption("'{}': tensor '{}' has shape {}, but {} by the configuration", source_, name,
                             to_string(it->second->shape), to_string(shape));
    return it->second;
  }

  Status matrix(const std::string& name, int64_t rows, int64_t cols, WeightView& out) {
    OASIS_ASSIGN_OR_RETURN(const TensorInfo* tensor, find(name, {rows, cols}));
    if (tensor->type == DType::kI64 || tensor->type == DType::kBool)
      return unsupported("'{}': tensor '{}' has type {}, which no weight can have", source_, name,
                         info(tensor->type).name);
    out = {tensor->data.data(), tensor->type, rows, cols};
    if (reinterpret_cast<uintptr_t>(out.data) % alignment_of(tensor->type) != 0)
      out.data = owned_.emplace_back(tensor->data.begin(), tensor->data.end()).data();
    return {};
  }

  Status norm(const std::string& name, int64_t size, std::span<const float>& out) {
    OASIS_ASSIGN_OR_RETURN(const TensorInfo* tensor, find(name, {size}));
    OASIS_ASSIGN_OR_RETURN(const std::vector<float> values, to_floats(*tensor, name));
    auto& copy = owned_.emplace_back(values.size() * sizeof(float));
    std::memcpy(copy.data(), values.data(), copy.size());
    out = {reinterpret_cast<const float*>(copy.data()), values.size()};
    return {};
  }

  const ModelConfig& config_;
  const TensorTable& tensors_;
  const Names& names_;
  const std::string& source_;
  std::vector<std::vector<std::byte>>& owned_;
};

}  // namespace

Result<ModelWeights> bind_weights(const ModelConfig& config, const TensorTable& tensors, TensorNaming naming,
                                  const std::string& source, std::vector<std::vector<std::byte>>& owned) {
  const Names& names = naming == TensorNaming::kGguf ? kGgufNames : kHuggingFaceNames;
  return Binder(config, tensors, names, source, owned).bind();
}

}  // namespace oasis::model
