// Activations on their way into a product: rounded to bf16.
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/cuda/launch.cuh"
#include "oasis/kernels/matmul/matmul_cuda.h"

namespace oasis::kernels {
namespace {

// Four elements a thread where `wide`, which wants x and its stride aligned to 16 bytes.
template <bool wide>
__global__ void to_bf16_kernel(const float* x, int64_t x_stride, int64_t rows, int64_t cols, uint16_t* out) {
  const int64_t quads = cols / 4, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  start_next();
  await_previous();
  if (i >= rows * quads) return;
  const int64_t r = i / quads, c = i % quads * 4;
  const float* from = x + r * x_stride + c;
  const float4 v = wide ? *reinterpret_cast<const float4*>(from) : float4{from[0], from[1], from[2], from[3]};
  ushort4 y = {float_to_bf16_bits(v.x), float_to_bf16_bits(v.y), float_to_bf16_bits(v.z), float_to_bf16_bits(v.w)};
  *reinterpret_cast<ushort4*>(out + r * cols + c) = y;
}

}  // namespace

void round_rows(cuda::CudaStream& s, const float* x, int64_t x_stride, int64_t rows, int64_t cols, uint16_t* out) {
  const bool wide = x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  auto* kernel = wide ? to_bf16_kernel<true> : to_bf16_kernel<false>;
  launch_early(kernel, dim3(static_cast<unsigned>((rows * cols / 4 + 255) / 256)), 256, 0, s.handle(), x, x_stride,
               rows, cols, out);
}

}  // namespace oasis::kernels
