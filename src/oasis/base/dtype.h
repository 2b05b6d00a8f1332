// Element types of tensors as they lie in files and memory. Quantised types come in blocks along the contiguous (last)
// dimension; their layouts are those of ggml (docs: the table in src/oasis/model/README.md).
#pragma once

#include <cstdint>
#include <string_view>

namespace oasis {

enum class DType : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kI64, kBool };

struct DTypeInfo {
  std::string_view name;
  int block_elements;  // elements a block; a row length is a multiple of it
  int block_bytes;
};

constexpr DTypeInfo info(DType t) {
  switch (t) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
    case DType::kI64:
      return {"I64", 1, 8};
    case DType::kBool:
      return {"BOOL", 1, 1};
  }
  return {"?", 1, 1};
}

// Bytes of `elements` contiguous elements; `elements` must be a multiple of the block.
constexpr int64_t bytes_of(DType t, int64_t elements) {
  return elements / info(t).block_elements * info(t).block_bytes;
}

// A matrix of weights as it lies in its file: [rows = output features][cols = input features], rows contiguous.
// Borrowed.
struct WeightView {
  const void* data = nullptr;
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;

  int64_t row_bytes() const { return bytes_of(type, cols); }
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace oasis
