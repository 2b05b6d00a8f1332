#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/random/random.h"

namespace oasis::kernels {
namespace {

__global__ void fill_kernel(uint16_t* out, int64_t count, uint64_t seed, uint64_t first, float half_width) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t z = seed + (first + static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    const float unit = static_cast<float>(static_cast<int32_t>((z ^ (z >> 31)) >> 32)) * 0x1p-31f;
    out[i] = float_to_bf16_bits(half_width * unit);
  }
}

}  // namespace

void fill_random_cuda(Stream& stream, const FillRandomParams& p) {
  if (p.count == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  auto* out = reinterpret_cast<uint16_t*>(staging.inout(p.out, static_cast<size_t>(p.count)));
  fill_kernel<<<static_cast<unsigned>(4 * s.sms()), 512, 0, s.handle()>>>(out, p.count, p.seed, p.first, p.half_width);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
