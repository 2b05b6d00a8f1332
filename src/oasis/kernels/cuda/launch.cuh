// Launches that overlap: a kernel that starts before the one in front of it on the stream has ended.
#pragma once

#include <utility>

#include "oasis/device/cuda/cuda_check.h"

namespace oasis::kernels {

// From sm_90 on; before that a kernel starts when the one in front of it has ended.
inline bool launches_overlap() {
  int device = 0, major = 0;
  OASIS_CUDA_CHECK(cudaGetDevice(&device));
  OASIS_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

// In a kernel: the next one of the stream may start.
__device__ inline void start_next() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
// In a kernel that starts early: until all that stands before it is done.
__device__ inline void await_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The kernel may start as soon as every block of the kernel before it has called start_next() or ended. Each of its
// threads calls await_previous() before it touches what an earlier kernel writes or reads; nothing later may run ahead
// of an earlier kernel by way of a thread that ends without that call.
template <typename... Params, typename... Values>
void launch_early(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes, cudaStream_t stream,
                  Values&&... values) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = launches_overlap() ? 1 : 0;
  OASIS_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Values>(values))...));
}

}  // namespace oasis::kernels
