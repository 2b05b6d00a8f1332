#include "oasis/model/random_checkpoint.h"

#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "oasis/base/numeric.h"
#include "oasis/kernels/random/random.h"
#include "oasis/model/fingerprint.h"

namespace oasis::model {

namespace {

// Makes matrices of a wanted size, in owned memory or as placeholders.
class Generator {
 public:
  Generator(uint64_t seed, std::vector<std::vector<std::byte>>& owned,
            std::map<const void*, RandomMatrix>* placeholders)
      : seed_(seed), owned_(owned), placeholders_(placeholders), cpu_(make_cpu_device(0)) {}

  // Uniform with standard deviation gain / sqrt(cols): y = W x has the size of gain * x.
  WeightView matrix(int64_t rows, int64_t cols, double gain = 1) {
    const auto half_width = static_cast<float>(gain * std::sqrt(3.0 / static_cast<double>(cols)));
    const uint64_t first = std::exchange(made_, made_ + static_cast<uint64_t>(rows * cols));
    if (placeholders_) {
      next_address_ += 256;
      const auto* data = reinterpret_cast<const void*>(next_address_);
      (*placeholders_)[data] = {.seed = seed_, .first = first, .half_width = half_width};
      return {data, DType::kBF16, rows, cols};
    }
    auto& bytes = owned_.emplace_back(rows * cols * sizeof(bf16));
    auto* out = reinterpret_cast<bf16*>(bytes.data());
    kernels::fill_random_cpu(cpu_->foreground(), {out, rows * cols, seed_, first, half_width});
    return {out, DType::kBF16, rows, cols};
  }

  // Within a fifth of `middle`.
  std::span<const float> norm(int64_t size, float middle = 1) {
    std::vector<bf16> units(static_cast<size_t>(size));
    const uint64_t first = std::exchange(made_, made_ + static_cast<uint64_t>(size));
    kernels::fill_random_cpu(cpu_->foreground(), {units.data(), size, seed_, first, 1});
    auto& bytes = owned_.emplace_back(size * sizeof(float));
    auto* out = reinterpret_cast<float*>(bytes.data());
    for (int64_t i = 0; i < size; ++i) out[i] = middle * (1 + 0.2f * to_float(units[static_cast<size_t>(i)]));
    return {out, static_cast<size_t>(size)};
  }

 private:
  uint64_t seed_, made_ = 0;
  uintptr_t next_address_ = 4096;  // of placeholders: never mapped
  std::vector<std::vector<std::byte>>& owned_;
  std::map<const void*, RandomMatrix>* placeholders_;
  std::unique_ptr<Device> cpu_;
};

}  // namespace

Checkpoint make_random(const ModelConfig& config, uint64_t seed, bool placeholders) {
  const Status status = validate(config);
  OASIS_CHECK(status.ok(), "make_random: {}", status.message());
  Checkpoint checkpoint;
  checkpoint.config_ = config;
  Generator generator(seed, checkpoint.owned_, placeholders ? &checkpoint.placeholders_ : nullptr);
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
  checkpoint.fingerprint_ = placeholders ? seed : fingerprint_of(config, weights);
  checkpoint.weight_bytes_ = bytes_of(weights);
  return checkpoint;
}

}  // namespace oasis::model
