#include <algorithm>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/gather/gather.h"

namespace oasis::kernels {
namespace {

// A block of threads takes runs one after another, 16 bytes a thread and eight loads in flight.
__global__ void __launch_bounds__(512) gather_kernel(GatherParams p) {
  constexpr int kInFlight = 4;
  const int64_t vectors = p.bytes / 16;
  for (int64_t c = blockIdx.x; c < p.count; c += gridDim.x) {
    const auto* from = reinterpret_cast<const uint4*>(p.copies[c].from);
    auto* to = reinterpret_cast<uint4*>(p.copies[c].to);
    for (int64_t i = threadIdx.x; i < vectors; i += int64_t{kInFlight} * blockDim.x) {
      uint4 x[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (i + j * blockDim.x < vectors) x[j] = __ldcs(from + i + j * blockDim.x);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (i + j * blockDim.x < vectors) to[i + j * blockDim.x] = x[j];
      }
    }
  }
}

}  // namespace

void gather_cuda(Stream& stream, const GatherParams& params) {
  if (params.count == 0) return;
  OASIS_CHECK(params.bytes % 16 == 0, "runs of {} bytes: the GPU copies multiples of 16", params.bytes);
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  GatherParams p = params;
  p.copies = staging.in(p.copies, static_cast<size_t>(p.count));
  const int64_t blocks = std::min<int64_t>(p.count, 2 * s.sms());
  gather_kernel<<<static_cast<unsigned>(blocks), 512, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
