#include <algorithm>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/argmax/argmax.h"
#include "oasis/kernels/cuda/launch.cuh"

namespace oasis::kernels {
namespace {

// The larger value wins, at equality the lower index; NaN never does.
__device__ void better(float& value, int32_t& index, float other, int32_t other_index) {
  if (other_index >= 0 && (index < 0 || other > value || (other == value && other_index < index))) {
    value = other;
    index = other_index;
  }
}

struct Best {
  float value;
  int32_t index;  // -1: no number was seen
};

// Of all threads of the block; valid in thread 0.
__device__ Best block_best(Best own) {
  __shared__ Best of_warp[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    const float v = __shfl_xor_sync(0xffffffffu, own.value, offset);
    const int32_t k = __shfl_xor_sync(0xffffffffu, own.index, offset);
    better(own.value, own.index, v, k);
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned w = 1; w < blockDim.x / 32; ++w) better(own.value, own.index, of_warp[w].value, of_warp[w].index);
  }
  return own;
}

// Grid [pieces, rows]: the best of a piece of a row.
__global__ void __launch_bounds__(256) best_of_pieces(const float* x, int64_t cols, Best* best) {
  const int64_t piece = (cols + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * piece;
  const int64_t end = begin + piece < cols ? begin + piece : cols;
  const float* row = x + int64_t{blockIdx.y} * cols;
  start_next();
  await_previous();
  Best own{0, -1};
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const float v = row[i];
    if (v == v) better(own.value, own.index, v, static_cast<int32_t>(i));
  }
  own = block_best(own);
  if (threadIdx.x == 0) best[int64_t{blockIdx.y} * gridDim.x + blockIdx.x] = own;
}

// Grid [rows]: the best of a row's pieces.
__global__ void __launch_bounds__(64) best_of_rows(const Best* pieces, int count, int32_t* best) {
  start_next();
  await_previous();
  Best own{0, -1};
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const Best other = pieces[int64_t{blockIdx.x} * count + i];
    better(own.value, own.index, other.value, other.index);
  }
  own = block_best(own);
  if (threadIdx.x == 0) best[blockIdx.x] = own.index;
}

}  // namespace

void argmax_cuda(Stream& stream, const ArgmaxParams& p) {
  if (p.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  const float* x = staging.in(p.x, static_cast<size_t>(p.rows * p.cols));
  int32_t* best = staging.inout(p.best, static_cast<size_t>(p.rows));
  // Few rows are cut into pieces, so that many multiprocessors read them.
  constexpr int64_t kRowsALaunch = 65535, kPieceColumns = 1024;
  for (int64_t first = 0; first < p.rows; first += kRowsALaunch) {
    const int64_t rows = std::min(kRowsALaunch, p.rows - first);
    const int64_t pieces = std::clamp<int64_t>(std::min(4 * s.sms() / rows, p.cols / kPieceColumns), 1, 128);
    auto* of_pieces = reinterpret_cast<Best*>(s.workspace(static_cast<size_t>(rows * pieces) * sizeof(Best)));
    launch_early(best_of_pieces, dim3(static_cast<unsigned>(pieces), static_cast<unsigned>(rows)), 256, 0, s.handle(),
                 x + first * p.cols, p.cols, of_pieces);
    launch_early(best_of_rows, dim3(static_cast<unsigned>(rows)), 64, 0, s.handle(), of_pieces,
                 static_cast<int>(pieces), best + first);
  }
}

}  // namespace oasis::kernels
