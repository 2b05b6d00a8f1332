// Launches that overlap: a kernel that starts before the one in front of it on the stream has ended.
#pragma once

#include <utility>

#include "oasis/device/cuda/cuda_check.h"

namespace oasis::kernels {

// The kernel may start as soon as every block of the kernel before it has called
// cudaTriggerProgrammaticLaunchCompletion or ended. Each of its threads calls cudaGridDependencySynchronize before it
// touches what an earlier kernel writes or reads; nothing later may run ahead of an earlier kernel by way of a thread
// that ends without that call.
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
  config.numAttrs = 1;
  OASIS_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Values>(values))...));
}

}  // namespace oasis::kernels
