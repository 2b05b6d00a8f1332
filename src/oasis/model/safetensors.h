// A .safetensors file: named tensors after a JSON header. Every offset is checked on opening; no tensor's bytes are
// read until they are used.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "oasis/base/mapped_file.h"
#include "oasis/base/status.h"
#include "oasis/model/tensor_info.h"

namespace oasis::model {

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  // Borrows `bytes`, which must outlive the object; `name` stands for the path in errors.
  static Result<SafetensorsFile> from_bytes(std::span<const std::byte> bytes, const std::string& name = "<memory>");

  const std::string& path() const { return path_; }
  // Null if the file has no such tensor. Valid as long as the file object lives, also after a move.
  const TensorInfo* find(std::string_view name) const;
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;
  std::string path_;
  std::optional<MappedFile> map_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

}  // namespace oasis::model
