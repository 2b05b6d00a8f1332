#include "oasis/kernels/score/score_rows.h"

#include <array>
#include <cstring>

#include "oasis/base/numeric.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kLanes = 8;  // partial sums; the compiler makes vectors of them

template <typename T>
float dot(const float* w, const std::byte* row, int64_t d, const auto& value) {
  const T* x = reinterpret_cast<const T*>(row);
  float sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += w[i + lane] * value(x[i + lane]);
  }
  for (; i < d; ++i) sum[0] += w[i] * value(x[i]);
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> v{};
    for (int i = 0; i < 256; ++i) v[static_cast<size_t>(i)] = to_float(fp8_e4m3{static_cast<uint8_t>(i)});
    return v;
  }();
  return values;
}

}  // namespace

void score_rows_bf16(const ScoreRows& r) {
  const auto value = [](bf16 x) { return to_float(x); };
  for (int64_t i = 0; i < r.blocks; ++i) r.scores[i] = dot<bf16>(r.weights, r.rows(i), 2 * r.head_dim, value);
}

void score_rows_fp8(const ScoreRows& r) {
  const auto value = [&table = fp8_values()](uint8_t x) { return table[x]; };
  for (int64_t i = 0; i < r.blocks; ++i) {
    const std::byte* rows = r.rows(i);
    float scale[2];
    std::memcpy(scale, rows, sizeof scale);
    const float upper = dot<uint8_t>(r.weights, rows + 8, r.head_dim, value);
    const float lower = dot<uint8_t>(r.weights + r.head_dim, rows + 8 + r.head_dim, r.head_dim, value);
    r.scores[i] = scale[0] * upper + scale[1] * lower;
  }
}

}  // namespace oasis::kernels
