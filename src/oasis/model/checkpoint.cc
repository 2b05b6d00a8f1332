#include "oasis/model/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "oasis/base/mapped_file.h"
#include "oasis/model/bind_weights.h"
#include "oasis/model/fingerprint.h"
#include "oasis/model/gguf_model.h"
#include "oasis/model/json_file.h"
#include "oasis/text/tokenizer.h"

namespace oasis::model {

namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string folder_name(const std::string& folder) {
  std::error_code ignored;
  const fs::path path = fs::absolute(folder, ignored).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();  // "a/b/" has no filename
}

// The folder has no safetensors file: say what it has instead.
Status explain_no_weights(const std::string& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf"))
      return invalid_argument("'{}' has no model.safetensors; pass the GGUF file itself: '{}/{}'", folder, folder,
                              name);
    if (name.starts_with("pytorch_model") || name.ends_with(".pth"))
      return unsupported(
          "'{}' has its weights only as '{}', a Python pickle, which this engine does not read; convert it with "
          "Python: "
          "from transformers import AutoModelForCausalLM; "
          "AutoModelForCausalLM.from_pretrained('{}', dtype='auto').save_pretrained('OUTPUT_FOLDER')",
          folder, name, folder);
  }
  return not_found("'{}' has neither model.safetensors nor model.safetensors.index.json", folder);
}

Status open_single(const std::string& path, std::vector<SafetensorsFile>& shards, TensorTable& tensors) {
  OASIS_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  for (const auto& [name, tensor] : file.tensors()) tensors.emplace(name, &tensor);
  shards.push_back(std::move(file));
  return {};
}

Status open_sharded(const std::string& folder, const std::string& index_path, std::vector<SafetensorsFile>& shards,
                    TensorTable& tensors) {
  OASIS_ASSIGN_OR_RETURN(const nlohmann::json index, read_json_file(index_path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) return data_corruption("'{}' has no object weight_map", index_path);
  std::map<std::string, size_t> opened;  // file name -> index in shards
  for (const auto& [tensor_name, value] : map->items()) {
    if (!value.is_string())
      return data_corruption("'{}': weight_map of '{}' is not a string", index_path, printable(tensor_name));
    const auto& file_name = value.get_ref<const std::string&>();
    // The index must not lead out of its folder.
    if (file_name.find('/') != std::string::npos || !file_name.ends_with(".safetensors"))
      return data_corruption("'{}': weight_map names '{}', which is not a .safetensors file of this folder", index_path,
                             printable(file_name));
    const auto [it, fresh] = opened.emplace(file_name, shards.size());
    if (fresh) {
      OASIS_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(folder + "/" + file_name));
      shards.push_back(std::move(file));
    }
    const TensorInfo* tensor = shards[it->second].find(tensor_name);
    if (!tensor)
      return data_corruption("'{}' says that '{}' holds tensor '{}', but it does not", index_path, file_name,
                             printable(tensor_name));
    tensors.emplace(tensor_name, tensor);
  }
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return not_found("'{}' does not exist: give a .gguf file or a model folder", path);
  if (fs::is_directory(status)) return open_folder(path);
  if (path.ends_with(".safetensors"))
    return invalid_argument("'{}' alone lacks the model's config.json: give the folder that holds both", path);
  return open_gguf(path);
}

Result<Checkpoint> Checkpoint::open_gguf(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  OASIS_ASSIGN_OR_RETURN(checkpoint.gguf_, GgufFile::open(path));
  OASIS_ASSIGN_OR_RETURN(checkpoint.config_, config_from_gguf(*checkpoint.gguf_));
  TensorTable tensors;
  for (const auto& [name, tensor] : checkpoint.gguf_->tensors()) tensors.emplace(name, &tensor);
  OASIS_RETURN_IF_ERROR(checkpoint.bind(tensors, TensorNaming::kGguf));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_folder(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.path_ = folder;
  if (!exists(folder + "/config.json")) {
    const Status why = explain_no_weights(folder);
    return why.code() == StatusCode::kNotFound ? not_found("'{}' has no config.json", folder) : why;
  }
  OASIS_ASSIGN_OR_RETURN(checkpoint.config_, read_config_json(folder + "/config.json"));
  if (checkpoint.config_.name.empty()) checkpoint.config_.name = folder_name(folder);
  if (const std::string path = folder + "/generation_config.json"; exists(path)) {
    OASIS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    const auto bytes = file.bytes();
    OASIS_RETURN_IF_ERROR(
        apply_generation_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, checkpoint.config_));
  }
  TensorTable tensors;
  const std::string single = folder + "/model.safetensors", index = folder + "/model.safetensors.index.json";
  if (exists(index)) {
    OASIS_RETURN_IF_ERROR(open_sharded(folder, index, checkpoint.shards_, tensors));
  } else if (exists(single)) {
    OASIS_RETURN_IF_ERROR(open_single(single, checkpoint.shards_, tensors));
  } else {
    return explain_no_weights(folder);
  }
  OASIS_RETURN_IF_ERROR(checkpoint.bind(tensors, TensorNaming::kHuggingFace));
  return checkpoint;
}

Status Checkpoint::bind(const TensorTable& tensors, TensorNaming naming) {
  OASIS_ASSIGN_OR_RETURN(weights_, bind_weights(config_, tensors, naming, path_, owned_));
  fingerprint_ = fingerprint_of(config_, weights_);
  weight_bytes_ = bytes_of(weights_);
  return {};
}

Result<text::TokenizerSpec> Checkpoint::tokenizer_spec() const {
  if (gguf_) return tokenizer_from_gguf(*gguf_);
  if (path_.empty()) return not_found("a random model has no tokenizer");
  return text::read_tokenizer_json(path_);
}

}  // namespace oasis::model
