#include "oasis/device/device.h"

#include <utility>

namespace oasis {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(free_, other.free_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ && free_) free_(data_, bytes_);
}

}  // namespace oasis
