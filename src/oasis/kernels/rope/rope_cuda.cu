#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/rope/rope.h"

namespace oasis::kernels {
namespace {

__global__ void table_kernel(RopeTableParams p) {
  const int64_t half = p.head_dim / 2, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.rows * half) return;
  const int64_t r = i / half, j = i % half;
  double sin, cos;
  sincos(static_cast<double>(max(0, p.positions[r])) * p.frequencies[j], &sin, &cos);
  p.cos_sin[r * 2 * half + j] = static_cast<float>(cos * p.scale);
  p.cos_sin[r * 2 * half + half + j] = static_cast<float>(sin * p.scale);
}

// One block of threads a row; a thread turns one pair at a time. In place each pair is read before it is written, and
// by its own thread alone; interleaved input is never in place.
__global__ void rope_kernel(RopeParams p) {
  const int64_t r = blockIdx.x, half = p.head_dim / 2;
  const float* table = p.cos_sin + r * 2 * half;
  for (int64_t i = threadIdx.x; i < p.heads * half; i += blockDim.x) {
    const int64_t h = i / half, j = i % half;
    const float* x = p.x + r * p.x_stride + h * p.head_dim;
    float* y = p.y + r * p.y_stride + h * p.head_dim;
    const float a = p.interleaved ? x[2 * j] : x[j], b = p.interleaved ? x[2 * j + 1] : x[half + j];
    const float cos = table[j], sin = table[half + j];
    y[j] = a * cos - b * sin;
    y[half + j] = b * cos + a * sin;
  }
}

}  // namespace

void rope_table_cuda(Stream& stream, const RopeTableParams& params) {
  if (params.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  RopeTableParams p = params;
  p.frequencies = staging.in(p.frequencies, static_cast<size_t>(p.head_dim / 2));
  p.positions = staging.in(p.positions, static_cast<size_t>(p.rows));
  p.cos_sin = staging.inout(p.cos_sin, static_cast<size_t>(p.rows * p.head_dim));
  const int64_t angles = p.rows * p.head_dim / 2;
  table_kernel<<<static_cast<unsigned>((angles + 127) / 128), 128, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void rope_cuda(Stream& stream, const RopeParams& params) {
  if (params.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  RopeParams p = params;
  const int64_t width = p.heads * p.head_dim;
  const bool in_place = p.x == p.y;
  p.y = staging.inout(p.y, static_cast<size_t>((p.rows - 1) * p.y_stride + width));
  p.x = in_place ? p.y : staging.in(p.x, static_cast<size_t>((p.rows - 1) * p.x_stride + width));
  p.cos_sin = staging.in(p.cos_sin, static_cast<size_t>(p.rows * p.head_dim));
  rope_kernel<<<static_cast<unsigned>(p.rows), 256, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
