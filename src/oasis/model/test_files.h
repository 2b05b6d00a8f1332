// For this room's tests: folders to write into, files made byte by byte as their formats' descriptions say, and the
// tiny checkpoints of tests/data/models.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>

#include "oasis/base/dtype.h"
#include "oasis/model/tensor_info.h"

namespace oasis::model::test {

// A fresh folder, removed with all it holds at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "oasis-model-XXXXXX").string();
    if (!::mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string models_folder() { return std::string(OASIS_SOURCE_DIR) + "/tests/data/models"; }

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
inline std::string u32(uint32_t value) { return raw(value); }
inline std::string u64(uint64_t value) { return raw(value); }

// GGUF's string.
inline std::string text(std::string_view value) { return u64(value.size()) + std::string(value); }

// A .safetensors file from a header and data; `pad` spaces make the header longer.
inline std::string safetensors(const std::string& header, const std::string& data, size_t pad = 0) {
  return u64(header.size() + pad) + header + std::string(pad, ' ') + data;
}

inline std::string safetensors(const std::map<std::string, TensorInfo>& tensors, size_t pad = 0) {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors) {
    if (header.size() > 1) header += ",";
    header += fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, info(tensor.type).name,
                          to_string(tensor.shape), data.size(), data.size() + tensor.data.size());
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  return safetensors(header + "}", data, pad);
}

// Copies a tiny checkpoint into `to` and replaces `from` by `by` in its config.json.
inline void copy_model(const std::string& name, const TempFolder& to, const std::string& from = "",
                       const std::string& by = "") {
  std::filesystem::copy(models_folder() + "/" + name, to.path(), std::filesystem::copy_options::recursive);
  if (from.empty()) return;
  std::string config = read_file(to / "config.json");
  const size_t at = config.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  write_file(to / "config.json", config.replace(at, from.size(), by));
}

}  // namespace oasis::model::test
