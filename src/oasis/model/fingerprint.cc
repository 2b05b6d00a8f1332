#include "oasis/model/fingerprint.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <memory>

namespace oasis::model {

namespace {

// A few pages of each matrix: enough to tell fine-tunes apart, little enough to open a checkpoint of many GB at once.
constexpr uint64_t kSampleBytes = 1024;
constexpr uint64_t kSamples = 8;

class Hash {
 public:
  Hash() : state_(XXH3_createState()) {
    OASIS_CHECK(state_, "no memory for a hash");
    XXH3_64bits_reset(state_.get());
  }
  void bytes(const void* data, uint64_t size) { XXH3_64bits_update(state_.get(), data, size); }
  void number(int64_t value) { bytes(&value, sizeof(value)); }
  void number(float value) { number(static_cast<int64_t>(std::bit_cast<uint32_t>(value))); }
  void floats(std::span<const float> values) {
    number(static_cast<int64_t>(values.size()));
    bytes(values.data(), values.size_bytes());
  }
  void matrix(const WeightView& weight) {
    for (int64_t value : {static_cast<int64_t>(weight.type), weight.rows, weight.cols}) number(value);
    const uint64_t size = weight.rows * weight.row_bytes();
    const auto* data = static_cast<const std::byte*>(weight.data);
    if (size <= kSamples * kSampleBytes) return bytes(data, size);
    for (uint64_t i = 0; i < kSamples; ++i) bytes(data + (size - kSampleBytes) / (kSamples - 1) * i, kSampleBytes);
  }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

void add(Hash& hash, const ModelConfig& config) {
  for (int value : {static_cast<int>(config.arch), config.layers, config.hidden, config.heads, config.kv_heads,
                    config.head_dim, config.intermediate, static_cast<int>(config.qk_norm)})
    hash.number(static_cast<int64_t>(value));
  hash.number(config.vocab);
  hash.number(config.rms_eps);
  const RopeConfig& rope = config.rope;
  for (float value : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.attention_factor,
                      rope.beta_fast, rope.beta_slow})
    hash.number(value);
  for (int64_t value : {static_cast<int64_t>(rope.scaling), rope.original_context, int64_t{rope.interleaved}})
    hash.number(value);
  hash.floats(rope.freq_divisors);
}

template <typename Matrix, typename Norm>
void for_each(const ModelWeights& weights, Matrix matrix, Norm norm) {
  matrix(weights.embed);
  if (weights.lm_head.data != weights.embed.data) matrix(weights.lm_head);
  norm(weights.output_norm);
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightView& w : {layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down}) matrix(w);
    for (auto n : {layer.attn_norm, layer.ffn_norm, layer.q_norm, layer.k_norm}) norm(n);
  }
}

}  // namespace

uint64_t fingerprint_of(const ModelConfig& config, const ModelWeights& weights) {
  Hash hash;
  add(hash, config);
  for_each(weights, [&](const WeightView& w) { hash.matrix(w); }, [&](std::span<const float> n) { hash.floats(n); });
  return hash.digest();
}

uint64_t bytes_of(const ModelWeights& weights) {
  uint64_t bytes = 0;
  for_each(
      weights, [&](const WeightView& w) { bytes += w.rows * w.row_bytes(); },
      [&](std::span<const float> n) { bytes += n.size_bytes(); });
  return bytes;
}

}  // namespace oasis::model
