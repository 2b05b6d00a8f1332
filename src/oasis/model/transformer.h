// The target model, cut at attention: what comes before it and after it in each layer. Attention itself belongs to the
// KV core, so that one code serves dense, sparse and tiered sequences. All arrays are fp32, row-major, rows contiguous.
#pragma once

#include <cstdint>
#include <memory>

#include "oasis/device/device.h"
#include "oasis/kernels/kernels.h"
#include "oasis/model/device_weights.h"

namespace oasis::model {

// Calls share one scratch: they go to one stream at a time, and take between 0 and max_rows rows.
class Transformer {
 public:
  // Borrows device and checkpoint, which must outlive it. `max_rows`: the most rows of one call; scratch is allocated
  // for them here.
  static Result<Transformer> create(Device& device, const Checkpoint& checkpoint, int64_t max_rows);
  // Bytes that `create` allocates, for plans.
  static int64_t scratch_bytes(const ModelConfig& config, int64_t max_rows);

  const ModelConfig& config() const { return *config_; }
  int64_t max_rows() const { return max_rows_; }
  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.bytes()); }
  // The weights where the device has them, and room for more beside them.
  DeviceWeights& device_weights() { return *device_weights_; }

  // x[r] = embedding of ids[r]. [rows, hidden]
  void embed(Stream&, const int32_t* ids, int64_t rows, float* x);
  // cos and sin for the rows' positions: once a step, used by every layer. [rows, 2, head_dim / 2]
  void rope_table(Stream&, const int32_t* positions, int64_t rows, float* cos_sin);
  // Before attention: norm, QKV projection, q/k norm (Qwen3), RoPE. q [rows, heads * d], k and v [rows, kv_heads * d].
  // `q_unrotated`, if not null, receives q before RoPE (the proxy query is rotated to the next position).
  void before_attention(Stream&, int layer, const float* x, const float* cos_sin, int64_t rows, float* q, float* k,
                        float* v, float* q_unrotated = nullptr);
  // Rotates q_unrotated [rows, heads * d] by another table.
  void rotate_queries(Stream&, const float* q_unrotated, const float* cos_sin, int64_t rows, float* q);
  // After attention: x += o_proj(attention), then x += MLP(norm(x)). attention [rows, heads * d].
  void after_attention(Stream&, int layer, const float* attention, int64_t rows, float* x);
  // logits[r] = lm_head(norm(x[r])), [rows, vocab].
  void logits(Stream&, const float* x, int64_t rows, float* logits);

 private:
  Transformer() = default;
  // y = norm(x) * weight, [rows, hidden], in scratch.
  const float* norm(Stream&, std::span<const float> weight, const float* x, int64_t rows);

  const ModelConfig* config_ = nullptr;
  std::unique_ptr<DeviceWeights> device_weights_;
  const ModelWeights* weights_ = nullptr;  // of device_weights_
  const kernels::Kernels* k_ = nullptr;
  int64_t max_rows_ = 0;
  Buffer frequencies_;  // doubles [head_dim / 2], scaling applied
  float rope_scale_ = 1;
  Buffer scratch_;
  float* normed_ = nullptr;  // in scratch_: [max_rows, hidden]
  float* wide_ = nullptr;    // in scratch_: q and k before RoPE, or gate and up
};

}  // namespace oasis::model
