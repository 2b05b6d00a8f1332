// For tests: the forward pass of an EAGLE-3 head written from its definition, one row at a time in fp32 and fp64.
#pragma once

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace oasis::draft {

class Fp32Head {
 public:
  using Vector = std::vector<float>;

  // Weights by their names, `midlayer.` for the layer; absent ones are empty.
  std::map<std::string, Vector> w;
  Vector embed;  // [vocab, hidden]
  int hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 1e-5;
  std::vector<double> frequencies;  // [head_dim / 2]
  bool norm_before_residual = false, norm_output = false;

  struct Out {
    Vector next_feature, logits;
  };

  // The fused feature of concatenated taps.
  Vector feature(Vector taps) {
    const size_t width = taps.size() / tap_count;
    for (int tap = 0; tap < tap_count; ++tap)
      if (const Vector& weight = w["fc_norm." + std::to_string(tap) + ".weight"]; !weight.empty()) {
        const Vector normed = norm(Vector(taps.begin() + tap * width, taps.begin() + (tap + 1) * width), weight);
        std::copy(normed.begin(), normed.end(), taps.begin() + tap * width);
      }
    if (!w["input_norm.weight"].empty()) taps = norm(taps, w["input_norm.weight"]);
    return linear("fc", taps);
  }

  // The row at `position`, which sees rows from `first` on; its K and V replace what is there and what comes after.
  Out row(int token, const Vector& f, int position, int first = 0) {
    const std::string a = "midlayer.self_attn.", m = "midlayer.mlp.";
    const Vector e = norm(Vector(embed.begin() + int64_t{token} * hidden, embed.begin() + int64_t{token + 1} * hidden),
                          w["midlayer.input_layernorm.weight"]);
    const Vector g = norm(f, w["midlayer.hidden_norm.weight"]);
    Vector x = e;
    x.insert(x.end(), g.begin(), g.end());
    keys.resize(position);
    values.resize(position);
    const Vector q = rotate(head_norm(linear(a + "q_proj", x), w[a + "q_norm.weight"]), position);
    keys.push_back(rotate(head_norm(linear(a + "k_proj", x), w[a + "k_norm.weight"]), position));
    values.push_back(linear(a + "v_proj", x));

    Vector read(q.size());
    for (int head = 0; head < heads; ++head) {
      const int at = head / (heads / kv_heads) * head_dim;
      std::vector<double> weight;
      for (int p = first; p <= position; ++p)
        weight.push_back(std::exp(std::inner_product(&keys[p][at], &keys[p][at] + head_dim, &q[head * head_dim], 0.0) /
                                  std::sqrt(double(head_dim))));
      const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (int p = first; p <= position; ++p)
        for (int i = 0; i < head_dim; ++i)
          read[head * head_dim + i] += float(weight[p - first] / sum * values[p][at + i]);
    }
    Vector h = add(norm_before_residual ? g : f, linear(a + "o_proj", read));
    const Vector n = norm(h, w["midlayer.post_attention_layernorm.weight"]);
    Vector inner = linear(m + "gate_proj", n);
    const Vector up = linear(m + "up_proj", n);
    for (size_t i = 0; i < inner.size(); ++i) inner[i] *= up[i] / (1 + std::exp(-inner[i]));
    h = add(h, linear(m + "down_proj", inner));
    const Vector out = norm(h, w["norm.weight"]);
    return {norm_output ? out : h, linear("lm_head", out)};
  }

  int tap_count = 3;

 private:
  std::vector<Vector> keys, values;  // [position][kv_heads * d]

  static Vector add(Vector x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    return x;
  }
  Vector norm(Vector x, const Vector& weight) const {
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(x[i] / std::sqrt(squares / x.size() + eps) * weight[i]);
    return x;
  }
  Vector head_norm(Vector x, const Vector& weight) const {
    if (weight.empty()) return x;
    for (size_t at = 0; at < x.size(); at += head_dim) {
      const Vector y = norm(Vector(x.begin() + at, x.begin() + at + head_dim), weight);
      std::copy(y.begin(), y.end(), x.begin() + at);
    }
    return x;
  }
  Vector rotate(Vector x, int position) const {
    for (size_t at = 0; at < x.size(); at += head_dim)
      for (int j = 0; j < head_dim / 2; ++j) {
        const double angle = position * frequencies[j], a = x[at + j], b = x[at + j + head_dim / 2];
        x[at + j] = float(a * std::cos(angle) - b * std::sin(angle));
        x[at + j + head_dim / 2] = float(b * std::cos(angle) + a * std::sin(angle));
      }
    return x;
  }
  Vector linear(const std::string& name, const Vector& x) {
    constexpr size_t kLanes = 16;
    const Vector &weight = w[name + ".weight"], &bias = w[name + ".bias"];
    Vector y(weight.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      const float* row = &weight[o * x.size()];
      float lanes[kLanes] = {};
      for (size_t i = 0; i + kLanes <= x.size(); i += kLanes)
        for (size_t l = 0; l < kLanes; ++l) lanes[l] += row[i + l] * x[i + l];
      y[o] = std::accumulate(lanes, lanes + kLanes, bias.empty() ? 0.0f : bias[o]);
    }
    return y;
  }
};

}  // namespace oasis::draft
