#include "oasis/kernels/window_lists/window_lists.h"

#include <gtest/gtest.h>

#include <vector>

#include "oasis/kernels/kernels.h"

namespace oasis::kernels {
namespace {

void check(Device& device) {
  const std::vector<int32_t> positions{0, 15, 16, 500, 505}, begin{0, 0, 0, 0, 30}, page{100, 200, 300, 400, 500};
  constexpr int64_t kHeads = 3;
  constexpr int32_t kWindow = 5, kRing = 8;
  std::vector<ListEntry> entries(5 * kHeads * kWindow, {-7, -7});
  std::vector<int32_t> count(5 * kHeads, -7);
  kernels_for(device.backend())
      .window_lists(device.foreground(), {.rows = 5,
                                          .kv_heads = kHeads,
                                          .block_size = 16,
                                          .window_blocks = kWindow,
                                          .ring_pages = kRing,
                                          .positions = positions.data(),
                                          .begin_block = begin.data(),
                                          .first_page = page.data(),
                                          .entries = entries.data(),
                                          .entry_count = count.data()});
  const std::vector<std::vector<int32_t>> want{{0}, {0}, {0, 1}, {27, 28, 29, 30, 31}, {30, 31}};
  for (size_t r = 0; r < want.size(); ++r) {
    for (size_t h = 0; h < kHeads; ++h) {
      const size_t list = r * kHeads + h;
      ASSERT_EQ(count[list], static_cast<int32_t>(want[r].size()));
      for (size_t i = 0; i < static_cast<size_t>(kWindow); ++i) {
        const ListEntry& e = entries[list * kWindow + i];
        EXPECT_EQ(e.block, i < want[r].size() ? want[r][i] : -7);
        EXPECT_EQ(e.page, i < want[r].size() ? page[r] + want[r][i] % kRing : -7);
      }
    }
  }
}

TEST(WindowLists, HoldTheLastBlocksOfEachRow) { check(*make_cpu_device(1)); }

TEST(WindowLists, HoldTheSameOnTheGpu) {
  const auto gpu = make_cuda_device(0);
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  check(**gpu);
}

}  // namespace
}  // namespace oasis::kernels
