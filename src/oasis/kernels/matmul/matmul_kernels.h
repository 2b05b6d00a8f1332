// Inside matmul: what the driver (matmul_cpu.cc) and the instruction sets share.
#pragma once

#include <cstdint>

#include "oasis/base/dtype.h"
#include "oasis/base/numeric.h"

namespace oasis::kernels::matmul {

constexpr int64_t kBlock = 32;         // activations that share one scale
constexpr int64_t kBlockPadding = 16;  // a row of blocks is padded to a multiple of this with zeros
constexpr int64_t kDirectRows = 64;    // up to here weights are used as they are
constexpr int64_t kTileDepth = 2048;   // columns of a tile that are unpacked at a time: a tile stays in L2
constexpr int64_t kTileScratchBytes = 384 << 10;

// x as an instruction set's kernels read it. Pointers that the parts at hand have no use for are null.
struct PackedX {
  int64_t rows = 0;
  int64_t cols = 0;
  const float* x = nullptr;  // [rows, x_stride], the caller's
  int64_t x_stride = 0;
  int64_t block_stride = 0;  // blocks a row, padded
  int64_t q_bytes = 1;       // a value of q
  int8_t* q = nullptr;       // [rows, block_stride, 32 q_bytes], its order in 128 values is the instruction set's own
  float* scale = nullptr;    // [rows, block_stride], x = scale * q
  float* sum = nullptr;      // [rows, 3, block_stride], scale * the sum of the first 16 q, the last 16, and all
  bf16* bits = nullptr;      // [rows, bits_stride], zero past cols
  int64_t bits_stride = 0;
};

// y[row, i] = x[row] . w[first + i] for i in [0, count) and every row of x, from the weights as they lie.
struct DirectJob {
  const PackedX* x;
  WeightView w;
  int64_t first, count;
  float* y;  // [rows, y_stride]
  int64_t y_stride;
  bool accumulate;
  std::byte* scratch;  // kTileScratchBytes, aligned to 64
  int64_t next;        // a guess at the `first` of this thread's next job, for prefetching
};

// The same for rows [first_row, first_row + rows) of x, through unpacked weights.
struct TileJob {
  const PackedX* x;
  int64_t first_row, rows;
  WeightView w;
  int64_t first, count;  // count <= Level::tile_features
  float* y;              // [rows of x, y_stride]
  int64_t y_stride;
  bool accumulate;
  std::byte* scratch;  // kTileScratchBytes, aligned to 64
};

// One instruction set.
struct Level {
  // Fills row `row` of q, scale and sum. Null: the direct kernels read fp32.
  void (*quantize_row)(const PackedX& x, int64_t row);
  // Fills row `row` of bits. Null: the kernels of bf16 weights and of tiles read fp32.
  void (*round_row)(const PackedX& x, int64_t row);
  void (*direct)(const DirectJob& job);
  void (*tile)(const TileJob& job);
  int64_t tile_features;
  int64_t wide_rows = 0;  // up to so many rows q has 16 bits
};

const Level& portable_level();
const Level& avx2_level();  // x86-64 only, as the next
const Level& avx512_level();

constexpr int64_t kAvx512TileFeatures = 64;
void round_row_avx512(const PackedX& x, int64_t row);
void direct_avx512(const DirectJob& job);
void tile_avx512(const TileJob& job);

}  // namespace oasis::kernels::matmul
