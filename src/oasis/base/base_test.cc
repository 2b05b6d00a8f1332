#include <gtest/gtest.h>

#include "oasis/base/numeric.h"
#include "oasis/base/units.h"

namespace oasis {
namespace {

TEST(Units, ASizeIsReadWithItsUnit) {
  EXPECT_EQ(*parse_bytes("64MiB"), 64ull << 20);
  EXPECT_EQ(*parse_bytes("1.5GiB"), 3ull << 29);
  EXPECT_EQ(*parse_bytes("4096"), 4096u);
  EXPECT_EQ(*parse_bytes("2GB"), 2000000000u);
  EXPECT_EQ(*parse_bytes("16k"), 16384u);
}

TEST(Units, AWrongSizeIsAnErrorThatNamesIt) {
  for (const char* text : {"", "MiB", "-1", "12 parsecs", "1e30GiB", "nan"}) {
    const auto r = parse_bytes(text);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_NE(r.status().message().find(text), std::string::npos);
  }
}

TEST(Units, BytesAreWrittenWithThreeDigits) {
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(98362432), "93.8 MiB");
  EXPECT_EQ(format_bytes(17), "17 B");
}

TEST(Numeric, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const fp16 h{static_cast<uint16_t>(bits)};
    const float f = to_float(h);
    if (std::isnan(f)) continue;
    EXPECT_EQ(to_fp16(f).bits, h.bits);
    const bf16 b{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(b))) {
      EXPECT_EQ(to_bf16(to_float(b)).bits, b.bits);
    }
  }
}

TEST(Numeric, EveryFp8SurvivesTheRoundTripAndTheRestRoundsToTheNearest) {
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    const fp8_e4m3 x{static_cast<uint8_t>(bits)};
    if (!std::isnan(to_float(x))) {
      EXPECT_EQ(to_fp8_e4m3(to_float(x)).bits, x.bits);
    }
  }
  for (float f = -500; f < 500; f += 0.0371f) {
    const float got = to_float(to_fp8_e4m3(f));
    float best = 1e9f;
    for (uint32_t bits = 0; bits < 0x100; ++bits) {
      const float y = to_float(fp8_e4m3{static_cast<uint8_t>(bits)});
      if (!std::isnan(y) && std::fabs(y - f) < std::fabs(best - f)) best = y;
    }
    EXPECT_EQ(std::fabs(got - f), std::fabs(best - f)) << f;
  }
}

}  // namespace
}  // namespace oasis
