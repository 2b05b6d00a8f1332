// Internal: the part of prefill attention that each instruction set has its own version of.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oasis::kernels {

// Some consecutive rows and all query heads of one KV head. Keys are taken in tiles that start at multiples of
// kPrefillKeyTile, whatever the rows, so that a row's result does not depend on how the prompt was cut into chunks.
struct PrefillTask {
  const float* q = nullptr;  // [rows, q_stride], the KV head's q_per_kv heads
  int64_t q_stride = 0;
  const uint16_t* k = nullptr;  // [token, head_dim], bf16
  const uint16_t* v = nullptr;
  int64_t first_position = 0;  // of the task's first row
  int64_t rows = 0;
  int64_t q_per_kv = 0;
  int64_t head_dim = 0;
  float* out = nullptr;  // [rows, out_stride]
  int64_t out_stride = 0;
  std::byte* scratch = nullptr;  // scratch_bytes, aligned to 64
};

struct PrefillLevel {
  int64_t (*scratch_bytes)(int64_t queries, int64_t head_dim);
  void (*attend)(const PrefillTask&);
};

constexpr int64_t kPrefillKeyTile = 128;

extern const PrefillLevel kPrefillAvx2;
extern const PrefillLevel kPrefillAvx512;

}  // namespace oasis::kernels
