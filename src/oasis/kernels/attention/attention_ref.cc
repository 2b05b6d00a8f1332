#include "oasis/kernels/attention/attention_ref.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace oasis::kernels {
namespace {

double bf16_at(const std::byte* p, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, p + 2 * i, 2);
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace

void attention_ref(const AttentionParams& p) {
  for (int64_t g = 0; g < p.groups; ++g) {
    for (int64_t r = p.row_begin[g]; r < p.row_begin[g + 1]; ++r) {
      for (int64_t head = 0; head < p.kv_heads * p.q_per_kv; ++head) {
        const int64_t kv_head = head / p.q_per_kv, list = g * p.kv_heads + kv_head;
        const float* q = p.q + r * p.q_stride + head * p.head_dim;
        std::vector<double> logits;
        std::vector<const std::byte*> values;
        for (int64_t e = 0; e < p.entry_count[list]; ++e) {
          const ListEntry entry = p.entries[list * p.list_stride + e];
          for (int64_t i = 0; i < p.block_size; ++i) {
            if (entry.block * p.block_size + i > p.positions[r]) continue;
            const std::byte* k =
                p.pool.base + entry.page * p.pool.page_stride + kv_head * p.pool.head_stride + i * p.pool.token_stride;
            double dot = 0;
            for (int64_t j = 0; j < p.head_dim; ++j) dot += static_cast<double>(q[j]) * bf16_at(k, j);
            logits.push_back(dot / std::sqrt(static_cast<double>(p.head_dim)));
            values.push_back(k + p.pool.v_offset);
          }
        }
        double max = -HUGE_VAL, sum = 0;
        for (double x : logits) max = std::fmax(max, x);
        for (double& x : logits) sum += x = std::exp(x - max);
        for (int64_t j = 0; j < p.head_dim; ++j) {
          double out = 0;
          for (size_t i = 0; i < logits.size(); ++i) out += logits[i] / sum * bf16_at(values[i], j);
          p.out[r * p.out_stride + head * p.head_dim + j] = static_cast<float>(out);
        }
      }
    }
  }
}

}  // namespace oasis::kernels
