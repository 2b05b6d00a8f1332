// The driver: packs x once, cuts the parts into items, and shares the items over the stream's threads.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "oasis/base/status.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/matmul/matmul.h"
#include "oasis/kernels/matmul/matmul_kernels.h"

namespace oasis::kernels {
namespace {

using matmul::kBlock;
using matmul::kBlockPadding;
using matmul::Level;
using matmul::PackedX;

// Rows of a prefill that are packed at a time. Bounds the memory for x; unpacking the weights once more for every chunk
// costs less than 1%.
constexpr int64_t kRowsAtATime = 1024;

const Level& level_now() {
#if defined(__x86_64__)
  switch (cpu_level()) {
    case CpuLevel::kAvx512:
      return matmul::avx512_level();
    case CpuLevel::kAvx2:
      return matmul::avx2_level();
    case CpuLevel::kPortable:
      break;
  }
#endif
  return matmul::portable_level();
}

// A thread's memory for packed values. Grows to the largest call and stays.
class Scratch {
 public:
  std::byte* at_least(size_t bytes) {
    if (bytes > bytes_) {
      bytes = (bytes + 4095) / 4096 * 4096;
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
      OASIS_CHECK(data_, "no memory for {} bytes of matmul scratch", bytes);
      bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t bytes_ = 0;
};

std::byte* tile_scratch() {
  thread_local Scratch scratch;
  return scratch.at_least(matmul::kTileScratchBytes);
}

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

bool is_quantized(DType type) { return info(type).block_elements > 1; }

// Lays x out in this thread's scratch and fills it.
PackedX pack(ThreadPool& pool, const Level& level, const float* x, int64_t x_stride, int64_t rows, int64_t cols,
             bool quantize, bool round) {
  PackedX packed{.rows = rows, .cols = cols, .x = x, .x_stride = x_stride};
  packed.block_stride = round_up((cols + kBlock - 1) / kBlock, kBlockPadding);
  packed.bits_stride = round_up(cols, kBlock) + kBlock;  // no multiple of 4,096 bytes: rows would share cache sets
  const int64_t blocks = rows * packed.block_stride;
  packed.q_bytes = rows <= level.wide_rows ? 2 : 1;
  const int64_t bytes =
      (quantize ? blocks * (kBlock * packed.q_bytes + 4 * 4) : 0) + (round ? rows * packed.bits_stride * 2 : 0);
  if (bytes == 0) return packed;
  thread_local Scratch scratch;
  std::byte* p = scratch.at_least(static_cast<size_t>(bytes));
  if (quantize) {
    packed.q = reinterpret_cast<int8_t*>(p);
    packed.scale = reinterpret_cast<float*>(p + blocks * kBlock * packed.q_bytes);
    packed.sum = packed.scale + blocks;
    p += blocks * (kBlock * packed.q_bytes + 4 * 4);
  }
  if (round) packed.bits = reinterpret_cast<bf16*>(p);
  const auto pack_row = [&](int64_t row, int) {
    if (quantize) level.quantize_row(packed, row);
    if (round) level.round_row(packed, row);
  };
  if (rows * cols < 8192) {  // sooner done than shared
    for (int64_t row = 0; row < rows; ++row) pack_row(row, 0);
  } else {
    pool.run(rows, pack_row);
  }
  return packed;
}

void direct(ThreadPool& pool, const Level& level, const MatmulParams& params) {
  bool quantize = false, round = false;
  int64_t total_bytes = 0;
  for (const MatmulPart& part : params.parts) {
    quantize |= level.quantize_row && is_quantized(part.w.type);
    round |= level.round_row && part.w.type == DType::kBF16;
    total_bytes += part.w.rows * part.w.row_bytes();
  }
  const PackedX x = pack(pool, level, params.x, params.x_stride, params.rows, params.cols, quantize, round);
  // Two long runs a thread: memory streams best in long runs (16 short ones each cost a fifth of a decode step), and
  // the second lets the threads end together. A multiple of what the kernels take at a time.
  const int64_t item_bytes = std::clamp<int64_t>(total_bytes / (pool.size() * 2), 16384, 1 << 20);
  const auto rows_of_item = [&](const MatmulPart& part) {
    return round_up(std::max<int64_t>(item_bytes / part.w.row_bytes(), 1), params.rows <= 4 ? 4 : 32);
  };
  int64_t items = 0;
  for (const MatmulPart& part : params.parts) items += (part.w.rows + rows_of_item(part) - 1) / rows_of_item(part);
  pool.run(items, [&](int64_t item, int) {
    for (const MatmulPart& part : params.parts) {
      const int64_t rows = rows_of_item(part), items_here = (part.w.rows + rows - 1) / rows;
      if (item >= items_here) {
        item -= items_here;
        continue;
      }
      const int64_t first = item * rows;
      level.direct({.x = &x,
                    .w = part.w,
                    .first = first,
                    .count = std::min(rows, part.w.rows - first),
                    .y = part.y + first,
                    .y_stride = part.y_stride,
                    .accumulate = params.accumulate,
                    .scratch = tile_scratch(),
                    .next = first + rows * pool.size()});
      return;
    }
  });
}

void tiles(ThreadPool& pool, const Level& level, const MatmulParams& params, int64_t first_row, int64_t rows) {
  const PackedX x = pack(pool, level, params.x + first_row * params.x_stride, params.x_stride, rows, params.cols, false,
                         level.round_row != nullptr);
  int64_t tiles = 0;
  for (const MatmulPart& part : params.parts) tiles += (part.w.rows + level.tile_features - 1) / level.tile_features;
  // Few tiles for many threads: the rows are shared as well.
  const int64_t wanted = std::max<int64_t>(1, (pool.size() * 4 + tiles - 1) / tiles);
  const int64_t chunk = std::max<int64_t>(round_up((rows + wanted - 1) / wanted, 14), 112);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  pool.run(tiles * chunks, [&](int64_t item, int) {
    const int64_t row = item % chunks * chunk;
    int64_t tile = item / chunks;
    for (const MatmulPart& part : params.parts) {
      const int64_t tiles_here = (part.w.rows + level.tile_features - 1) / level.tile_features;
      if (tile >= tiles_here) {
        tile -= tiles_here;
        continue;
      }
      const int64_t first = tile * level.tile_features;
      level.tile({.x = &x,
                  .first_row = row,
                  .rows = std::min(chunk, rows - row),
                  .w = part.w,
                  .first = first,
                  .count = std::min(level.tile_features, part.w.rows - first),
                  .y = part.y + first_row * part.y_stride + first,
                  .y_stride = part.y_stride,
                  .accumulate = params.accumulate,
                  .scratch = tile_scratch()});
      return;
    }
  });
}

}  // namespace

void matmul_cpu(Stream& stream, const MatmulParams& params) {
  OASIS_CHECK(params.cols > 0 && params.rows >= 0, "a product of {} rows and {} columns", params.rows, params.cols);
  if (params.rows == 0) return;
  for (const MatmulPart& part : params.parts) {
    OASIS_CHECK(part.w.cols == params.cols, "weights of {} columns for {} inputs", part.w.cols, params.cols);
    OASIS_CHECK(part.w.type != DType::kI64 && part.w.type != DType::kBool, "weights of type {}",
                info(part.w.type).name);
    OASIS_CHECK(params.cols % info(part.w.type).block_elements == 0, "{} columns are no whole number of {} blocks",
                params.cols, info(part.w.type).name);
  }
  const Level& level = level_now();
  if (params.rows <= matmul::kDirectRows) return direct(stream.pool(), level, params);
  for (int64_t row = 0; row < params.rows; row += kRowsAtATime)
    tiles(stream.pool(), level, params, row, std::min(kRowsAtATime, params.rows - row));
}

}  // namespace oasis::kernels
