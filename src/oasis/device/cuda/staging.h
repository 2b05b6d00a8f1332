// Lets an op take its small arrays from wherever the caller has them. Arrays that the GPU can read pass through
// untouched; host arrays travel to the device before the kernel and, if it writes them, back after it. An op whose
// arrays all lie on the device costs nothing here and may be captured in a graph; one with host outputs is synchronous.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "oasis/device/cuda/cuda_device.h"

namespace oasis::cuda {

class Staging {
 public:
  explicit Staging(CudaStream& stream) : stream_(stream) {}
  // Brings the outputs home and gives the device memory back, in stream order.
  ~Staging() {
    for (const Back& b : back_)
      OASIS_CUDA_CHECK(cudaMemcpyAsync(b.to, b.from, b.bytes, cudaMemcpyDeviceToHost, stream_.handle()));
    for (void* p : taken_) OASIS_CUDA_CHECK(cudaFreeAsync(p, stream_.handle()));
    if (!back_.empty()) stream_.synchronize();
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // `p` [count], read by the kernel. Null stays null.
  template <typename T>
  const T* in(const T* p, size_t count) {
    if (passes(p, count)) return p;
    T* d = static_cast<T*>(take(count * sizeof(T)));
    OASIS_CUDA_CHECK(cudaMemcpyAsync(d, p, count * sizeof(T), cudaMemcpyHostToDevice, stream_.handle()));
    return d;
  }
  // Written by the kernel; elements it leaves alone keep their values.
  template <typename T>
  T* inout(T* p, size_t count) {
    if (passes(p, count)) return p;
    T* d = const_cast<T*>(in(static_cast<const T*>(p), count));
    back_.push_back({p, d, count * sizeof(T)});
    return d;
  }

  // Whether `p` needs no staging.
  static bool passes(const void* p, size_t count) { return !p || count == 0 || device_accessible(p); }

 private:
  struct Back {
    void* to;
    const void* from;
    size_t bytes;
  };
  void* take(size_t bytes) {
    OASIS_CHECK(!stream_.capturing(), "an op with arrays in host memory cannot be captured");
    void* p = nullptr;
    OASIS_CUDA_CHECK(cudaMallocAsync(&p, bytes, stream_.handle()));
    taken_.push_back(p);
    return p;
  }

  CudaStream& stream_;
  std::vector<Back> back_;
  std::vector<void*> taken_;
};

}  // namespace oasis::cuda
