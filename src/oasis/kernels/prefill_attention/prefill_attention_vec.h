// Prefill attention in eight-float vectors and fp32 arithmetic, compiled once an instruction set.
#pragma once

#include <cstring>

#include "oasis/kernels/prefill_attention/prefill_attention_task.h"
#include "oasis/kernels/vec8.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kKeys = kPrefillKeyTile;
constexpr int64_t kMicroRows = 4;  // queries that share the loads of a key or value
constexpr float kInfinity = __builtin_inff();

// Where the parts of the scratch lie. Queries are padded to a multiple of kMicroRows.
struct Tiles {
  float* keys;    // [head_dim, kKeys]
  float* values;  // [kKeys, head_dim]
  float* scores;  // [kMicroRows, kKeys]
  float* q;       // [queries, head_dim], scaled
  float* acc;     // [queries, head_dim]
  float* max;     // [queries]
  float* sum;     // [queries]
};

int64_t padded(int64_t queries) { return (queries + 15) / 16 * 16; }

int64_t scratch_bytes(int64_t queries, int64_t head_dim) {
  return 4 * (2 * kKeys * head_dim + kMicroRows * kKeys + padded(queries) * (2 * head_dim + 2));
}

Tiles lay_out(std::byte* scratch, int64_t queries, int64_t head_dim) {
  Tiles t;
  t.keys = reinterpret_cast<float*>(scratch);
  t.values = t.keys + kKeys * head_dim;
  t.scores = t.values + kKeys * head_dim;
  t.q = t.scores + kMicroRows * kKeys;
  t.acc = t.q + padded(queries) * head_dim;
  t.max = t.acc + padded(queries) * head_dim;
  t.sum = t.max + padded(queries);
  return t;
}

// Keys transposed, values as they are; tokens from `count` on are zero, their memory is not read.
void fill_tiles(const uint16_t* k, const uint16_t* v, int64_t count, int64_t d, const Tiles& t) {
  if (count < kKeys) std::memset(t.keys, 0, sizeof(float) * kKeys * d);
  std::memset(t.values + count * d, 0, sizeof(float) * (kKeys - count) * d);
  for (int64_t i = 0; i < count * d; i += 8) store8(t.values + i, load8_bf16(v + i));
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t j = 0; j < d; j += 8) {
      F8 x[8];
      for (int64_t c = 0; c < 8; ++c) x[c] = load8_bf16(k + (i + c) * d + j);
      transpose8(x);
      for (int64_t c = 0; c < 8; ++c) store8(t.keys + (j + c) * kKeys + i, x[c]);
    }
  }
  for (; i < count; ++i) {
    for (int64_t j = 0; j < d; j += 8) {
      const F8 x = load8_bf16(k + i * d + j);
      for (int64_t c = 0; c < 8; ++c) t.keys[(j + c) * kKeys + i] = x[c];
    }
  }
}

// scores[r][i] = q[r] . key i, for the first n keys; n is a multiple of 16.
void multiply_keys(const float* q, const Tiles& t, int64_t n, int64_t d) {
  for (int64_t i = 0; i < n; i += 16) {
    F8 dot[kMicroRows][2] = {};
    for (int64_t j = 0; j < d; ++j) {
      const F8 a = load8(t.keys + j * kKeys + i), b = load8(t.keys + j * kKeys + i + 8);
      for (int64_t r = 0; r < kMicroRows; ++r) {
        const F8 x = splat8(q[r * d + j]);
        dot[r][0] += x * a;
        dot[r][1] += x * b;
      }
    }
    for (int64_t r = 0; r < kMicroRows; ++r) {
      store8(t.scores + r * kKeys + i, dot[r][0]);
      store8(t.scores + r * kKeys + i + 8, dot[r][1]);
    }
  }
}

