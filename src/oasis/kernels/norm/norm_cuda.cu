#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/norm/norm.h"

namespace oasis::kernels {
namespace {

// One block of threads a row.
__global__ void norm_wide(RmsNormParams p) {
  __shared__ float scratch[32];
  const float* x = p.x + blockIdx.x * p.x_stride;
  float* y = p.y + blockIdx.x * p.y_stride;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.cols; i += blockDim.x) squares += x[i] * x[i];
  const float scale = rsqrtf(block_sum(squares, scratch) / static_cast<float>(p.cols) + p.eps);
  for (int64_t i = threadIdx.x; i < p.cols; i += blockDim.x) y[i] = x[i] * scale * p.weight[i];
}

// One warp a row: a head of the q/k norm.
__global__ void norm_narrow(RmsNormParams p) {
  const int64_t r = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (r >= p.rows) return;
  const float* x = p.x + r * p.x_stride;
  float* y = p.y + r * p.y_stride;
  float squares = 0;
  for (int64_t i = lane; i < p.cols; i += 32) squares += x[i] * x[i];
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(p.cols) + p.eps);
  for (int64_t i = lane; i < p.cols; i += 32) y[i] = x[i] * scale * p.weight[i];
}

}  // namespace

void rms_norm_cuda(Stream& stream, const RmsNormParams& params) {
  if (params.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  RmsNormParams p = params;
  p.weight = staging.in(p.weight, static_cast<size_t>(p.cols));
  const bool in_place = p.x == p.y;
  p.y = staging.inout(p.y, static_cast<size_t>((p.rows - 1) * p.y_stride + p.cols));
  p.x = in_place ? p.y : staging.in(p.x, static_cast<size_t>((p.rows - 1) * p.x_stride + p.cols));
  if (p.cols <= 256) {
    constexpr int kWarps = 8;
    norm_narrow<<<static_cast<unsigned>((p.rows + kWarps - 1) / kWarps), 32 * kWarps, 0, s.handle()>>>(p);
  } else {
    norm_wide<<<static_cast<unsigned>(p.rows), p.cols >= 2048 ? 512 : 256, 0, s.handle()>>>(p);
  }
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
