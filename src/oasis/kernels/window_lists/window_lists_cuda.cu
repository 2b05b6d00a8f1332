#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/window_lists/window_lists.h"

namespace oasis::kernels {
namespace {

// One block of threads a (row, KV head).
__global__ void lists_kernel(WindowListsParams p) {
  const int64_t r = blockIdx.x, list = r * p.kv_heads + blockIdx.y;
  const int32_t last = p.positions[r] / p.block_size, first = max(p.begin_block[r], last - p.window_blocks + 1);
  for (int32_t b = first + threadIdx.x; b <= last; b += blockDim.x) {
    p.entries[list * p.window_blocks + b - first] = {b, p.first_page[r] + b % p.ring_pages};
  }
  if (threadIdx.x == 0) p.entry_count[list] = last - first + 1;
}

}  // namespace

void window_lists_cuda(Stream& stream, const WindowListsParams& params) {
  if (params.rows == 0) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  WindowListsParams p = params;
  const auto rows = static_cast<size_t>(p.rows), lists = rows * static_cast<size_t>(p.kv_heads);
  p.positions = staging.in(p.positions, rows);
  p.begin_block = staging.in(p.begin_block, rows);
  p.first_page = staging.in(p.first_page, rows);
  p.entries = staging.inout(p.entries, lists * static_cast<size_t>(p.window_blocks));
  p.entry_count = staging.inout(p.entry_count, lists);
  lists_kernel<<<dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.kv_heads)), 128, 0, s.handle()>>>(p);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
