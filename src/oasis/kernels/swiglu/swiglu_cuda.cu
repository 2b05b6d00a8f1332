#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/swiglu/swiglu.h"

namespace oasis::kernels {
namespace {

__global__ void swiglu_kernel(SwigluParams p) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  const float gate = p.gate[i];
  p.y[i] = gate / (1.0f + expf(-gate)) * p.up[i];
}

}  // namespace

void swiglu_cuda(Stream& stream, const SwigluParams& params) {
  if (params.count == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  SwigluParams p = params;
  const auto n = static_cast<size_t>(p.count);
  p.y = staging.inout(p.y, n);
  p.gate = params.gate == params.y ? p.y : staging.in(p.gate, n);
  p.up = params.up == params.y ? p.y : staging.in(p.up, n);
  swiglu_kernel<<<static_cast<unsigned>((p.count + 255) / 256), 256, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
