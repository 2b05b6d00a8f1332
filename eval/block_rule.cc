#include "eval/block_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oasis/base/numeric.h"
#include "oasis/lookahead/kv_core.h"

namespace oasis::eval {
namespace {

// The blocks of one layer and KV head.
struct HeadState {
  std::vector<float> boxes;   // [block, box, {upper, lower}, head_dim], as they come back from their encoding
  std::vector<int64_t> last;  // [block]: step in which it was last chosen; -1: not in the cache
  int64_t cached = 0, step = 0;
};

float rounded(float x, float scale, BlockRule::Rows rows) {
  if (rows == BlockRule::Rows::kBf16) return to_float(to_bf16(x));
  if (rows == BlockRule::Rows::kFp8) return to_float(to_fp8_e4m3(x / scale)) * scale;
  return std::round(x / scale) * scale;
}

void encode(std::span<float> row, BlockRule::Rows rows) {
  float top = 1e-20f;
  for (const float x : row) top = std::max(top, std::abs(x));
  const float scale = top / (rows == BlockRule::Rows::kFp8 ? 448.0f : 7.0f);
  for (float& x : row) x = rounded(x, scale, rows);
}

// The first `count` of 0 .. values.size()-1 by value, ties: the lower one.
std::vector<int32_t> best(const std::vector<double>& values, size_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(count), order.end(), better);
  order.resize(count);
  return order;
}

class Study {
 public:
  explicit Study(BlockRule rule) : rule_(std::move(rule)) {}
  void rank(const lookahead::RowRanking& row);
  void finish(Json& sums) {
    sums.update({{"mass", mass_},
                 {"ideal_mass", ideal_},
                 {"mass_count", mass_count_},
                 {"lru_misses", misses_},
                 {"lru_steps", lru_steps_}});
    *this = Study(rule_);
  }

 private:
  struct Shape {
    int32_t block_size, head_dim, group;
  };
  std::vector<float> keys(const lookahead::RowRanking& row, int32_t head, int32_t block) const;
  void add_box(HeadState& head, const std::vector<float>& keys) const;
  std::vector<double> scores(const HeadState& head, const float* q, size_t candidates) const;
  double score(const HeadState& head, size_t block, const float* up, const float* down) const;
  void measure_mass(const lookahead::RowRanking& row, int32_t head, const float* q, std::span<const int32_t> chosen);
  void ask_cache(HeadState& head, std::span<const int32_t> chosen, int32_t limit);

