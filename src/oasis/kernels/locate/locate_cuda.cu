#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/locate/locate.h"

namespace oasis::kernels {
namespace {

// One thread a (row, KV head). A block without a slot gives -1; the core's integrity check finds it.
__global__ void locate_kernel(LocateParams p) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= p.rows * p.kv_heads) return;
  const int64_t r = i / p.kv_heads, h = i % p.kv_heads;
  const int32_t block = p.block[r];
  int32_t page = -1;
  if (block >= 0) {
    const BlockTable& table = p.tables[p.table[r]];
    const int32_t slot = table.maps ? table.maps[h].slot_of_block[block] : block;
    if (slot >= 0) page = table.page_of_slot[slot];
  }
  p.pages[i] = page;
}

}  // namespace

void locate_cuda(Stream& stream, const LocateParams& params) {
  if (params.rows == 0) return;
  OASIS_CHECK(cuda::device_accessible(params.tables), "the GPU's block tables lie on the GPU");
  auto& s = cuda::as_cuda(stream);
  locate_kernel<<<static_cast<unsigned>((params.rows * params.kv_heads + 127) / 128), 128, 0, s.handle()>>>(params);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
