// The split kernel in eight-float vectors and fp32 arithmetic, compiled once an instruction set.
#pragma once

#include <cstring>

#include "oasis/kernels/attention/attention_split.h"
#include "oasis/kernels/vec8.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kTileKeys = 16;  // a block is a whole number of tiles
constexpr float kInfinity = __builtin_inff();

// As fp8_scale_value in fp8_row.h, which may not be included here: its code must not be shared (vec8.h).
float fp8_scale(uint8_t scale) {
  const uint32_t bits = scale == 255 ? 0x7fc00000u : uint32_t{scale} << 23;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

int64_t packed_bytes(int64_t head_dim) { return (head_dim * 4 + 63) / 64 * 64; }
int64_t tile_bytes(int64_t head_dim) { return kTileKeys * head_dim * 4; }

void pack(const float* q, float scale, int64_t head_dim, std::byte* packed) {
  float* to = reinterpret_cast<float*>(packed);
  for (int64_t i = 0; i < head_dim; ++i) to[i] = q[i] * scale;
}

// `count` rows of keys (which = 0) or values (1) of a slot, from token `first` on -> tile [count, head_dim], fp32.
void widen(const AttentionSplit& s, const std::byte* slot, int64_t which, int64_t first, int64_t count, float* tile) {
  const int64_t d = s.head_dim;
  const std::byte* rows = slot + which * s.v_offset + first * s.token_stride;
  if (s.type == KvType::kBf16) {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < d; j += 8) store8(tile + i * d + j, load8_bf16(rows + i * s.token_stride + 2 * j));
    return;
  }
  const std::byte* scales = slot + s.scale_offset + which * s.block_size + first;
  for (int64_t i = 0; i < count; ++i) {
    const F8 scale = splat8(fp8_scale(static_cast<uint8_t>(scales[i])));
    for (int64_t j = 0; j < d; j += 8) store8(tile + i * d + j, load8_fp8(rows + i * s.token_stride + j) * scale);
  }
}

// The logits of one query with kTileKeys keys.
void score_tile(const float* q, const float* keys, int64_t head_dim, float* scores) {
  for (int64_t first = 0; first < kTileKeys; first += 8) {
    F8 dot[8] = {};
    for (int64_t j = 0; j < head_dim; j += 8) {
      const F8 x = load8(q + j);
      for (int64_t i = 0; i < 8; ++i) dot[i] += x * load8(keys + (first + i) * head_dim + j);
    }
    store8(scores + first, sum8_each(dot));
  }
}

// acc += sum over keys i < count of weights[i] * values[i].
void add_values(const float* weights, const float* values, int64_t count, int64_t head_dim, float* acc) {
  int64_t j = 0;
  for (; j + 32 <= head_dim; j += 32) {
    F8 sum[4];
    for (int64_t c = 0; c < 4; ++c) sum[c] = load8(acc + j + 8 * c);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < 4; ++c) sum[c] += splat8(weights[i]) * load8(values + i * head_dim + j + 8 * c);
    for (int64_t c = 0; c < 4; ++c) store8(acc + j + 8 * c, sum[c]);
  }
  for (; j < head_dim; j += 8) {
    F8 sum = load8(acc + j);
    for (int64_t i = 0; i < count; ++i) sum += splat8(weights[i]) * load8(values + i * head_dim + j);
    store8(acc + j, sum);
  }
}

// Keys of the block that a row at `position` sees.
int64_t visible(int64_t block, int64_t block_size, int64_t position) {
  const int64_t seen = position - block * block_size + 1;
  return seen < 0 ? 0 : least(seen, block_size);
}