  BlockRule rule_;
  Shape shape_ = {};
  std::vector<HeadState> heads_;  // [layer, kv_head]
  double mass_ = 0, ideal_ = 0;
  int64_t mass_count_ = 0, misses_ = 0, lru_steps_ = 0;
};

// [token, head_dim]: a sealed block's keys, from its home.
std::vector<float> Study::keys(const lookahead::RowRanking& row, int32_t head, int32_t block) const {
  const auto& kv = row.core.config().shape;
  const kv::PartKey key{row.core.sequence(row.sequence).homes[static_cast<size_t>(block)], row.layer};
  kv::Tier& tier = row.core.homes().tier();
  const std::byte* part = tier.acquire(key);
  OASIS_CHECK(part, "block {} is not in DRAM", block);
  const auto* k = reinterpret_cast<const bf16*>(part + head * kv.block_head_bytes());
  std::vector<float> out(static_cast<size_t>(shape_.block_size) * static_cast<size_t>(shape_.head_dim));
  for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(k[i]);
  tier.release(key);
  return out;
}

void Study::add_box(HeadState& head, const std::vector<float>& keys) const {
  const auto d = static_cast<size_t>(shape_.head_dim);
  const size_t tokens = static_cast<size_t>(shape_.block_size) / static_cast<size_t>(rule_.boxes);
  for (size_t begin = 0; begin < static_cast<size_t>(shape_.block_size); begin += tokens) {
    std::vector<float> upper(d), lower(d);
    for (size_t i = 0; i < d; ++i) {
      float high = keys[begin * d + i], low = high;
      for (size_t t = begin; t < begin + tokens; ++t) {
        high = std::max(high, keys[t * d + i]), low = std::min(low, keys[t * d + i]);
      }
      const float middle = (high + low) / 2, half = rule_.beta * (high - low) / 2;
      upper[i] = middle + half, lower[i] = middle - half;
    }
    encode(upper, rule_.rows), encode(lower, rule_.rows);
    head.boxes.insert(head.boxes.end(), upper.begin(), upper.end());
    head.boxes.insert(head.boxes.end(), lower.begin(), lower.end());
  }
  head.last.push_back(-1);
}

// up . upper - down . lower of the block's best box.
double Study::score(const HeadState& head, size_t block, const float* up, const float* down) const {
  const auto d = static_cast<size_t>(shape_.head_dim);
  float top = -INFINITY;
  for (size_t box = 0; box < static_cast<size_t>(rule_.boxes); ++box) {
    const float* rows = &head.boxes[(block * static_cast<size_t>(rule_.boxes) + box) * 2 * d];
    float sum = 0;
    for (size_t i = 0; i < d; ++i) sum += up[i] * rows[i] - down[i] * rows[d + i];
    top = std::max(top, sum);
  }
  return top;
}

std::vector<double> Study::scores(const HeadState& head, const float* q, size_t candidates) const {
  const auto d = static_cast<size_t>(shape_.head_dim), group = static_cast<size_t>(shape_.group);
  std::vector<double> out(candidates), one(candidates);
  std::vector<float> up(d), down(d);
  for (size_t g = 0; g < group; ++g) {
    if (rule_.prob) std::fill(up.begin(), up.end(), 0.0f), std::fill(down.begin(), down.end(), 0.0f);
    for (size_t i = 0; i < d; ++i) up[i] += std::max(0.0f, q[g * d + i]), down[i] += std::max(0.0f, -q[g * d + i]);
    if (!rule_.prob && g + 1 < group) continue;
    for (size_t b = 0; b < candidates; ++b) one[b] = score(head, b, up.data(), down.data());
    if (!rule_.prob) return one;
    const double top = *std::max_element(one.begin(), one.end());
    double sum = 0;
    for (double& v : one) sum += v = std::exp((v - top) / std::sqrt(static_cast<double>(d)));
    for (size_t b = 0; b < candidates; ++b) out[b] += one[b] / sum;
  }
  return out;
}

void Study::measure_mass(const lookahead::RowRanking& row, int32_t head, const float* q,
                         std::span<const int32_t> chosen) {
  const auto d = static_cast<size_t>(shape_.head_dim), group = static_cast<size_t>(shape_.group);
  const auto candidates = static_cast<size_t>(row.candidates), tokens = static_cast<size_t>(shape_.block_size);
  std::vector<float> logit(group * candidates * tokens);  // [query head, token]
  for (size_t b = 0; b < candidates; ++b) {
    const auto k = keys(row, head, static_cast<int32_t>(b));
    for (size_t g = 0; g < group; ++g) {
      for (size_t t = 0; t < tokens; ++t) {
        float sum = 0;
        for (size_t i = 0; i < d; ++i) sum += q[g * d + i] * k[t * d + i];
        logit[(g * candidates + b) * tokens + t] = sum / std::sqrt(static_cast<float>(d));
      }
    }
  }
  std::vector<double> mass(candidates);  // of the group together
  for (size_t g = 0; g < group; ++g) {
    const std::span<const float> own(&logit[g * candidates * tokens], candidates * tokens);
    const float top = *std::max_element(own.begin(), own.end());
    std::vector<double> block(candidates);
    for (size_t i = 0; i < own.size(); ++i) block[i / tokens] += std::exp(own[i] - top);
    const double all = std::accumulate(block.begin(), block.end(), 0.0);
    for (size_t b = 0; b < candidates; ++b) mass[b] += block[b] / all;
  }
  for (const int32_t b : chosen) mass_ += mass[static_cast<size_t>(b)];
  for (const int32_t b : best(mass, chosen.size())) ideal_ += mass[static_cast<size_t>(b)];
  mass_count_ += shape_.group;
}

// The cache starts with the first choice, at no cost.
void Study::ask_cache(HeadState& head, std::span<const int32_t> chosen, int32_t limit) {
  for (const int32_t b : chosen) {
    int64_t& last = head.last[static_cast<size_t>(b)];
    if (last < 0) ++head.cached, misses_ += head.step > 0;
    last = head.step;
  }
  for (; head.cached > limit; --head.cached) {
    auto oldest = head.last.end();
    for (auto at = head.last.begin(); at != head.last.end(); ++at) {
      if (*at >= 0 && (oldest == head.last.end() || *at < *oldest)) oldest = at;
    }
    *oldest = -1;
  }
  lru_steps_ += head.step > 0;
}

void Study::rank(const lookahead::RowRanking& row) {
  const auto& config = row.core.config();
  const int32_t kv_heads = config.shape.kv_heads;
  shape_ = {config.shape.block_size, config.shape.head_dim, config.q_per_kv};
  heads_.resize(static_cast<size_t>(config.shape.layers * kv_heads));
  for (int32_t h = 0; h < kv_heads; ++h) {
    HeadState& head = heads_[static_cast<size_t>(row.layer * kv_heads + h)];
    for (auto b = static_cast<int32_t>(head.last.size()); b < row.candidates; ++b) add_box(head, keys(row, h, b));
    const float* q = row.q + int64_t{h} * config.q_per_kv * config.shape.head_dim;
    auto value = scores(head, q, static_cast<size_t>(row.candidates));
    if (rule_.pin_first) value[0] = INFINITY;
    auto count = static_cast<size_t>(row.counts[h]);
    if (rule_.residents_only) {
      std::vector<double> there(value.size(), -INFINITY);
      for (const auto& [block, last] : row.core.residents(row.sequence, row.layer, h)) {
        if (block < row.candidates) there[static_cast<size_t>(block)] = value[static_cast<size_t>(block)];
      }
      value = std::move(there);
    }
    const auto chosen = best(value, count);
    std::copy(chosen.begin(), chosen.end(), row.blocks + h * row.stride);
    if (!rule_.residents_only && head.step % 4 == 0) measure_mass(row, h, q, chosen);
    ask_cache(head, chosen, config.resident_blocks);
    ++head.step;
  }
}

}  // namespace

Variant with_rule(Variant base, const BlockRule& rule) {
  const auto study = std::make_shared<Study>(rule);
  base.name = rule.name;
  base.config.fetch = lookahead::FetchMode::kExact;
  base.config.accept_drafts = false;
  base.config.hooks.rank = [study](const lookahead::RowRanking& row) { study->rank(row); };
  base.finish = [study](Json& sums) { study->finish(sums); };
  return base;
}

}  // namespace oasis::eval
