#include "oasis/model/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace oasis::model {

static_assert(std::endian::native == std::endian::little);

namespace {

// GGUF's numbers for the types of metadata.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32Value,
  kBoolValue,
  kString,
  kArray,
  kU64,
  kI64Value,
  kF64,
  kValueTypes
};

constexpr std::string_view kTypeNames[kValueTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                      "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint64_t kTypeBytes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

constexpr uint64_t kMaxKeyBytes = 65535;  // GGUF's own limit
constexpr uint64_t kMaxNameBytes = 4096;  // far above ggml's 64
constexpr uint32_t kMaxDims = 4;          // GGML_MAX_DIMS
constexpr uint64_t kMaxAlignment = 65536;
constexpr uint64_t kMinKeyValueBytes = 8 + 4 + 1;            // empty key, type, one byte
constexpr uint64_t kMinTensorInfoBytes = 8 + 4 + 8 + 4 + 8;  // empty name, one dimension

struct GgmlType {
  uint32_t id;
  DType type;
};
constexpr GgmlType kGgmlTypes[] = {{0, DType::kF32},   {1, DType::kF16},   {30, DType::kBF16},
                                   {2, DType::kQ4_0},  {3, DType::kQ4_1},  {8, DType::kQ8_0},
                                   {12, DType::kQ4_K}, {13, DType::kQ5_K}, {14, DType::kQ6_K}};

std::string_view type_name(uint32_t type) { return type < kValueTypes ? kTypeNames[type] : "unknown"; }

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

bool is_integer(uint32_t type) { return type == kU64 || type == kI64Value || type <= kI32; }

// Empty where an u64 passes the signed range.
std::optional<int64_t> load_integer(uint32_t type, const std::byte* from) {
  switch (type) {
    case kU8:
      return load<uint8_t>(from);
    case kI8:
      return load<int8_t>(from);
    case kU16:
      return load<uint16_t>(from);
    case kI16:
      return load<int16_t>(from);
    case kU32:
      return load<uint32_t>(from);
    case kI32:
      return load<int32_t>(from);
    case kI64Value:
      return load<int64_t>(from);
    default: {
      const uint64_t value = load<uint64_t>(from);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return {};
      return static_cast<int64_t>(value);
    }
  }
}

std::string_view as_text(const std::byte* data, uint64_t size) { return {reinterpret_cast<const char*>(data), size}; }

}  // namespace