// acc[r] += sum over the first n keys of scores[r][i] * value i.
void add_values(const Tiles& t, int64_t n, int64_t d, float* acc) {
  for (int64_t j = 0; j < d; j += 16) {
    F8 sum[kMicroRows][2];
    for (int64_t r = 0; r < kMicroRows; ++r)
      for (int64_t c = 0; c < 2; ++c) sum[r][c] = load8(acc + r * d + j + 8 * c);
    for (int64_t i = 0; i < n; ++i) {
      const F8 a = load8(t.values + i * d + j), b = load8(t.values + i * d + j + 8);
      for (int64_t r = 0; r < kMicroRows; ++r) {
        const F8 w = splat8(t.scores[r * kKeys + i]);
        sum[r][0] += w * a;
        sum[r][1] += w * b;
      }
    }
    for (int64_t r = 0; r < kMicroRows; ++r)
      for (int64_t c = 0; c < 2; ++c) store8(acc + r * d + j + 8 * c, sum[r][c]);
  }
}

// One query's logits of a tile become weights; its sums so far are brought to the new maximum. Keys in [seen, n) are
// masked, n is a multiple of 16.
void softmax_tile(float* scores, int64_t seen, int64_t n, int64_t d, float& max, float& sum, float* acc) {
  fill(scores + seen, scores + n, -kInfinity);
  F8 m = splat8(max);
  for (int64_t i = 0; i < n; i += 8) m = max8(m, load8(scores + i));
  const float highest = max8(m);
  if (highest > max) {
    const float scale = exp2_8(splat8(max - highest))[0];
    for (int64_t j = 0; j < d; j += 8) store8(acc + j, load8(acc + j) * splat8(scale));
    sum *= scale;
    max = highest;
  }
  F8 total[2] = {};
  for (int64_t i = 0; i < n; i += 16) {
    for (int64_t c = 0; c < 2; ++c) {
      const F8 w = exp2_8(load8(scores + i + 8 * c) - max);
      store8(scores + i + 8 * c, w);
      total[c] += w;
    }
  }
  sum += sum8(total[0] + total[1]);
}

void attend(const PrefillTask& p) {
  const int64_t d = p.head_dim, queries = p.rows * p.q_per_kv;
  const Tiles t = lay_out(p.scratch, queries, d);
  const float scale = 1.44269504f / __builtin_sqrtf(static_cast<float>(d));  // base-2 logits
  std::memset(t.q, 0, sizeof(float) * padded(queries) * d);
  for (int64_t m = 0; m < queries; ++m) {
    const float* q = p.q + m / p.q_per_kv * p.q_stride + m % p.q_per_kv * d;
    for (int64_t j = 0; j < d; ++j) t.q[m * d + j] = q[j] * scale;
  }
  std::memset(t.acc, 0, sizeof(float) * padded(queries) * d);
  fill(t.max, t.max + padded(queries), -kInfinity);
  fill(t.sum, t.sum + padded(queries), 0.0f);

  const int64_t end = p.first_position + p.rows;  // keys that the last row sees
  for (int64_t first = 0; first < end; first += kKeys) {
    fill_tiles(p.k + first * d, p.v + first * d, least(kKeys, end - first), d, t);
    for (int64_t m = 0; m < queries; m += kMicroRows) {
      const int64_t last_row = least(queries - 1, m + kMicroRows - 1) / p.q_per_kv;
      const int64_t n = (least(kKeys, p.first_position + last_row + 1 - first) + 15) / 16 * 16;
      if (n <= 0) continue;
      multiply_keys(t.q + m * d, t, n, d);
      for (int64_t r = 0; r < kMicroRows; ++r) {
        const int64_t row = least(m + r, queries - 1) / p.q_per_kv;  // of padding: any
        const int64_t keys = p.first_position + row + 1 - first, seen = keys < 0 ? 0 : least(keys, n);
        softmax_tile(t.scores + r * kKeys, seen, n, d, t.max[m + r], t.sum[m + r], t.acc + (m + r) * d);
      }
      add_values(t, n, d, t.acc + m * d);
    }
  }
  for (int64_t m = 0; m < queries; ++m) {
    float* out = p.out + m / p.q_per_kv * p.out_stride + m % p.q_per_kv * d;
    for (int64_t j = 0; j < d; ++j) out[j] = t.acc[m * d + j] / t.sum[m];
  }
}

}  // namespace
}  // namespace oasis::kernels