// Turns one query's logits into weights; n is a multiple of 16.
void softmax(float* scores, int64_t n, float& max_out, float& sum_out) {
  F8 m = splat8(-kInfinity);
  for (int64_t i = 0; i < n; i += 8) m = max8(m, load8(scores + i));
  max_out = max8(m);
  // Keys that are masked have logit -infinity: a query without any visible key needs a finite subtrahend.
  const float base = max_out == -kInfinity ? 0.0f : max_out;
  F8 sum[2] = {};
  for (int64_t i = 0; i < n; i += 16) {
    for (int64_t c = 0; c < 2; ++c) {
      const F8 w = exp2_8(load8(scores + i + 8 * c) - base);
      store8(scores + i + 8 * c, w);
      sum[c] += w;
    }
  }
  sum_out = sum8(sum[0] + sum[1]);
  if (sum_out != sum_out) max_out = sum_out;  // a maximum may have lost a NaN
}

void attend(const AttentionSplit& s) {
  const int64_t queries = s.rows * s.q_per_kv, n = s.entry_count * s.block_size, d = s.head_dim;
  const int64_t q_stride = packed_bytes(d);
  float* tile = reinterpret_cast<float*>(s.tile);

  for (int64_t e = 0; e < s.entry_count; ++e) {
    const std::byte* slot = s.slots + s.entries[e].page * s.page_stride;
    for (int64_t t = 0; t < s.block_size; t += kTileKeys) {
      widen(s, slot, 0, t, kTileKeys, tile);
      for (int64_t m = 0; m < queries; ++m) {
        score_tile(reinterpret_cast<const float*>(s.packed_q + m * q_stride), tile, d,
                   s.scores + m * n + e * s.block_size + t);
      }
    }
  }

  // A masked token's memory may hold anything, NaN too: its logit is replaced here and its value never read.
  for (int64_t m = 0; m < queries; ++m) {
    float* scores = s.scores + m * n;
    for (int64_t e = s.full_count; e < s.entry_count; ++e) {
      const int64_t seen = visible(s.entries[e].block, s.block_size, s.positions[m / s.q_per_kv]);
      fill(scores + e * s.block_size + seen, scores + (e + 1) * s.block_size, -kInfinity);
    }
    softmax(scores, n, s.max[m], s.sum[m]);
    std::memset(s.acc + m * s.acc_stride, 0, sizeof(float) * d);
  }

  for (int64_t e = 0; e < s.entry_count; ++e) {
    const std::byte* slot = s.slots + s.entries[e].page * s.page_stride;
    for (int64_t t = 0; t < s.block_size; t += kTileKeys) {
      int64_t widened = 0;
      for (int64_t m = 0; m < queries; ++m) {
        const int64_t seen =
            e < s.full_count ? s.block_size : visible(s.entries[e].block, s.block_size, s.positions[m / s.q_per_kv]);
        const int64_t count = seen < t ? 0 : least(seen - t, kTileKeys);
        if (count > widened) {
          widen(s, slot, 1, t + widened, count - widened, tile + widened * d);
          widened = count;
        }
        add_values(s.scores + m * n + e * s.block_size + t, tile, count, d, s.acc + m * s.acc_stride);
      }
    }
  }
}

void merge(const AttentionMerge& m) {
  float max = -kInfinity, sum = 0;
  for (int64_t s = 0; s < m.splits; ++s) max = m.max[s * m.step] > max ? m.max[s * m.step] : max;
  if (max == -kInfinity) max = 0;
  for (int64_t s = 0; s < m.splits; ++s) {
    float& weight = m.max[s * m.step];
    weight = exp2_8(splat8(weight - max))[0];
    sum += weight * m.sum[s * m.step];
  }
  const F8 inverse = splat8(sum == 0 ? 0 : 1 / sum);  // no key seen: zeros
  for (int64_t j = 0; j < m.head_dim; j += 16) {
    F8 out[2] = {};
    for (int64_t s = 0; s < m.splits; ++s) {
      const F8 weight = splat8(m.max[s * m.step]);
      for (int64_t c = 0; c < 2; ++c) out[c] += weight * load8(m.acc + s * m.step * m.acc_stride + j + 8 * c);
    }
    for (int64_t c = 0; c < 2; ++c) store8(m.out + j + 8 * c, out[c] * inverse);
  }
}

}  // namespace
}  // namespace oasis::kernels