// Walks the header once. Nothing is trusted: every length is compared with the bytes that are left before it is used.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}

  Status parse() {
    uint64_t tensors = 0, key_values = 0;
    OASIS_RETURN_IF_ERROR(parse_preamble(tensors, key_values));
    for (uint64_t i = 0; i < key_values; ++i) OASIS_RETURN_IF_ERROR(parse_key_value());
    OASIS_RETURN_IF_ERROR(read_alignment());
    for (uint64_t i = 0; i < tensors; ++i) OASIS_RETURN_IF_ERROR(parse_tensor_info());
    return place_tensors();
  }

 private:
  template <typename... Args>
  Status corrupt(fmt::format_string<Args...> f, Args&&... args) const {
    return data_corruption("'{}': {}", file_.path_, fmt::format(f, std::forward<Args>(args)...));
  }

  uint64_t left() const { return bytes_.size() - at_; }

  template <typename T>
  Status read(T& out, std::string_view field) {
    if (left() < sizeof(T)) return corrupt("the file ends at byte {} inside {}", bytes_.size(), field);
    out = load<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return {};
  }

  Status read_string(std::string_view& out, std::string_view field, uint64_t limit) {
    uint64_t size = 0;
    OASIS_RETURN_IF_ERROR(read(size, field));
    if (size > left()) return corrupt("{} has length {}, but {} bytes are left in the file", field, size, left());
    if (size > limit) return corrupt("{} has length {}, the limit is {}", field, size, limit);
    out = as_text(bytes_.data() + at_, size);
    at_ += size;
    return {};
  }

  Status parse_preamble(uint64_t& tensors, uint64_t& key_values) {
    uint32_t magic = 0, version = 0;
    OASIS_RETURN_IF_ERROR(read(magic, "the magic number"));
    if (magic != 0x46554747) return corrupt("is not a GGUF file: it does not start with 'GGUF'");
    OASIS_RETURN_IF_ERROR(read(version, "version"));
    if (version == 0x02000000 || version == 0x03000000)
      return unsupported("'{}' is a big-endian GGUF file; convert it to little-endian", file_.path_);
    if (version != 2 && version != 3)
      return unsupported("'{}' has GGUF version {}; this engine reads 2 and 3", file_.path_, version);
    OASIS_RETURN_IF_ERROR(read(tensors, "tensor_count"));
    OASIS_RETURN_IF_ERROR(read(key_values, "kv_count"));
    if (tensors > left() / kMinTensorInfoBytes)
      return corrupt("tensor_count is {}, more than the {} bytes left can hold", tensors, left());
    if (key_values > left() / kMinKeyValueBytes)
      return corrupt("kv_count is {}, more than the {} bytes left can hold", key_values, left());
    return {};
  }

  Status parse_key_value() {
    std::string_view key;
    OASIS_RETURN_IF_ERROR(read_string(key, "the name of a metadata key", kMaxKeyBytes));
    const std::string field = fmt::format("metadata key '{}'", printable(key));
    GgufFile::Value value;
    OASIS_RETURN_IF_ERROR(read(value.type, field));
    if (value.type == kArray) {
      value.array = true;
      OASIS_RETURN_IF_ERROR(read(value.type, field));
      OASIS_RETURN_IF_ERROR(read(value.count, field));
    }
    if (value.type >= kValueTypes || value.type == kArray)
      return corrupt("{} has {} type {}, which is not supported", field, value.array ? "element" : "value", value.type);
    value.data = bytes_.data() + at_;
    OASIS_RETURN_IF_ERROR(skip(value, field));
    if (!file_.metadata_.emplace(key, value).second) return corrupt("{} occurs twice", field);
    return {};
  }

  Status skip(const GgufFile::Value& value, std::string_view field) {
    const uint64_t least = value.type == kString ? sizeof(uint64_t) : kTypeBytes[value.type];
    if (value.count > left() / least)
      return corrupt("{} has {} elements of type {}, but {} bytes are left in the file", field, value.count,
                     type_name(value.type), left());
    if (value.type != kString) {
      at_ += value.count * least;
      return {};
    }
    std::string_view text;
    for (uint64_t i = 0; i < value.count; ++i)
      OASIS_RETURN_IF_ERROR(read_string(text, field, std::numeric_limits<uint64_t>::max()));
    return {};
  }

  Status read_alignment() {
    if (!file_.has("general.alignment")) return {};
    OASIS_ASSIGN_OR_RETURN(alignment_, file_.u64("general.alignment"));
    if (!std::has_single_bit(alignment_) || alignment_ < 8 || alignment_ > kMaxAlignment)
      return corrupt("general.alignment is {}; it must be a power of two from 8 to {}", alignment_, kMaxAlignment);
    return {};
  }

  Status parse_tensor_info() {
    std::string_view name;
    OASIS_RETURN_IF_ERROR(read_string(name, "the name of a tensor", kMaxNameBytes));
    const std::string field = fmt::format("tensor '{}'", printable(name));
    uint32_t dims = 0, type = 0;
    OASIS_RETURN_IF_ERROR(read(dims, field));
    if (dims < 1 || dims > kMaxDims) return corrupt("{} has n_dims {}; it must be 1 to {}", field, dims, kMaxDims);
    TensorInfo tensor;
    tensor.shape.resize(dims);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < dims; ++i) {
      uint64_t dim = 0;
      OASIS_RETURN_IF_ERROR(read(dim, field));
      // 2^56 elements of at most 8 bytes: no later product can overflow.
      if (dim == 0 || dim > (uint64_t{1} << 56) / elements)
        return corrupt("{} has dims[{}] = {}; it must be positive and the product of dims at most 2^56", field, i, dim);
      elements *= dim;
      tensor.shape[dims - 1 - i] = static_cast<int64_t>(dim);  // the file has the contiguous one first
    }
    OASIS_RETURN_IF_ERROR(read(type, field));
    OASIS_RETURN_IF_ERROR(set_type(tensor, type, field));
    uint64_t offset = 0;
    OASIS_RETURN_IF_ERROR(read(offset, field));
    const auto [entry, fresh] = file_.tensors_.emplace(name, std::move(tensor));
    if (!fresh) return corrupt("{} occurs twice", field);
    places_.push_back({offset, static_cast<uint64_t>(bytes_of(entry->second.type, entry->second.elements())), entry});
    return {};
  }

  Status set_type(TensorInfo& tensor, uint32_t type, std::string_view field) const {
    const auto known = std::ranges::find(kGgmlTypes, type, &GgmlType::id);
    if (known == std::end(kGgmlTypes))
      return unsupported(
          "'{}': {} has ggml type {}; this engine reads F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K and Q6_K",
          file_.path_, field, type);
    tensor.type = known->type;
    const int block = info(tensor.type).block_elements;
    if (tensor.shape.back() % block != 0)
      return corrupt("{} has dims[0] = {}, no multiple of the {} elements of a {} block", field, tensor.shape.back(),
                     block, info(tensor.type).name);
    return {};
  }

  Status place_tensors() {
    const uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    const uint64_t size = start < bytes_.size() ? bytes_.size() - start : 0;
    std::ranges::sort(places_, {}, &Place::offset);
    uint64_t end = 0;
    for (const Place& place : places_) {
      const std::string field = fmt::format("tensor '{}'", printable(place.entry->first));
      if (place.offset % alignment_ != 0)
        return corrupt("{} has offset {}, no multiple of the alignment {}", field, place.offset, alignment_);
      if (place.bytes > size || place.offset > size - place.bytes)
        return corrupt(
            "{} has {} bytes at offset {}, past the end of the data section ({} bytes); is the file cut off?", field,
            place.bytes, place.offset, size);
      if (place.offset < end) return corrupt("{} has offset {}, inside another tensor", field, place.offset);
      end = place.offset + place.bytes;
      place.entry->second.data = bytes_.subspan(start + place.offset, place.bytes);
    }
    return {};
  }

  struct Place {
    uint64_t offset;
    uint64_t bytes;
    std::map<std::string, TensorInfo, std::less<>>::iterator entry;
  };

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  uint64_t at_ = 0;
  uint64_t alignment_ = 32;
  std::vector<Place> places_;
};

