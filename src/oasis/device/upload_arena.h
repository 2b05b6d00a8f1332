// Small host arrays on their way to kernels: one piece of pinned memory, one of device memory, no wait in between. On
// the CPU nothing moves.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "oasis/device/device.h"

namespace oasis {

class UploadArena {
 public:
  static Result<UploadArena> create(Device& device, size_t bytes) {
    UploadArena arena;
    if (device.backend() == Backend::kCpu) return arena;
    OASIS_ASSIGN_OR_RETURN(arena.pinned_, device.allocate_pinned(bytes));
    OASIS_ASSIGN_OR_RETURN(arena.there_, device.allocate(bytes));
    return arena;
  }

  // Starts over; waits for kernels that still use what was put before.
  void reset(Stream& stream) {
    if (used_ > 0) stream.synchronize();
    used_ = 0;
  }
  // Where kernels enqueued on `stream` from now on find the array, until the next reset. `values` may change at once on
  // a GPU; on the CPU they are used in place.
  template <typename T>
  const T* put(Stream& stream, std::span<const T> values) {
    if (there_.bytes() == 0) return values.data();
    const size_t at = (used_ + 255) / 256 * 256;
    OASIS_CHECK(at + values.size_bytes() <= there_.bytes(), "{} bytes more than an arena of {} holds",
                at + values.size_bytes(), there_.bytes());
    used_ = at + values.size_bytes();
    std::memcpy(pinned_.data() + at, values.data(), values.size_bytes());
    stream.upload(there_.data() + at, pinned_.data() + at, values.size_bytes());
    return reinterpret_cast<const T*>(there_.data() + at);
  }
  template <typename T>
  const T* put(Stream& stream, const std::vector<T>& values) {
    return put(stream, std::span<const T>(values));
  }

 private:
  Buffer pinned_, there_;
  size_t used_ = 0;
};

}  // namespace oasis
