// What a model is: the sizes and constants of its architecture, read from a checkpoint and trusted only after
// validate().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/model/rope.h"

namespace oasis::model {

enum class Arch { kLlama, kQwen3 };

std::string_view to_string(Arch arch);

struct ModelConfig {
  Arch arch = Arch::kLlama;
  std::string name;  // for people only
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // heads * head_dim may differ from hidden
  int intermediate = 0;
  int64_t vocab = 0;    // rows of the embedding; may exceed the tokenizer's vocabulary
  int64_t context = 0;  // most positions of a sequence, RoPE scaling included
  float rms_eps = 1e-6f;
  RopeConfig rope;
  bool tied_embeddings = false;  // what the checkpoint declares; a head that it holds all the same is used
  bool qk_norm = false;          // RMSNorm over head_dim on q and k, before RoPE

  std::vector<int32_t> eos_ids;  // any of them ends a sequence
  int32_t bos_id = -1;           // -1: none
  // Generation defaults of the checkpoint's author; empty where it states none.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int> top_k;
};

// Every size within the range that this engine computes with.
Status validate(const ModelConfig& config);

// For readers of files: raises the context to what YaRN stretches it to (many files keep the one before), and
// validates. `source` names the file in errors.
Status complete(ModelConfig& config, const std::string& source);

// A config.json of Hugging Face's layout (Llama, Qwen3), validated; what it would do without weights. `source` names
// the text in errors.
Result<ModelConfig> parse_config_json(std::string_view text, const std::string& source);
Result<ModelConfig> read_config_json(const std::string& path);

// Overlays a generation_config.json: end-of-sequence ids and sampling defaults.
Status apply_generation_config(std::string_view text, const std::string& source, ModelConfig& config);

}  // namespace oasis::model
