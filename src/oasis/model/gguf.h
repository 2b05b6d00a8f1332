// A GGUF file, version 2 or 3, little-endian: typed metadata and named tensors. The whole header is checked on opening;
// memory grows with what the file holds, never with what it claims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/base/mapped_file.h"
#include "oasis/base/status.h"
#include "oasis/model/tensor_info.h"

namespace oasis::model {

class GgufFile {
 public:
  static Result<GgufFile> open(const std::string& path);
  // Borrows `bytes`, which must outlive the object; `name` stands for the path in errors.
  static Result<GgufFile> from_bytes(std::span<const std::byte> bytes, const std::string& name = "<memory>");

  const std::string& path() const { return path_; }

  // Metadata. An absent key is kNotFound; a value of another type, or out of range, is kDataCorruption; both name the
  // key. Views point into the file.
  bool has(std::string_view key) const { return metadata_.contains(key); }
  Result<uint64_t> u64(std::string_view key) const;  // any integer type, not negative
  Result<double> f64(std::string_view key) const;    // any number type
  Result<bool> boolean(std::string_view key) const;
  Result<std::string_view> string(std::string_view key) const;
  Result<std::vector<std::string_view>> strings(std::string_view key) const;
  Result<std::vector<int64_t>> integers(std::string_view key) const;

  // Null if the file has no such tensor. Valid as long as the file object lives, also after a move.
  const TensorInfo* find(std::string_view name) const;
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }

 private:
  struct Value {
    uint32_t type = 0;  // GGUF's number for the type; the element type if `array`
    bool array = false;
    uint64_t count = 1;               // elements
    const std::byte* data = nullptr;  // the first element, validated up to the last
  };
  friend class GgufParser;
  GgufFile() = default;
  Result<const Value*> value(std::string_view key, bool array, std::string_view wanted) const;
  Status wrong_type(std::string_view key, const Value& value, std::string_view wanted) const;

  std::string path_;
  std::optional<MappedFile> map_;
  std::map<std::string, Value, std::less<>> metadata_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

}  // namespace oasis::model
