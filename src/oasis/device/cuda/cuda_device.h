// The CUDA backend's device and streams, as its kernels see them. Above the kernels only device.h is used.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oasis/device/cuda/cuda_check.h"
#include "oasis/device/device.h"

namespace oasis::cuda {

// A CUDA stream with what kernels need of the host around it: a workspace, a cuBLASLt handle, the size of the GPU.
class CudaStream : public Stream {
 public:
  // `sms`: multiprocessors that kernels of this stream size their grids for (0: all).
  CudaStream(int device, bool high_priority, int sms);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Backend backend() const override { return Backend::kCuda; }
  // Runs `work` on the caller's thread after everything enqueued so far: for what has no kernel. Synchronises.
  void enqueue(std::function<void()> work) override;
  void synchronize() override { OASIS_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  void copy(void* to, const void* from, size_t bytes) override;
  void upload(void* to, const void* pinned, size_t bytes) override {
    OASIS_CUDA_CHECK(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, stream_));
  }
  void fill(void* to, uint8_t byte, size_t bytes) override {
    OASIS_CUDA_CHECK(cudaMemsetAsync(to, byte, bytes, stream_));
  }
  ThreadPool& pool() override;

  cudaStream_t handle() const { return stream_; }
  cublasLtHandle_t blas() const { return blas_; }
  int sms() const { return sms_; }
  void set_sms(int sms) { sms_ = sms; }
  bool capturing() const;
  // Scratch for one kernel (or one chain of kernels) of this stream; the next call may return the same memory. Grows
  // outside of captures only: what a captured graph needs has been asked for before, by an eager run of the same
  // shapes.
  std::byte* workspace(size_t bytes);

 private:
  int sms_;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t blas_ = nullptr;
  std::byte* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::vector<std::byte*> outgrown_;  // graphs captured earlier may still use them
};

inline CudaStream& as_cuda(Stream& stream) { return static_cast<CudaStream&>(stream); }

// Whether a kernel may dereference `p`: memory of Device::allocate or Device::allocate_pinned of a CUDA device, or any
// other allocation of the CUDA runtime.
bool device_accessible(const void* p);

// Multiprocessors of the current device.
int device_sms();

}  // namespace oasis::cuda
