#include "oasis/kernels/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/norm/norm_ref.h"

namespace oasis::kernels {
namespace {

struct Case {
  int64_t rows, cols, padding;
};
constexpr Case kCases[] = {{1, 1, 0}, {2, 576, 0}, {3, 64, 8}, {5, 13, 3}, {40, 128, 0}, {200, 576, 1}, {2, 4096, 0}};

std::vector<float> normal_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

class RmsNorm : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(GetParam()); }
  static void run(const RmsNormParams& p) {
    kernels_for(GetParam()).rms_norm(test_device(GetParam(), 2).foreground(), p);
  }
};

TEST_P(RmsNorm, EqualsItsDefinitionInFp64) {
  // The GPU's reciprocal square root is off by up to two units in the last place.
  const double tolerance = GetParam() == Backend::kCuda ? 1e-6 : 4e-7;
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.rows << " x " << c.cols);
    const int64_t stride = c.cols + c.padding;
    const std::vector<float> x = normal_floats(c.rows * stride, 1), weight = normal_floats(c.cols, 2);
    std::vector<float> got(c.rows * stride, 7.0f), want = got;
    RmsNormParams p{.x = x.data(),
                    .x_stride = stride,
                    .weight = weight.data(),
                    .eps = 1e-5f,
                    .y = got.data(),
                    .y_stride = stride,
                    .rows = c.rows,
                    .cols = c.cols};
    run(p);
    p.y = want.data();
    rms_norm_ref(p);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * std::abs(want[i])) << i;
  }
}

TEST_P(RmsNorm, MayWriteOverItsInput) {
  std::vector<float> x = normal_floats(3 * 100, 1), apart(x.size());
  const std::vector<float> weight = normal_floats(100, 2);
  RmsNormParams p{.x = x.data(),
                  .x_stride = 100,
                  .weight = weight.data(),
                  .eps = 1e-6f,
                  .y = apart.data(),
                  .y_stride = 100,
                  .rows = 3,
                  .cols = 100};
  run(p);
  p.y = x.data();
  run(p);
  EXPECT_EQ(x, apart);
}

TEST_P(RmsNorm, OfZerosIsZero) {
  std::vector<float> x(64, 0.0f), y(64, 1.0f);
  const std::vector<float> weight(64, 2.0f);
  run({.x = x.data(),
       .x_stride = 64,
       .weight = weight.data(),
       .eps = 1e-5f,
       .y = y.data(),
       .y_stride = 64,
       .rows = 1,
       .cols = 64});
  EXPECT_EQ(y, x);
}

INSTANTIATE_TEST_SUITE_P(Backends, RmsNorm, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
