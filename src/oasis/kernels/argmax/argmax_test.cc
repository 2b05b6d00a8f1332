#include "oasis/kernels/argmax/argmax.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "oasis/kernels/kernels.h"

namespace oasis::kernels {
namespace {

void check(Device& device) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  constexpr int64_t kCols = 5000;
  std::vector<std::vector<float>> rows(6, std::vector<float>(kCols, -3));
  rows[0][4999] = 1;
  rows[1][17] = rows[1][18] = rows[1][4000] = 2;  // ties: the lower index
  rows[2][0] = kNan, rows[2][3] = -1;
  rows[3].assign(kCols, kNan);
  rows[4].assign(kCols, -kInf);
  rows[5][1234] = kInf, rows[5][1] = kNan;
  std::vector<float> x;
  for (const auto& row : rows) x.insert(x.end(), row.begin(), row.end());
  std::vector<int32_t> best(rows.size(), -7);
  kernels_for(device.backend())
      .argmax(device.foreground(),
              {.x = x.data(), .rows = static_cast<int64_t>(rows.size()), .cols = kCols, .best = best.data()});
  EXPECT_EQ(best, (std::vector<int32_t>{4999, 17, 3, -1, 0, 1234}));
}

TEST(Argmax, TakesTheLowestOfTheLargestAndNoNan) { check(*make_cpu_device(2)); }

TEST(Argmax, DoesTheSameOnTheGpu) {
  const auto gpu = make_cuda_device(0);
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  check(**gpu);
}

}  // namespace
}  // namespace oasis::kernels
