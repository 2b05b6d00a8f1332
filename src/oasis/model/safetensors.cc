#include "oasis/model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

namespace oasis::model {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 8;
constexpr uint64_t kMaxDim = uint64_t{1} << 56;  // beside a dimension of 0 any other is possible

struct NamedType {
  std::string_view name;
  DType type;
};
constexpr NamedType kTypes[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"I64", DType::kI64}, {"BOOL", DType::kBool}};

struct Entry {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

// Takes the header apart as it is read, with no tree in memory: depth 1 holds tensor names, depth 2 their fields, depth
// 3 the lists of numbers.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, Entry, std::less<>> entries;
  std::string error;

  bool null() override { return fail("null where a value is expected"); }
  bool boolean(bool) override { return fail("a boolean where a value is expected"); }
  bool number_integer(number_integer_t value) override { return fail(fmt::format("the negative number {}", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return fail(fmt::format("the number {}, which is no unsigned integer", text));
  }
  bool binary(binary_t&) override { return fail("a binary value"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!list_) return fail(fmt::format("the number {} outside shape and data_offsets", value));
    if (list_->size() == kMaxDims) return fail(fmt::format("a list of more than {} numbers", kMaxDims));
    list_->push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (in_metadata_) return true;
    if (depth_ != 2 || list_ || field_ != "dtype") return fail("a string where something else is expected");
    entry_->dtype = value;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 2 || list_) return fail("an object inside a tensor's entry");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && !in_metadata_ && (entry_->dtype.empty() || !entry_->has_shape || entry_->offsets.size() != 2))
      return fail("no dtype, no shape or not two data_offsets");
    in_metadata_ = false;
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) return start_entry(value);
    if (in_metadata_) return true;
    field_ = value;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") return fail("an unknown field");
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || list_ || field_ == "dtype")
      return fail("a list where something else is expected");
    list_ = field_ == "shape" ? &entry_->shape : &entry_->offsets;
    if (field_ == "shape") entry_->has_shape = true;
    list_->clear();
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& exception) override {
    if (error.empty()) error = fmt::format("is not valid JSON near byte {}: {}", position, exception.what());
    return false;
  }

 private:
  bool start_entry(const std::string& name) {
    name_ = name;
    field_.clear();
    in_metadata_ = name == "__metadata__";
    if (!seen_metadata_ && in_metadata_) {
      seen_metadata_ = true;
      return true;
    }
    const auto [it, fresh] = entries.try_emplace(name);
    if (!fresh || in_metadata_) return fail("the same name twice");
    entry_ = &it->second;
    return true;
  }
  bool fail(const std::string& what) {
    error = fmt::format("has {} (tensor '{}', field '{}')", what, printable(name_), printable(field_));
    return false;
  }

  int depth_ = 0;
  bool in_metadata_ = false, seen_metadata_ = false;
  std::string name_, field_;
  Entry* entry_ = nullptr;
  std::vector<uint64_t>* list_ = nullptr;
};

// Checks one entry against the `size` bytes of data behind the header.
Result<TensorInfo> to_tensor(const Entry& entry, std::span<const std::byte> data, const std::string& field) {
  const auto known = std::ranges::find(kTypes, entry.dtype, &NamedType::name);
  if (known == std::end(kTypes))
    return unsupported("{} has dtype {}; this engine reads F32, F16, BF16, I64 and BOOL", field, entry.dtype);
  TensorInfo tensor;
  tensor.type = known->type;
  const uint64_t size = info(tensor.type).block_bytes;
  const uint64_t most = data.size() / size;
  uint64_t elements = 1;
  for (uint64_t dim : entry.shape) {
    if (dim > kMaxDim || (dim != 0 && elements > most / dim))
      return data_corruption("{} has a shape of more elements than the {} bytes of data in the file hold", field,
                             data.size());
    elements *= dim;
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data.size())
    return data_corruption("{} has data_offsets [{}, {}); they must rise and end by the {} bytes of data in the file",
                           field, begin, end, data.size());
  if (end - begin != elements * size)
    return data_corruption("{} has {} bytes by its data_offsets, but {} by its shape {} and dtype {}", field,
                           end - begin, elements * size, to_string(tensor.shape), entry.dtype);
  tensor.data = data.subspan(begin, end - begin);
  return tensor;
}

// The format allows neither holes nor overlaps.
Status check_packed(const std::map<std::string, TensorInfo, std::less<>>& tensors, std::span<const std::byte> data,
                    const std::string& path) {
  std::vector<const std::pair<const std::string, TensorInfo>*> sorted;
  for (const auto& entry : tensors) sorted.push_back(&entry);
  std::ranges::sort(sorted, {}, [](auto* e) { return std::pair(e->second.data.data(), e->second.data.size()); });
  const std::byte* next = data.data();
  for (const auto* entry : sorted) {
    const auto span = entry->second.data;
    if (span.data() != next)
      return data_corruption("'{}': tensor '{}' begins at data offset {}, but the bytes before it end at {}", path,
                             printable(entry->first), span.data() - data.data(), next - data.data());
    next = span.data() + span.size();
  }
  if (next != data.data() + data.size())
    return data_corruption("'{}' has {} bytes of data, but its tensors end at {}", path, data.size(),
                           next - data.data());
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  OASIS_ASSIGN_OR_RETURN(MappedFile map, MappedFile::open(path));
  OASIS_ASSIGN_OR_RETURN(SafetensorsFile file, from_bytes(map.bytes(), path));
  file.map_ = std::move(map);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::from_bytes(std::span<const std::byte> bytes, const std::string& name) {
  uint64_t size = 0;
  if (bytes.size() < sizeof(size))
    return data_corruption("'{}' has {} bytes, too few for the 8 of a safetensors header length", name, bytes.size());
  std::memcpy(&size, bytes.data(), sizeof(size));
  if (size > kMaxHeaderBytes)
    return data_corruption("'{}' has a header length of {}; the limit is {}: is it a safetensors file?", name, size,
                           kMaxHeaderBytes);
  if (size > bytes.size() - sizeof(size))
    return data_corruption("'{}' has a header length of {}, but only {} bytes after it: is the file cut off?", name,
                           size, bytes.size() - sizeof(size));
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof(size), size);
  if (!header.starts_with('{')) return data_corruption("'{}' has a header that does not start with '{{'", name);
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, &reader)) return data_corruption("'{}': the header {}", name, reader.error);

  SafetensorsFile file;
  file.path_ = name;
  const auto data = bytes.subspan(sizeof(size) + size);
  for (const auto& [tensor_name, entry] : reader.entries) {
    OASIS_ASSIGN_OR_RETURN(TensorInfo tensor,
                           to_tensor(entry, data, fmt::format("'{}': tensor '{}'", name, printable(tensor_name))));
    file.tensors_.emplace(tensor_name, std::move(tensor));
  }
  OASIS_RETURN_IF_ERROR(check_packed(file.tensors_, data, name));
  return file;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace oasis::model
