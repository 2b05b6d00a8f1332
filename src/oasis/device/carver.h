// Pieces of one allocation, laid out twice: first without memory, to count it, then in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oasis {

// Hands out pieces at borders of 256 bytes from `base` on, or only counts them where it is null.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  void take(T*& piece, int64_t count) {
    if (base_) piece = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlign = 256;
  std::byte* base_;
  int64_t bytes_ = 0;
};

}  // namespace oasis
