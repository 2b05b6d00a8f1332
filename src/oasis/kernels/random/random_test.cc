#include "oasis/kernels/random/random.h"

#include <gtest/gtest.h>

#include <vector>

#include "oasis/kernels/kernels.h"

namespace oasis::kernels {
namespace {

std::vector<uint16_t> fill(Device& device, int64_t count, uint64_t first) {
  std::vector<bf16> out(static_cast<size_t>(count));
  kernels_for(device.backend())
      .fill_random(device.foreground(),
                   {.out = out.data(), .count = count, .seed = 7, .first = first, .half_width = 3});
  std::vector<uint16_t> bits;
  for (const bf16 x : out) bits.push_back(x.bits);
  return bits;
}

TEST(FillRandom, IsUniformAndTheSameInAnyPieces) {
  const auto device = make_cpu_device(2);
  const auto all = fill(*device, 200'000, 0), rest = fill(*device, 150'000, 50'000);
  EXPECT_EQ(std::vector<uint16_t>(all.begin() + 50'000, all.end()), rest);
  double sum = 0, squares = 0;
  for (const uint16_t bits : all) {
    const double x = to_float(bf16{bits});
    ASSERT_LE(std::abs(x), 3);
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / 200'000, 0, 0.02);
  EXPECT_NEAR(squares / 200'000, 3, 0.03);
}

TEST(FillRandom, GivesTheSameNumbersOnTheGpu) {
  const auto gpu = make_cuda_device(0);
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  const auto device = make_cpu_device(1);
  EXPECT_EQ(fill(**gpu, 100'001, 5), fill(*device, 100'001, 5));
}

}  // namespace
}  // namespace oasis::kernels
