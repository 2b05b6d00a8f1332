// One tensor of a weights file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/base/dtype.h"
#include "oasis/base/status.h"

namespace oasis::model {

struct TensorInfo {
  DType type = DType::kF32;
  std::vector<int64_t> shape;       // [slowest, .., contiguous]; a matrix is [out, in]; empty: a scalar
  std::span<const std::byte> data;  // inside the file; not necessarily aligned for its type

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    return n;
  }
};

// "[576, 1536]"
std::string to_string(std::span<const int64_t> shape);

// For errors: a name out of a hostile file, cut short and without control characters.
std::string printable(std::string_view name);

// The values of an F32, F16 or BF16 tensor of any shape.
Result<std::vector<float>> to_floats(const TensorInfo& tensor, std::string_view name);

// The values of an I64 tensor.
Result<std::vector<int64_t>> to_int64s(const TensorInfo& tensor, std::string_view name);

}  // namespace oasis::model
