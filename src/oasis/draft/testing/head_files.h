// For tests: EAGLE-3 heads of random weights, and their folders.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "oasis/base/numeric.h"

namespace oasis::draft {

struct HeadTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;      // written as bf16, and rounded so
  std::vector<int64_t> integers;  // or these, as I64
};

struct HeadFiles {
  nlohmann::json config;
  std::map<std::string, HeadTensor> tensors;

  // A folder of its own, removed with the object that keeps it.
  class Folder {
   public:
    explicit Folder(const std::string& name)
        : path_(std::filesystem::temp_directory_path() / ("oasis_head_" + name + "_" + std::to_string(::getpid()))) {
      std::filesystem::remove_all(path_);
      std::filesystem::create_directories(path_);
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { std::filesystem::remove_all(path_); }
    std::string path() const { return path_.string(); }

   private:
    std::filesystem::path path_;
  };

  void write(const std::string& folder) const {
    std::ofstream(folder + "/config.json") << config.dump();
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      const size_t begin = data.size();
      for (float value : tensor.values) {
        const bf16 rounded = to_bf16(value);
        data.append(reinterpret_cast<const char*>(&rounded), sizeof(rounded));
      }
      data.append(reinterpret_cast<const char*>(tensor.integers.data()), tensor.integers.size() * sizeof(int64_t));
      header[name] = {{"dtype", tensor.integers.empty() ? "BF16" : "I64"},
                      {"shape", tensor.shape},
                      {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream file(folder + "/model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << text << data;
  }
};

struct HeadSizes {
  int hidden = 64, heads = 2, kv_heads = 1, head_dim = 64, intermediate = 96;
  int target_hidden = 64, taps = 3, vocab = 320, draft_vocab = 100;
};

inline HeadTensor random_tensor(std::mt19937& random, std::vector<int64_t> shape, float middle, float spread) {
  HeadTensor tensor{shape, {}, {}};
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  std::normal_distribution<float> normal(middle, spread);
  for (int64_t i = 0; i < size; ++i) tensor.values.push_back(to_float(to_bf16(normal(random))));
  return tensor;
}

// Weights that keep activations near 1 and tell drafts apart: logits spread by 2.5.
inline HeadFiles random_head(const HeadSizes& s, unsigned seed) {
  std::mt19937 random(seed);
  HeadFiles head;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols, float gain) {
    head.tensors[name + ".weight"] = random_tensor(random, {rows, cols}, 0, gain / std::sqrt(float(cols)));
  };
  const auto norm = [&](const std::string& name, int64_t length) {
    head.tensors[name + ".weight"] = random_tensor(random, {length}, 1, 0.2f);
  };
  matrix("fc", s.hidden, s.taps * s.target_hidden, 0.5f);
  matrix("midlayer.self_attn.q_proj", s.heads * s.head_dim, 2 * s.hidden, 1.5f);
  matrix("midlayer.self_attn.k_proj", s.kv_heads * s.head_dim, 2 * s.hidden, 1.5f);
  matrix("midlayer.self_attn.v_proj", s.kv_heads * s.head_dim, 2 * s.hidden, 2);
  matrix("midlayer.self_attn.o_proj", s.hidden, s.heads * s.head_dim, 2);
  matrix("midlayer.mlp.gate_proj", s.intermediate, s.hidden, 1.5f);
  matrix("midlayer.mlp.up_proj", s.intermediate, s.hidden, 1.5f);
  matrix("midlayer.mlp.down_proj", s.hidden, s.intermediate, 1.5f);
  matrix("lm_head", s.draft_vocab, s.hidden, 2.5f);
  norm("midlayer.input_layernorm", s.hidden);
  norm("midlayer.hidden_norm", s.hidden);
  norm("midlayer.post_attention_layernorm", s.hidden);
  norm("norm", s.hidden);
  HeadTensor d2t{{s.draft_vocab}, {}, {}};
  for (int i = 0; i < s.draft_vocab; ++i) d2t.integers.push_back(i * s.vocab / s.draft_vocab - i);
  head.tensors["d2t"] = d2t;
  head.config = {{"model_type", "llama"},
                 {"hidden_size", s.hidden},
                 {"target_hidden_size", s.target_hidden},
                 {"intermediate_size", s.intermediate},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", s.heads},
                 {"num_key_value_heads", s.kv_heads},
                 {"head_dim", s.head_dim},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 10000.0},
                 {"max_position_embeddings", 2048},
                 {"draft_vocab_size", s.draft_vocab},
                 {"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1, 2}}}}};
  return head;
}

}  // namespace oasis::draft
