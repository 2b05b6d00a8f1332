#include "oasis/model/tensor_info.h"

#include <cstring>

#include "oasis/base/numeric.h"

namespace oasis::model {

namespace {

// The file may hold the values at any address, hence the copies.
template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
std::vector<float> convert(std::span<const std::byte> data) {
  std::vector<float> values(data.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(load<T>(data.data() + i * sizeof(T)));
  return values;
}

}  // namespace

std::string to_string(std::span<const int64_t> shape) {
  std::string out = "[";
  for (int64_t dim : shape) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(dim);
  }
  return out + "]";
}

std::string printable(std::string_view name) {
  std::string out(name.substr(0, 80));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return out;
}

Result<std::vector<float>> to_floats(const TensorInfo& tensor, std::string_view name) {
  switch (tensor.type) {
    case DType::kF32: {
      std::vector<float> values(tensor.data.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(float));
      return values;
    }
    case DType::kF16:
      return convert<fp16>(tensor.data);
    case DType::kBF16:
      return convert<bf16>(tensor.data);
    default:
      return unsupported("tensor '{}' has type {}; it must be F32, F16 or BF16", name, info(tensor.type).name);
  }
}

Result<std::vector<int64_t>> to_int64s(const TensorInfo& tensor, std::string_view name) {
  if (tensor.type != DType::kI64)
    return unsupported("tensor '{}' has type {}; it must be I64", name, info(tensor.type).name);
  std::vector<int64_t> values(tensor.data.size() / sizeof(int64_t));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(int64_t));
  return values;
}

}  // namespace oasis::model
