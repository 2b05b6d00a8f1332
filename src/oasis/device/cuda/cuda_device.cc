#include "oasis/device/cuda/cuda_device.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "oasis/base/units.h"

namespace oasis::cuda {
namespace {

// Every allocation of ours, so that telling a device pointer from a host one costs no call into the driver.
class Registry {
 public:
  void add(const void* p, size_t bytes) {
    std::lock_guard lock(mutex_);
    ranges_[reinterpret_cast<uintptr_t>(p)] = bytes;
  }
  void remove(const void* p) {
    std::lock_guard lock(mutex_);
    ranges_.erase(reinterpret_cast<uintptr_t>(p));
  }
  bool contains(const void* p) {
    const auto at = reinterpret_cast<uintptr_t>(p);
    std::lock_guard lock(mutex_);
    auto it = ranges_.upper_bound(at);
    if (it == ranges_.begin()) return false;
    --it;
    return at - it->first < it->second;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
};

Registry& registry() {
  static Registry* r = new Registry;  // outlives every buffer
  return *r;
}

}  // namespace

bool device_accessible(const void* p) {
  if (registry().contains(p)) return true;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type != cudaMemoryTypeUnregistered;
}

int device_sms() {
  int device = 0, sms = 0;
  OASIS_CUDA_CHECK(cudaGetDevice(&device));
  OASIS_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return sms;
}

CudaStream::CudaStream(int device, bool high_priority, int sms) : sms_(sms) {
  OASIS_CUDA_CHECK(cudaSetDevice(device));
  if (sms_ == 0) sms_ = device_sms();
  int least = 0, greatest = 0;
  OASIS_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OASIS_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high_priority ? greatest : least));
  OASIS_CHECK(cublasLtCreate(&blas_) == CUBLAS_STATUS_SUCCESS, "cuBLASLt cannot be started: out of GPU memory?");
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  for (std::byte* p : outgrown_) cudaFree(p);
  cudaFree(workspace_);
  cublasLtDestroy(blas_);
  cudaStreamDestroy(stream_);
}

void CudaStream::enqueue(std::function<void()> work) {
  synchronize();
  work();
}

void CudaStream::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  OASIS_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  // Pinned memory is copied behind our back, so both promises need the wait; device to device needs none.
  cudaPointerAttributes a{}, b{};
  const bool on_device = cudaPointerGetAttributes(&a, to) == cudaSuccess && a.type == cudaMemoryTypeDevice &&
                         cudaPointerGetAttributes(&b, from) == cudaSuccess && b.type == cudaMemoryTypeDevice;
  cudaGetLastError();
  if (!on_device) synchronize();
}

ThreadPool& CudaStream::pool() { OASIS_CHECK(false, "a CUDA stream has no threads"); }

bool CudaStream::capturing() const {
  cudaStreamCaptureStatus status{};
  OASIS_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
  return status != cudaStreamCaptureStatusNone;
}

std::byte* CudaStream::workspace(size_t bytes) {
  if (bytes <= workspace_bytes_) return workspace_;
  OASIS_CHECK(!capturing(), "a workspace of {} is asked for in a capture, {} were prepared", format_bytes(bytes),
              format_bytes(workspace_bytes_));
  if (workspace_) outgrown_.push_back(workspace_);
  const size_t grown = std::max(bytes, 2 * workspace_bytes_);
  OASIS_CUDA_CHECK(cudaMalloc(&workspace_, grown));
  workspace_bytes_ = grown;
  return workspace_;
}

namespace {

class CudaDevice : public Device {
 public:
  CudaDevice(int index, std::string name) : index_(index), name_(std::move(name)), foreground_(index, false, 0) {}
  Backend backend() const override { return Backend::kCuda; }
  std::string name() const override { return name_; }
  Result<Buffer> allocate(size_t bytes) override {
    if (bytes == 0) return Buffer();
    void* p = nullptr;
    if (const cudaError_t error = cudaMalloc(&p, bytes); error != cudaSuccess) {
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      cudaGetLastError();
      return resource_exhausted("cannot allocate {} on {}, of whose {} {} are free ({}); ask for less memory",
                                format_bytes(bytes), name_, format_bytes(total), format_bytes(free),
                                cudaGetErrorString(error));
    }
    OASIS_RETURN_IF_ERROR(to_status(cudaMemsetAsync(p, 0, bytes, foreground_.handle()), "clearing GPU memory"));
    foreground_.synchronize();
    registry().add(p, bytes);
    return Buffer(static_cast<std::byte*>(p), bytes, [](std::byte* q, size_t) {
      registry().remove(q);
      cudaFree(q);
    });
  }
  Result<Buffer> allocate_pinned(size_t bytes) override {
    if (bytes == 0) return Buffer();
    void* p = nullptr;
    if (const cudaError_t error = cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
        error != cudaSuccess) {
      cudaGetLastError();
      return resource_exhausted("cannot pin {} of host memory ({}); ask for a smaller --capacity-memory",
                                format_bytes(bytes), cudaGetErrorString(error));
    }
    registry().add(p, bytes);
    return Buffer(static_cast<std::byte*>(p), bytes, [](std::byte* q, size_t) {
      registry().remove(q);
      cudaFreeHost(q);
    });
  }
  int64_t memory_total() const override { return memory().second; }
  int64_t memory_in_use() const override {
    const auto [free, total] = memory();
    return total - free;
  }
  Stream& foreground() override { return foreground_; }
  std::unique_ptr<Stream> make_background_stream() override { return std::make_unique<CudaStream>(index_, true, 0); }

 private:
  static std::pair<int64_t, int64_t> memory() {  // free, total
    size_t free = 0, total = 0;
    OASIS_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }

  int index_;
  std::string name_;
  CudaStream foreground_;
};

}  // namespace
}  // namespace oasis::cuda

namespace oasis {

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return unsupported("no usable GPU: {} ({}); check the driver with nvidia-smi, or use --device cpu",
                       cudaGetErrorString(error), cudaGetErrorName(error));
  }
  if (index < 0 || index >= count) return invalid_argument("GPU {}: this machine has {}", index, count);
  cudaDeviceProp properties{};
  OASIS_RETURN_IF_ERROR(cuda::to_status(cudaGetDeviceProperties(&properties, index), "reading the GPU's properties"));
  if (properties.major < 8) {
    return unsupported("GPU {} ({}) has compute capability {}.{}: 8.0 or newer is needed", index, properties.name,
                       properties.major, properties.minor);
  }
  OASIS_RETURN_IF_ERROR(cuda::to_status(cudaSetDevice(index), "choosing the GPU"));
  return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(index, properties.name));
}

}  // namespace oasis
