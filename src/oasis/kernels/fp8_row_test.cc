#include "oasis/kernels/fp8_row.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "oasis/kernels/fp8_row_ref.h"

namespace oasis::kernels {
namespace {

std::vector<bf16> as_bf16(const std::vector<double>& row) {
  std::vector<bf16> out;
  for (const double x : row) out.push_back(to_bf16(static_cast<float>(x)));
  return out;
}

std::vector<double> as_double(const std::vector<bf16>& row) {
  std::vector<double> out;
  for (const bf16 x : row) out.push_back(to_float(x));
  return out;
}

std::vector<bf16> through_fp8(const std::vector<bf16>& row) {
  const auto d = static_cast<int64_t>(row.size());
  std::vector<uint8_t> bytes(row.size());
  std::vector<bf16> out(row.size());
  const uint8_t scale = write_fp8_row(row.data(), d, bytes.data());
  read_fp8_row(bytes.data(), scale, d, out.data());
  return out;
}

std::vector<std::vector<bf16>> rows() {
  std::vector<std::vector<bf16>> rows;
  std::mt19937 random(3);
  for (int r = 0; r < 300; ++r) {
    std::normal_distribution<double> normal(0, std::ldexp(1, r - 150 > -120 ? std::min(r - 150, 120) : -120));
    std::vector<double> row;
    for (int i = 0; i < 40; ++i) row.push_back(normal(random) * (i % 7 == 0 ? 0.001 : 1));
    rows.push_back(as_bf16(row));
  }
  for (const double peak : {447.0, 448.0, 449.0, 1.75, 1.7578125, 1.0, 0.0, 3e38})
    rows.push_back(as_bf16({peak, -peak / 3, peak / 1000, -peak / 40000, 0}));
  return rows;
}

TEST(Fp8Row, AValueIsTheNearestThatTheSmallestFittingScaleHas) {
  for (const auto& row : rows()) EXPECT_EQ(as_double(through_fp8(row)), fp8_row_ref(as_double(row)));
}

TEST(Fp8Row, ValuesThatCameOutGoInAgainUnchanged) {
  for (const auto& row : rows()) {
    const auto once = through_fp8(row);
    EXPECT_EQ(as_double(through_fp8(once)), as_double(once));
  }
}

TEST(Fp8Row, ARowWithANaNOrAnInfinityIsNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const bf16 x : through_fp8({to_bf16(1.0f), to_bf16(bad), to_bf16(0.0f)})) {
      EXPECT_TRUE(std::isnan(to_float(x)));
    }
  }
}

}  // namespace
}  // namespace oasis::kernels
