#include "oasis/kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/swiglu/swiglu_ref.h"

namespace oasis::kernels {
namespace {

// What computes: the GPU, or the CPU with an instruction set.
class SwigluOn : public OnTarget {
 protected:
  static void run(const SwigluParams& p) {
    const Backend backend = GetParam().backend;
    kernels_for(backend).swiglu(test_device(backend, 2).foreground(), p);
  }
};

TEST_P(SwigluOn, IsWithinTwoMillionthsOfFp64Within20OfZero) {
  for (int64_t count : {1, 7, 8, 1536, 3072, 50001}) {
    std::vector<float> gate(count), up(count), got(count), want(count);
    for (int64_t i = 0; i < count; ++i) {
      gate[i] = -20.0f + 40.0f * static_cast<float>(i) / static_cast<float>(count);
      up[i] = 1.5f - static_cast<float>(i % 7);
    }
    SwigluParams p{.gate = gate.data(), .up = up.data(), .y = got.data(), .count = count};
    run(p);
    p.y = want.data();
    swiglu_ref(p);
    for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(got[i], want[i], 1.5e-6 * std::abs(want[i])) << "gate " << gate[i];
  }
}

TEST_P(SwigluOn, StaysFiniteFarOutAndPassesNanOn) {
  const std::vector<float> gate{-3e38f, -1000, -90, 90, 1000, 3e38f, 0, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> up(8, 1.0f);
  std::vector<float> y(8);
  run({.gate = gate.data(), .up = up.data(), .y = y.data(), .count = 8});
  for (int i : {1, 2, 6}) EXPECT_NEAR(y[i], 0, 1e-34) << gate[i];
  for (int i : {3, 4, 5}) EXPECT_EQ(y[i], gate[i]);
  EXPECT_TRUE(std::isfinite(y[0]));
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST_P(SwigluOn, MayWriteOverItsGateOrItsUp) {
  std::vector<float> gate(100), up(100), apart(100);
  for (int i = 0; i < 100; ++i) gate[i] = .1f * static_cast<float>(i) - 5, up[i] = static_cast<float>(i);
  std::vector<float> over_gate = gate, over_up = up;
  run({.gate = gate.data(), .up = up.data(), .y = apart.data(), .count = 100});
  run({.gate = over_gate.data(), .up = up.data(), .y = over_gate.data(), .count = 100});
  run({.gate = gate.data(), .up = over_up.data(), .y = over_up.data(), .count = 100});
  EXPECT_EQ(over_gate, apart);
  EXPECT_EQ(over_up, apart);
}

INSTANTIATE_TEST_SUITE_P(Targets, SwigluOn, all_targets(), target_name);

}  // namespace
}  // namespace oasis::kernels
