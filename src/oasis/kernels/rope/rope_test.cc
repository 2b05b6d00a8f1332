#include "oasis/kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/rope/rope_ref.h"

namespace oasis::kernels {
namespace {

std::vector<double> frequencies(int64_t head_dim, double base) {
  std::vector<double> f;
  for (int64_t i = 0; i < head_dim / 2; ++i) f.push_back(std::pow(base, -2.0 * static_cast<double>(i) / head_dim));
  return f;
}

std::vector<float> normal_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

struct Case {
  int64_t head_dim, heads;
  std::vector<int32_t> positions;
};

std::vector<Case> cases() {
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 300; ++i) many.push_back(40 * i);
  return {{64, 9, {0, 1}}, {64, 3, {7500, 7501, 131071}}, {80, 2, {17}}, {10, 3, {5, 6}}, {128, 4, many},
          {256, 1, {9}}};
}

class RopeTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(GetParam()); }
  static void table_of(const RopeTableParams& p) {
    kernels_for(GetParam()).rope_table(test_device(GetParam(), 2).foreground(), p);
  }
  static void run(const RopeParams& p) { kernels_for(GetParam()).rope(test_device(GetParam(), 2).foreground(), p); }
};
class RopeTable : public RopeTest {};
class Rope : public RopeTest {};

TEST_P(RopeTable, IsExactToAFloatAtLargePositions) {
  for (const Case& c : cases()) {
    const std::vector<double> f = frequencies(c.head_dim, 1e5);
    const auto rows = static_cast<int64_t>(c.positions.size());
    std::vector<float> got(rows * c.head_dim), want = got;
    RopeTableParams p{.frequencies = f.data(),
                      .scale = 1.25f,
                      .positions = c.positions.data(),
                      .rows = rows,
                      .head_dim = c.head_dim,
                      .cos_sin = got.data()};
    table_of(p);
    p.cos_sin = want.data();
    rope_table_ref(p);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_FLOAT_EQ(got[i], want[i]) << i;
  }
}

TEST_P(RopeTable, TreatsAMaskedRowAsPositionZero) {
  const std::vector<double> f = frequencies(64, 1e4);
  const int32_t position = -1;
  std::vector<float> table(64, 9.0f);
  table_of({.frequencies = f.data(), .positions = &position, .rows = 1, .head_dim = 64, .cos_sin = table.data()});
  EXPECT_EQ(std::vector<float>(table.begin(), table.begin() + 32), std::vector<float>(32, 1.0f));
  EXPECT_EQ(std::vector<float>(table.begin() + 32, table.end()), std::vector<float>(32, 0.0f));
}

TEST_P(Rope, TurnsPairsOfBothOrdersIntoHalfSplitHeads) {
  for (const Case& c : cases()) {
    for (bool interleaved : {false, true}) {
      const auto rows = static_cast<int64_t>(c.positions.size());
      const int64_t x_stride = c.heads * c.head_dim + 4, y_stride = c.heads * c.head_dim + 2;
      const std::vector<double> f = frequencies(c.head_dim, 1e4);
      std::vector<float> table(rows * c.head_dim);
      table_of({.frequencies = f.data(),
                .positions = c.positions.data(),
                .rows = rows,
                .head_dim = c.head_dim,
                .cos_sin = table.data()});
      const std::vector<float> x = normal_floats(rows * x_stride, 3);
      std::vector<float> got(rows * y_stride, 5.0f), want = got;
      RopeParams p{.x = x.data(),
                   .x_stride = x_stride,
                   .cos_sin = table.data(),
                   .interleaved = interleaved,
                   .y = got.data(),
                   .y_stride = y_stride,
                   .rows = rows,
                   .heads = c.heads,
                   .head_dim = c.head_dim};
      run(p);
      p.y = want.data();
      rope_ref(p);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << c.head_dim << " element " << i;
    }
  }
}

TEST_P(Rope, OfHalfSplitHeadsMayWriteOverItsInput) {
  std::vector<float> x = normal_floats(2 * 128, 4), apart(x.size());
  const std::vector<float> table = normal_floats(2 * 64, 5);
  RopeParams p{.x = x.data(),
               .x_stride = 128,
               .cos_sin = table.data(),
               .y = apart.data(),
               .y_stride = 128,
               .rows = 2,
               .heads = 2,
               .head_dim = 64};
  run(p);
  p.y = x.data();
  run(p);
  EXPECT_EQ(x, apart);
}

INSTANTIATE_TEST_SUITE_P(Backends, RopeTable, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);
INSTANTIATE_TEST_SUITE_P(Backends, Rope, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
