#include "oasis/kv/host_memory.h"

#include <gtest/gtest.h>

#include "oasis/base/units.h"
#include "oasis/kv/tier.h"

namespace oasis::kv {
namespace {

TEST(HostMemory, AnArenaIsZeroedAndOnAPageBorder) {
  const HostArena arena = HostArena::create("test", 10'000).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % 4096, 0u);
  for (int64_t i = 0; i < arena.bytes(); ++i) ASSERT_EQ(arena.data()[i], std::byte{0});
}

// case 23
TEST(HostMemory, MoreThanTheMachineOrItsControlGroupHasIsRefusedWithBothNumbers) {
  const int64_t limit = host_memory_limit_bytes(), asked = 3 * limit;
  EXPECT_GT(limit, 0);
  const Status status = HostArena::create("arena", asked).status();
  ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(format_bytes(limit)), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(format_bytes(asked)), std::string::npos) << status.message();

  const TierConfig config{.shape = {.layers = 1, .kv_heads = 1, .head_dim = 128}};
  EXPECT_EQ(make_dram_tier(config, asked).status().code(), StatusCode::kResourceExhausted);
}

TEST(DramTier, TakesWhatItsHomesTakeAndNotMoreThanItIsGiven) {
  const TierConfig config{.shape = {.layers = 3, .kv_heads = 2, .head_dim = 64}, .extra_bytes = 100};
  const int64_t one = dram_home_bytes(config);
  EXPECT_GE(one, config.shape.page_bytes() + config.shape.summary_page_bytes() + 100);
  EXPECT_LT(one, config.shape.page_bytes() + config.shape.summary_page_bytes() + 100 + 64 + 4 * 64);
  const auto tier = make_dram_tier(config, 7 * one + one / 2).value();
  EXPECT_EQ(tier->homes(), 7);
  EXPECT_EQ(tier->memory_bytes(), 7 * one);
  const Status status = make_dram_tier(config, one - 1).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(std::to_string(one)), std::string::npos) << status.message();
}

}  // namespace
}  // namespace oasis::kv
