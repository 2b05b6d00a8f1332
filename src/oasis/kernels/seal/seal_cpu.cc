#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "oasis/base/numeric.h"
#include "oasis/base/status.h"
#include "oasis/kernels/fp8_row.h"
#include "oasis/kernels/seal/seal.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr float kFp8Max = 448.0f;

// Box of a block's keys, corner by corner. A NaN key makes its coordinates NaN, so that a poisoned slot shows in the
// scores instead of hiding in the box.
struct Box {
  float upper[kMaxHeadDim];
  float lower[kMaxHeadDim];
};

void box_of_keys(const PoolView& pool, int64_t page, int64_t head, int64_t tokens, int64_t d, Box& box) {
  std::fill_n(box.upper, d, -std::numeric_limits<float>::infinity());
  std::fill_n(box.lower, d, std::numeric_limits<float>::infinity());
  bf16 unpacked[kMaxHeadDim];
  for (int64_t t = 0; t < tokens; ++t) {
    const bf16* k = reinterpret_cast<const bf16*>(pool.k(page, head, t));
    if (pool.type == KvType::kFp8E4M3) {
      read_fp8_row(reinterpret_cast<const uint8_t*>(k), pool.scales(page, head)[t], d, unpacked);
      k = unpacked;
    }
    for (int64_t i = 0; i < d; ++i) {
      const float x = to_float(k[i]);
      box.upper[i] = (x > box.upper[i]) | (x != x) ? x : box.upper[i];
      box.lower[i] = (x < box.lower[i]) | (x != x) ? x : box.lower[i];
    }
  }
}

// mid + beta * half = max - (1 - beta) * half: in this form beta = 1 leaves the box as it is, bit for bit.
void shrink(Box& box, int64_t d, float beta) {
  for (int64_t i = 0; i < d; ++i) {
    const float inset = (1.0f - beta) * (0.5f * box.upper[i] - 0.5f * box.lower[i]);
    box.upper[i] -= inset;
    box.lower[i] += inset;
  }
}

void write_bf16(const float* row, int64_t d, std::byte* to) {
  bf16* out = reinterpret_cast<bf16*>(to);
  for (int64_t i = 0; i < d; ++i) out[i] = to_bf16(row[i]);
}

// Returns the scale: value = byte * scale.
float write_fp8(const float* row, int64_t d, std::byte* to) {
  float largest = 0;
  bool has_nan = false;
  for (int64_t i = 0; i < d; ++i) {
    largest = std::max(largest, std::abs(row[i]));
    has_nan |= row[i] != row[i];
  }
  if (has_nan) largest = std::numeric_limits<float>::quiet_NaN();
  const float scale = largest / kFp8Max;
  fp8_e4m3* out = reinterpret_cast<fp8_e4m3*>(to);
  for (int64_t i = 0; i < d; ++i) out[i] = scale != 0 ? to_fp8_e4m3(row[i] / scale) : fp8_e4m3{};
  return scale;
}

void write_summary(const Box& box, int64_t d, KvType type, std::byte* rows) {
  if (type == KvType::kBf16) {
    write_bf16(box.upper, d, rows);
    write_bf16(box.lower, d, rows + d * 2);
    return;
  }
  const float scales[2] = {write_fp8(box.upper, d, rows + 8), write_fp8(box.lower, d, rows + 8 + d)};
  std::memcpy(rows, scales, sizeof scales);
}

void copy_home(const PoolView& pool, int64_t page, int64_t head, int64_t tokens, int64_t d, std::byte* home) {
  const int64_t row = pool.type == KvType::kBf16 ? d * 2 : d;
  if (pool.token_stride == row) {
    std::memcpy(home, pool.k(page, head, 0), static_cast<size_t>(tokens * row));
    std::memcpy(home + tokens * row, pool.v(page, head, 0), static_cast<size_t>(tokens * row));
  } else {
    for (int64_t t = 0; t < tokens; ++t) {
      std::memcpy(home + t * row, pool.k(page, head, t), static_cast<size_t>(row));
      std::memcpy(home + (tokens + t) * row, pool.v(page, head, t), static_cast<size_t>(row));
    }
  }
  if (pool.type == KvType::kFp8E4M3) {
    std::memcpy(home + 2 * tokens * row, pool.scales(page, head), static_cast<size_t>(2 * tokens));
  }
}

void quantize_home(const PoolView& pool, int64_t page, int64_t head, int64_t tokens, int64_t d, std::byte* home) {
  auto* bytes = reinterpret_cast<uint8_t*>(home);
  uint8_t* scales = bytes + 2 * tokens * d;
  for (int64_t t = 0; t < tokens; ++t) {
    scales[t] = write_fp8_row(reinterpret_cast<const bf16*>(pool.k(page, head, t)), d, bytes + t * d);
    scales[tokens + t] =
        write_fp8_row(reinterpret_cast<const bf16*>(pool.v(page, head, t)), d, bytes + (tokens + t) * d);
  }
}

}  // namespace

void seal_cpu(Stream& stream, const SealParams& p) {
  OASIS_CHECK(p.home_type == p.pool.type || p.home_type == KvType::kFp8E4M3 || !p.homes,
              "an FP8 pool's block-heads go to FP8 homes");
  OASIS_CHECK(p.head_dim > 0 && p.head_dim <= kMaxHeadDim, "head_dim is {}, the limit {}", p.head_dim, kMaxHeadDim);
  stream.pool().run(p.entries * p.kv_heads, [&](int64_t i, int) {
    const int64_t entry = i / p.kv_heads, head = i % p.kv_heads, page = p.pages[i];
    if (page < 0) return;
    if (p.summary_pages && p.summary_pages[entry] >= 0) {
      Box box;
      box_of_keys(p.pool, page, head, p.block_size, p.head_dim, box);
      shrink(box, p.head_dim, p.beta);
      write_summary(box, p.head_dim, p.summaries.type, p.summaries.rows(p.summary_pages[entry], head));
    }
    if (p.homes && p.homes[i]) {
      const auto write = p.home_type == p.pool.type ? copy_home : quantize_home;
      write(p.pool, page, head, p.block_size, p.head_dim, p.homes[i]);
    }
  });
}

}  // namespace oasis::kernels
