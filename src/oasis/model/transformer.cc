#include "oasis/model/transformer.h"

#include <algorithm>
#include <array>

namespace oasis::model {

namespace {

// Floats a row that both halves of a layer need beside the normed input: q and k before RoPE, then gate and up.
int64_t wide_columns(const ModelConfig& c) {
  const int64_t unrotated = int64_t{c.heads + c.kv_heads} * c.head_dim;
  return std::max(unrotated, int64_t{2} * c.intermediate);
}

}  // namespace

int64_t Transformer::scratch_bytes(const ModelConfig& config, int64_t max_rows) {
  return max_rows * (config.hidden + wide_columns(config)) * static_cast<int64_t>(sizeof(float));
}

Result<Transformer> Transformer::create(Device& device, const Checkpoint& checkpoint, int64_t max_rows) {
  if (max_rows < 1 || max_rows > (int64_t{1} << 20))
    return invalid_argument("a transformer for {} rows a call: the limit is 1 to {}", max_rows, int64_t{1} << 20);
  Transformer t;
  t.config_ = &checkpoint.config();
  OASIS_ASSIGN_OR_RETURN(auto weights, DeviceWeights::create(device, checkpoint));
  t.device_weights_ = std::make_unique<DeviceWeights>(std::move(weights));
  t.weights_ = &t.device_weights_->weights();
  t.k_ = &kernels::kernels_for(device.backend());
  t.max_rows_ = max_rows;
  const std::vector<double> frequencies = rope_frequencies(t.config_->rope, t.config_->head_dim);
  OASIS_ASSIGN_OR_RETURN(t.frequencies_, device.allocate(frequencies.size() * sizeof(double)));
  device.foreground().copy(t.frequencies_.data(), frequencies.data(), t.frequencies_.bytes());
  t.rope_scale_ = rope_attention_scale(t.config_->rope);
  OASIS_ASSIGN_OR_RETURN(t.scratch_, device.allocate(static_cast<size_t>(scratch_bytes(*t.config_, max_rows))));
  t.normed_ = t.scratch_.as<float>();
  t.wide_ = t.normed_ + max_rows * t.config_->hidden;
  return t;
}

void Transformer::embed(Stream& stream, const int32_t* ids, int64_t rows, float* x) {
  k_->embedding(stream, {.table = weights_->embed, .ids = ids, .rows = rows, .out = x});
}

void Transformer::rope_table(Stream& stream, const int32_t* positions, int64_t rows, float* cos_sin) {
  k_->rope_table(stream, {.frequencies = frequencies_.as<double>(),
                          .scale = rope_scale_,
                          .positions = positions,
                          .rows = rows,
                          .head_dim = config_->head_dim,
                          .cos_sin = cos_sin});
}

const float* Transformer::norm(Stream& stream, std::span<const float> weight, const float* x, int64_t rows) {
  const int64_t hidden = config_->hidden;
  k_->rms_norm(stream, {.x = x,
                        .x_stride = hidden,
                        .weight = weight.data(),
                        .eps = config_->rms_eps,
                        .y = normed_,
                        .y_stride = hidden,
                        .rows = rows,
                        .cols = hidden});
  return normed_;
}

void Transformer::before_attention(Stream& stream, int layer, const float* x, const float* cos_sin, int64_t rows,
                                   float* q, float* k, float* v, float* q_unrotated) {
  OASIS_CHECK(rows <= max_rows_, "{} rows, made for {}", rows, max_rows_);
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const int64_t d = config_->head_dim, q_cols = config_->heads * d, kv_cols = config_->kv_heads * d;
  float* q_raw = q_unrotated ? q_unrotated : wide_;
  float* k_raw = wide_ + rows * q_cols;

  const float* normed = norm(stream, w.attn_norm, x, rows);
  const std::array<kernels::MatmulPart, 3> parts = {{{w.q, q_raw, q_cols}, {w.k, k_raw, kv_cols}, {w.v, v, kv_cols}}};
  k_->matmul(stream, {.x = normed, .x_stride = config_->hidden, .rows = rows, .cols = config_->hidden, .parts = parts});

  if (config_->qk_norm) {
    const auto norm_heads = [&](std::span<const float> weight, float* heads, int64_t count) {
      k_->rms_norm(stream, {.x = heads,
                            .x_stride = d,
                            .weight = weight.data(),
                            .eps = config_->rms_eps,
                            .y = heads,
                            .y_stride = d,
                            .rows = count,
                            .cols = d});
    };
    norm_heads(w.q_norm, q_raw, rows * config_->heads);
    norm_heads(w.k_norm, k_raw, rows * config_->kv_heads);
  }
  rotate_queries(stream, q_raw, cos_sin, rows, q);
  k_->rope(stream, {.x = k_raw,
                    .x_stride = kv_cols,
                    .cos_sin = cos_sin,
                    .interleaved = config_->rope.interleaved,
                    .y = k,
                    .y_stride = kv_cols,
                    .rows = rows,
                    .heads = config_->kv_heads,
                    .head_dim = d});
}

void Transformer::rotate_queries(Stream& stream, const float* q_unrotated, const float* cos_sin, int64_t rows,
                                 float* q) {
  const int64_t d = config_->head_dim, q_cols = config_->heads * d;
  k_->rope(stream, {.x = q_unrotated,
                    .x_stride = q_cols,
                    .cos_sin = cos_sin,
                    .interleaved = config_->rope.interleaved,
                    .y = q,
                    .y_stride = q_cols,
                    .rows = rows,
                    .heads = config_->heads,
                    .head_dim = d});
}

void Transformer::after_attention(Stream& stream, int layer, const float* attention, int64_t rows, float* x) {
  OASIS_CHECK(rows <= max_rows_, "{} rows, made for {}", rows, max_rows_);
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];
  const int64_t hidden = config_->hidden, inner = config_->intermediate;
  const int64_t q_cols = int64_t{config_->heads} * config_->head_dim;
  const auto add_to_residual = [&](const float* y, int64_t cols, const WeightView& weight) {
    const kernels::MatmulPart part = {weight, x, hidden};
    k_->matmul(stream, {.x = y, .x_stride = cols, .rows = rows, .cols = cols, .parts = {&part, 1}, .accumulate = true});
  };
  add_to_residual(attention, q_cols, w.o);

  float* gate = wide_;
  float* up = wide_ + rows * inner;
  const float* normed = norm(stream, w.ffn_norm, x, rows);
  const std::array<kernels::MatmulPart, 2> parts = {{{w.gate, gate, inner}, {w.up, up, inner}}};
  k_->matmul(stream, {.x = normed, .x_stride = hidden, .rows = rows, .cols = hidden, .parts = parts});
  k_->swiglu(stream, {.gate = gate, .up = up, .y = gate, .count = rows * inner});
  add_to_residual(gate, inner, w.down);
}

void Transformer::logits(Stream& stream, const float* x, int64_t rows, float* logits) {
  OASIS_CHECK(rows <= max_rows_, "{} rows, made for {}", rows, max_rows_);
  const float* normed = norm(stream, weights_->output_norm, x, rows);
  const kernels::MatmulPart part = {weights_->lm_head, logits, config_->vocab};
  k_->matmul(stream,
             {.x = normed, .x_stride = config_->hidden, .rows = rows, .cols = config_->hidden, .parts = {&part, 1}});
}

}  // namespace oasis::model
