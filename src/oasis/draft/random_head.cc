// A head of random weights with the sizes of its target, for benches.
#include <algorithm>
#include <cmath>

#include "oasis/draft/eagle3_head.h"
#include "oasis/kernels/random/random.h"

namespace oasis::draft {

Head make_random_head(const model::Checkpoint& target, uint64_t seed) {
  constexpr int64_t kDraftVocab = 32000;
  const model::ModelConfig& t = target.config();
  const auto cpu = make_cpu_device(0);
  Head head;
  uint64_t made = 0;
  const auto matrix = [&](int64_t rows, int64_t cols) {
    auto& bytes = head.owned.emplace_back(static_cast<size_t>(rows * cols) * sizeof(bf16));
    auto* out = reinterpret_cast<bf16*>(bytes.data());
    const auto half_width = static_cast<float>(std::sqrt(3.0 / static_cast<double>(cols)));
    kernels::fill_random_cpu(cpu->foreground(), {out, rows * cols, seed, made, half_width});
    made += static_cast<uint64_t>(rows * cols);
    head.weight_bytes += static_cast<int64_t>(bytes.size());
    return WeightView{out, DType::kBF16, rows, cols};
  };
  const auto ones = [&](int size) {
    return std::span<const float>(head.owned_floats.emplace_back(static_cast<size_t>(size), 1.0f));
  };
  HeadConfig& c = head.config;
  c.hidden = c.target_hidden = t.hidden;
  c.heads = t.heads, c.kv_heads = t.kv_heads, c.head_dim = t.head_dim, c.intermediate = t.intermediate;
  c.rms_eps = t.rms_eps, c.rope = t.rope;
  c.rope.interleaved = false;
  c.taps = {std::min(2, t.layers), t.layers / 2, std::max(0, t.layers - 3)};
  const int64_t hidden = c.hidden, q_cols = int64_t{c.heads} * c.head_dim, kv_cols = int64_t{c.kv_heads} * c.head_dim;
  head.embed = target.weights().embed;
  for (size_t tap = 0; tap < c.taps.size(); ++tap) head.fc.push_back(matrix(hidden, hidden));
  head.embed_norm = ones(c.hidden), head.feature_norm = ones(c.hidden);
  head.mlp_norm = ones(c.hidden), head.output_norm = ones(c.hidden);
  head.q.w = matrix(q_cols, 2 * hidden), head.k.w = matrix(kv_cols, 2 * hidden), head.v.w = matrix(kv_cols, 2 * hidden);
  head.o.w = matrix(hidden, q_cols);
  head.gate.w = matrix(c.intermediate, hidden), head.up.w = matrix(c.intermediate, hidden);
  head.down.w = matrix(hidden, c.intermediate);
  const int64_t drafts = std::min<int64_t>(kDraftVocab, t.vocab);
  head.lm_head.w = matrix(drafts, hidden);
  for (int64_t i = 0; i < drafts; ++i) head.target_id.push_back(static_cast<int32_t>(i * t.vocab / drafts));
  head.fingerprint = seed;
  return head;
}

}  // namespace oasis::draft
