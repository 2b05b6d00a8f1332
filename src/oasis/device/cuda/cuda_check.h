// Errors of the CUDA runtime as Status, or as the end of the program where nothing sensible can follow.
#pragma once

#include <cuda_runtime.h>

#include "oasis/base/status.h"

namespace oasis::cuda {

// Clears the runtime's last error, so that it is reported once.
inline Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return Status(error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kInternal,
                fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

}  // namespace oasis::cuda

// A failure here is a fault of the program or of the GPU: no work of this process can go on.
#define OASIS_CUDA_CHECK(call)                                                                     \
  do {                                                                                             \
    const cudaError_t oasis_error = (call);                                                        \
    OASIS_CHECK(oasis_error == cudaSuccess, "{}: {} ({})", #call, cudaGetErrorString(oasis_error), \
                cudaGetErrorName(oasis_error));                                                    \
  } while (false)