Result<GgufFile> GgufFile::open(const std::string& path) {
  OASIS_ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(path));
  OASIS_ASSIGN_OR_RETURN(GgufFile file, from_bytes(map.bytes(), path));
  file.map_ = std::move(map);
  return file;
}

Result<GgufFile> GgufFile::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.path_ = name;
  OASIS_RETURN_IF_ERROR(GgufParser(bytes, file).parse());
  return file;
}

const TensorInfo* GgufFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Status GgufFile::wrong_type(std::string_view key, const Value& value, std::string_view wanted) const {
  return data_corruption("'{}': metadata key '{}' is of type {}{}, it must be {}", path_, key,
                         value.array ? "array of " : "", type_name(value.type), wanted);
}

Result<const GgufFile::Value*> GgufFile::value(std::string_view key, bool array, std::string_view wanted) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) return not_found("'{}' has no metadata key '{}'", path_, key);
  if (it->second.array != array) return wrong_type(key, it->second, wanted);
  return &it->second;
}

Result<uint64_t> GgufFile::u64(std::string_view key) const {
  OASIS_ASSIGN_OR_RETURN(const Value* value, this->value(key, false, "an integer"));
  if (!is_integer(value->type)) return wrong_type(key, *value, "an integer");
  if (value->type == kU64) return load<uint64_t>(value->data);
  const int64_t number = *load_integer(value->type, value->data);
  if (number < 0) return data_corruption("'{}': metadata key '{}' is {}, it must not be negative", path_, key, number);
  return static_cast<uint64_t>(number);
}

Result<double> GgufFile::f64(std::string_view key) const {
  OASIS_ASSIGN_OR_RETURN(const Value* value, this->value(key, false, "a number"));
  if (value->type == kF32Value) return static_cast<double>(load<float>(value->data));
  if (value->type == kF64) return load<double>(value->data);
  if (value->type == kU64) return static_cast<double>(load<uint64_t>(value->data));
  if (!is_integer(value->type)) return wrong_type(key, *value, "a number");
  return static_cast<double>(*load_integer(value->type, value->data));
}

Result<bool> GgufFile::boolean(std::string_view key) const {
  OASIS_ASSIGN_OR_RETURN(const Value* value, this->value(key, false, "a bool"));
  if (value->type != kBoolValue) return wrong_type(key, *value, "a bool");
  return *value->data != std::byte{0};
}

Result<std::string_view> GgufFile::string(std::string_view key) const {
  OASIS_ASSIGN_OR_RETURN(const Value* value, this->value(key, false, "a string"));
  if (value->type != kString) return wrong_type(key, *value, "a string");
  return as_text(value->data + sizeof(uint64_t), load<uint64_t>(value->data));
}

Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  OASIS_ASSIGN_OR_RETURN(const Value* value, this->value(key, true, "an array of strings"));
  if (value->type != kString) return wrong_type(key, *value, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(value->count);  // each has 8 bytes or more in the file
  const std::byte* at = value->data;
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint64_t size = load<uint64_t>(at);
    out.push_back(as_text(at + sizeof(uint64_t), size));
    at += sizeof(uint64_t) + size;
  }
  return out;
}

Result<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  OASIS_ASSIGN_OR_RETURN(const Value* value, this->value(key, true, "an array of integers"));
  if (!is_integer(value->type)) return wrong_type(key, *value, "an array of integers");
  std::vector<int64_t> out;
  out.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = load_integer(value->type, value->data + i * kTypeBytes[value->type]);
    if (!number) return data_corruption("'{}': element {} of metadata key '{}' passes 2^63", path_, i, key);
    out.push_back(*number);
  }
  return out;
}

}  // namespace oasis::model
