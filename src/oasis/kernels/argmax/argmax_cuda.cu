#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/argmax/argmax.h"

namespace oasis::kernels {
namespace {

// The larger value wins, at equality the lower index; NaN never does.
__device__ void better(float& value, int32_t& index, float other, int32_t other_index) {
  if (other_index >= 0 && (index < 0 || other > value || (other == value && other_index < index))) {
    value = other;
    index = other_index;
  }
}

__global__ void __launch_bounds__(1024) argmax_kernel(const float* x, int64_t cols, int32_t* best) {
  __shared__ float values[32];
  __shared__ int32_t indices[32];
  const float* row = x + int64_t{blockIdx.x} * cols;
  float value = 0;
  int32_t index = -1;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
    const float v = row[i];
    if (v == v) better(value, index, v, static_cast<int32_t>(i));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const float v = __shfl_xor_sync(0xffffffffu, value, offset);
    const int32_t k = __shfl_xor_sync(0xffffffffu, index, offset);
    better(value, index, v, k);
  }
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = value, indices[threadIdx.x / 32] = index;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / 32; ++w) better(value, index, values[w], indices[w]);
  best[blockIdx.x] = index;
}

}  // namespace

void argmax_cuda(Stream& stream, const ArgmaxParams& p) {
  if (p.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  const float* x = staging.in(p.x, static_cast<size_t>(p.rows * p.cols));
  int32_t* best = staging.inout(p.best, static_cast<size_t>(p.rows));
  argmax_kernel<<<static_cast<unsigned>(p.rows), 1024, 0, s.handle()>>>(x, p.cols, best);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
