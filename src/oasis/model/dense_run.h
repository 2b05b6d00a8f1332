// For tests: a sequence run through a Transformer with textbook attention. Keys and values are kept whole in fp32,
// there are no blocks and no kernels of attention, so it can judge what is built on those.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "oasis/model/transformer.h"

namespace oasis::model {

class DenseRun {
 public:
  // `tap(layer, x)` sees the residual stream [rows, hidden] before each layer and, at layer == layers, after the last.
  using Tap = std::function<void(int layer, const std::vector<float>& x)>;

  // Changes one head's K or V of one token before it is kept: how a cache rounds it.
  using KvRow = std::function<void(std::span<float> row)>;

  DenseRun(Device& device, const Checkpoint& checkpoint, int64_t max_rows, KvRow kv_row = {})
      : stream_(device.foreground()),
        kv_row_(std::move(kv_row)),
        transformer_(Transformer::create(device, checkpoint, max_rows).value()),
        keys_(static_cast<size_t>(checkpoint.config().layers)),
        values_(keys_.size()) {}

  Transformer& transformer() { return transformer_; }
  int64_t position() const { return position_; }

  // Appends tokens in one call a layer; returns the residual stream after the last layer. [tokens, hidden]
  std::vector<float> run(std::span<const int32_t> tokens, const Tap& tap = {}) {
    const ModelConfig& c = transformer_.config();
    const int64_t rows = static_cast<int64_t>(tokens.size());
    const size_t q_cols = static_cast<size_t>(c.heads) * c.head_dim,
                 kv_cols = static_cast<size_t>(c.kv_heads) * c.head_dim;
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(position_));
    std::vector<float> x(tokens.size() * c.hidden), cos_sin(tokens.size() * c.head_dim);
    std::vector<float> q(tokens.size() * q_cols), k(tokens.size() * kv_cols), v(k.size()), attention(q.size());
    transformer_.embed(stream_, tokens.data(), rows, x.data());
    transformer_.rope_table(stream_, positions.data(), rows, cos_sin.data());
    for (int layer = 0; layer < c.layers; ++layer) {
      if (tap) tap(layer, x);
      transformer_.before_attention(stream_, layer, x.data(), cos_sin.data(), rows, q.data(), k.data(), v.data());
      for (size_t at = 0; kv_row_ && at < k.size(); at += static_cast<size_t>(c.head_dim)) {
        kv_row_(std::span(k).subspan(at, static_cast<size_t>(c.head_dim)));
        kv_row_(std::span(v).subspan(at, static_cast<size_t>(c.head_dim)));
      }
      keys_[layer].insert(keys_[layer].end(), k.begin(), k.end());
      values_[layer].insert(values_[layer].end(), v.begin(), v.end());
      for (int64_t row = 0; row < rows; ++row)
        for (int head = 0; head < c.heads; ++head)
          attend(layer, head, position_ + row, &q[row * q_cols], &attention[row * q_cols]);
      transformer_.after_attention(stream_, layer, attention.data(), rows, x.data());
    }
    if (tap) tap(c.layers, x);
    position_ += rows;
    return x;
  }

  // [rows, vocab] of the rows of x [rows, hidden].
  std::vector<float> logits(std::span<const float> x) {
    const size_t rows = x.size() / transformer_.config().hidden;
    std::vector<float> out(rows * transformer_.config().vocab);
    transformer_.logits(stream_, x.data(), static_cast<int64_t>(rows), out.data());
    return out;
  }

 private:
  void attend(int layer, int head, int64_t position, const float* q_row, float* out_row) {
    const ModelConfig& c = transformer_.config();
    const int d = c.head_dim, kv_head = head / (c.heads / c.kv_heads);
    const auto at = [&](const std::vector<float>& cache, int64_t p) { return &cache[(p * c.kv_heads + kv_head) * d]; };
    const float* q = q_row + head * d;
    std::vector<double> weight(static_cast<size_t>(position) + 1);
    for (int64_t p = 0; p <= position; ++p)
      weight[p] = std::inner_product(q, q + d, at(keys_[layer], p), 0.0f) / std::sqrt(static_cast<double>(d));
    const double peak = *std::max_element(weight.begin(), weight.end());
    double sum = 0;
    for (double& w : weight) sum += w = std::exp(w - peak);
    std::vector<double> mean(static_cast<size_t>(d));
    for (int64_t p = 0; p <= position; ++p)
      for (int i = 0; i < d; ++i) mean[i] += weight[p] / sum * at(values_[layer], p)[i];
    std::copy(mean.begin(), mean.end(), out_row + head * d);
  }

  Stream& stream_;
  KvRow kv_row_;
  Transformer transformer_;
  std::vector<std::vector<float>> keys_, values_;  // [layer][position, kv_heads, d]
  int64_t position_ = 0;
};

}  // namespace oasis::model
