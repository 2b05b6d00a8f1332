// A model's files, opened: its configuration, its weights as views into the mapped files, its tokenizer's data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oasis/base/dtype.h"
#include "oasis/base/status.h"
#include "oasis/model/config.h"
#include "oasis/model/gguf.h"
#include "oasis/model/safetensors.h"

namespace oasis::text {
struct TokenizerSpec;  // oasis/text/tokenizer.h
}

namespace oasis::model {

struct LayerWeights {
  WeightView q, k, v;                // [heads * head_dim, hidden], k and v [kv_heads * head_dim, hidden]
  WeightView o;                      // [hidden, heads * head_dim]
  WeightView gate, up;               // [intermediate, hidden]
  WeightView down;                   // [hidden, intermediate]
  std::span<const float> attn_norm;  // [hidden], before attention
  std::span<const float> ffn_norm;   // [hidden], before the MLP
  std::span<const float> q_norm;     // [head_dim], empty without qk_norm
  std::span<const float> k_norm;     // [head_dim], empty without qk_norm
};

struct ModelWeights {
  WeightView embed;                    // [vocab, hidden]
  WeightView lm_head;                  // [vocab, hidden]; the same memory as embed when tied
  std::span<const float> output_norm;  // [hidden]
  std::vector<LayerWeights> layers;
};

enum class TensorNaming;  // bind_weights.h

// A matrix that is nowhere yet: the numbers that it will hold (kernels/random), where it is put.
struct RandomMatrix {
  uint64_t seed = 0, first = 0;
  float half_width = 0;
};

class Checkpoint {
 public:
  // A .gguf file, or a folder of Hugging Face's layout (config.json and *.safetensors).
  static Result<Checkpoint> open(const std::string& path);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return weights_; }
  // Reads the tokenizer's data anew from the GGUF metadata or tokenizer.json.
  Result<text::TokenizerSpec> tokenizer_spec() const;
  // The same for the same configuration and weights wherever the files lie: a hash of the numbers that results depend
  // on, of every tensor's name, type and shape, and of samples of its bytes.
  uint64_t fingerprint() const { return fingerprint_; }
  // What the matrix at this address is to hold, if it is a placeholder that must not be read; else null.
  const RandomMatrix* placeholder(const void* data) const {
    const auto it = placeholders_.find(data);
    return it == placeholders_.end() ? nullptr : &it->second;
  }
  // Bytes of all the weights used, a tied head counted once.
  uint64_t weight_bytes() const { return weight_bytes_; }

  // A move keeps every view valid.
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

 private:
  friend Checkpoint make_random(const ModelConfig& config, uint64_t seed, bool placeholders);
  Checkpoint() = default;
  static Result<Checkpoint> open_gguf(const std::string& path);
  static Result<Checkpoint> open_folder(const std::string& path);
  Status bind(const std::map<std::string, const TensorInfo*, std::less<>>& tensors, TensorNaming naming);

  std::string path_;
  std::optional<GgufFile> gguf_;
  std::vector<SafetensorsFile> shards_;
  std::vector<std::vector<std::byte>> owned_;  // weights that no file holds as they are needed
  std::map<const void*, RandomMatrix> placeholders_;
  ModelConfig config_;
  ModelWeights weights_;
  uint64_t fingerprint_ = 0;
  uint64_t weight_bytes_ = 0;
};

}  // namespace oasis::model
