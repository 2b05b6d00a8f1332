#include "oasis/kernels/prefill_attention/prefill_attention_ref.h"

#include <bit>
#include <cmath>
#include <vector>

namespace oasis::kernels {
namespace {

double value(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

}  // namespace

void prefill_attention_ref(const PrefillAttentionParams& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t keys = p.first_position + r + 1;
    for (int64_t head = 0; head < p.kv_heads * p.q_per_kv; ++head) {
      const float* q = p.q + r * p.q_stride + head * p.head_dim;
      const bf16* k = p.k + head / p.q_per_kv * p.kv_head_stride;
      const bf16* v = p.v + head / p.q_per_kv * p.kv_head_stride;
      std::vector<double> weights(keys), out(p.head_dim, 0.0);
      double max = -HUGE_VAL, sum = 0;
      for (int64_t i = 0; i < keys; ++i) {
        double dot = 0;
        for (int64_t j = 0; j < p.head_dim; ++j) dot += static_cast<double>(q[j]) * value(k[i * p.head_dim + j]);
        weights[i] = dot / std::sqrt(static_cast<double>(p.head_dim));
        max = std::fmax(max, weights[i]);
      }
      for (double& w : weights) sum += w = std::exp(w - max);
      for (int64_t i = 0; i < keys; ++i)
        for (int64_t j = 0; j < p.head_dim; ++j) out[j] += weights[i] / sum * value(v[i * p.head_dim + j]);
      for (int64_t j = 0; j < p.head_dim; ++j)
        p.out[r * p.out_stride + head * p.head_dim + j] = static_cast<float>(out[j]);
    }
  }
}

}  // namespace oasis::kernels
