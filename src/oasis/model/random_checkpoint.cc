#include "oasis/model/random_checkpoint.h"

#include <cmath>
#include <cstring>

#include "oasis/base/numeric.h"
#include "oasis/model/fingerprint.h"

namespace oasis::model {

namespace {

// Fills owned memory with values of a wanted size. SplitMix64: cheap, and the same on every machine.
class Generator {
 public:
  Generator(uint64_t seed, std::vector<std::vector<std::byte>>& owned) : state_(seed), owned_(owned) {}

  // Uniform with standard deviation gain / sqrt(cols): y = W x has the size of gain * x.
  WeightView matrix(int64_t rows, int64_t cols, double gain = 1) {
    auto& bytes = owned_.emplace_back(rows * cols * sizeof(bf16));
    auto* out = reinterpret_cast<bf16*>(bytes.data());
    const auto half_width = static_cast<float>(gain * std::sqrt(3.0 / static_cast<double>(cols)));
    for (int64_t i = 0; i < rows * cols; ++i) out[i] = to_bf16(half_width * unit());
    return {out, DType::kBF16, rows, cols};
  }

  // Within a fifth of `middle`.
  std::span<const float> norm(int64_t size, float middle = 1) {
    auto& bytes = owned_.emplace_back(size * sizeof(float));
    auto* out = reinterpret_cast<float*>(bytes.data());
    for (int64_t i = 0; i < size; ++i) out[i] = middle * (1 + 0.2f * unit());
    return {out, static_cast<size_t>(size)};
  }

 private:
  float unit() {  // in [-1, 1)
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<float>(static_cast<int32_t>((z ^ (z >> 31)) >> 32)) * 0x1p-31f;
  }

  uint64_t state_;
  std::vector<std::vector<std::byte>>& owned_;
};

}  // namespace

Checkpoint make_random(const ModelConfig& config, uint64_t seed) {
  const Status status = validate(config);
  OASIS_CHECK(status.ok(), "make_random: {}", status.message());
  Checkpoint checkpoint;
  checkpoint.config_ = config;
  Generator generator(seed, checkpoint.owned_);
  ModelWeights& weights = checkpoint.weights_;
  const int64_t hidden = config.hidden, intermediate = config.intermediate, head_dim = config.head_dim;
  const int64_t q_rows = config.heads * head_dim, kv_rows = config.kv_heads * head_dim;
  // Logits of standard deviation about 2.5 from a normed state.
  weights.embed = generator.matrix(config.vocab, hidden, 2.5);
  weights.lm_head = config.tied_embeddings ? weights.embed : generator.matrix(config.vocab, hidden, 2.5);
  weights.output_norm = generator.norm(hidden);
  // 2 * layers branches are summed into the residual stream.
  const double branch = 1 / std::sqrt(2.0 * config.layers);
  for (int i = 0; i < config.layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    layer.attn_norm = generator.norm(hidden);
    layer.q = generator.matrix(q_rows, hidden, 1.3);  // attention neither flat nor a spike
    layer.k = generator.matrix(kv_rows, hidden, 1.3);
    layer.v = generator.matrix(kv_rows, hidden);
    layer.o = generator.matrix(hidden, q_rows, branch);
    layer.ffn_norm = generator.norm(hidden);
    layer.gate = generator.matrix(intermediate, hidden);
    layer.up = generator.matrix(intermediate, hidden);
    layer.down = generator.matrix(hidden, intermediate, 1.7 * branch);  // SwiGLU halves the size
    if (!config.qk_norm) continue;
    layer.q_norm = generator.norm(head_dim, 1.3f);
    layer.k_norm = generator.norm(head_dim, 1.3f);
  }
  checkpoint.fingerprint_ = fingerprint_of(config, weights);
  checkpoint.weight_bytes_ = bytes_of(weights);
  return checkpoint;
}

}  // namespace oasis::model
