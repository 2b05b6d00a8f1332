#include "oasis/kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "oasis/base/numeric.h"

namespace oasis::kv {
namespace {

KvShape small_shape() { return {.layers = 3, .kv_heads = 2, .head_dim = 8, .block_size = 4, .type = KvType::kBf16}; }

TEST(PageAllocator, HandsOutEveryPageOnceAndThenNone) {
  PageAllocator pages(5);
  std::set<int32_t> seen;
  for (int i = 0; i < 5; ++i) seen.insert(pages.allocate());
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pages.allocate(), -1);
  EXPECT_EQ(pages.in_use_peak(), 5);
}

TEST(PageAllocator, AFreedPageComesBackOnlyWhenItsStepIsReleased) {
  PageAllocator pages(1);
  const int32_t page = pages.allocate();
  pages.unref(page, 7);
  EXPECT_EQ(pages.allocate(), -1);
  pages.release_through(6);
  EXPECT_EQ(pages.allocate(), -1);
  EXPECT_EQ(pages.deferred(), 1);
  pages.release_through(7);
  EXPECT_EQ(pages.allocate(), page);
}

TEST(PageAllocator, APageIsFreedByItsLastReference) {
  PageAllocator pages(1);
  const int32_t page = pages.allocate();
  pages.ref(page);
  pages.unref(page, 1);
  pages.release_through(1);
  EXPECT_EQ(pages.available(), 0);
  EXPECT_EQ(pages.refs(page), 1);
  pages.unref(page, 2);
  pages.release_through(2);
  EXPECT_EQ(pages.available(), 1);
}

TEST(PageAllocatorDeathTest, GivingUpAPageTwiceAborts) {
  PageAllocator pages(2);
  const int32_t page = pages.allocate();
  pages.unref(page, 0);
  EXPECT_DEATH(pages.unref(page, 0), "nobody holds");
}

TEST(PageAllocator, StaysIntactThroughRandomUse) {
  std::mt19937 random(1);
  PageAllocator pages(20);
  std::vector<int32_t> held;  // one entry a reference
  for (int64_t step = 0; step < 5000; ++step) {
    const auto pick = held.empty() ? 0 : random() % held.size();
    switch (random() % 4) {
      case 0:
        if (const int32_t page = pages.allocate(); page >= 0) {
          EXPECT_EQ(std::ranges::count(held, page), 0);
          held.push_back(page);
        }
        break;
      case 1:
        if (held.empty()) break;
        pages.ref(held[pick]);
        held.push_back(held[pick]);
        break;
      case 2:
        if (held.empty()) break;
        pages.unref(held[pick], step);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
        break;
      default:
        pages.release_through(step - 3);
    }
    ASSERT_TRUE(pages.check_integrity().ok()) << pages.check_integrity().message();
  }
  while (!held.empty()) {
    pages.unref(held.back(), 5000);
    held.pop_back();
  }
  pages.release_through(5000);
  EXPECT_EQ(pages.available(), 20);
}

TEST(PagePool, ViewsReachEveryElementOnceAndNothingElse) {
  const auto device = make_cpu_device(1);
  const KvShape shape = small_shape();
  Result<PagePool> pool = PagePool::create(*device, shape, 4);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  EXPECT_EQ(pool->bytes(), 4 * 3 * 2 * (4 * 8 * 2 * 2));
  std::set<const std::byte*> rows;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    const kernels::PoolView view = pool->view(layer);
    for (int page = 0; page < 4; ++page) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (int token = 0; token < shape.block_size; ++token) {
          rows.insert(view.k(page, head, token));
          rows.insert(view.v(page, head, token));
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), size_t{3 * 4 * 2 * 4 * 2});
  EXPECT_EQ(*rows.rbegin() - *rows.begin(), pool->bytes() - shape.head_dim * 2);
  const std::byte* previous = nullptr;
  for (const std::byte* row : rows) {
    if (previous) {
      ASSERT_EQ(row - previous, shape.head_dim * 2);
    }
    previous = row;
  }
}

TEST(PagePool, ABlockHeadIsContiguousKeysThenValues) {
  const auto device = make_cpu_device(1);
  const KvShape shape = small_shape();
  const PagePool pool = PagePool::create(*device, shape, 2).value();
  const kernels::PoolView view = pool.view(1);
  EXPECT_EQ(view.v(1, 1, 0) - view.k(1, 1, 0), shape.block_head_bytes() / 2);
  EXPECT_EQ(view.k(1, 1, 3) - view.k(1, 1, 0), 3 * shape.head_dim * 2);
  EXPECT_EQ(view.k(1, 1, 0) - view.k(1, 0, 0), shape.block_head_bytes());
}

TEST(PagePool, PoisonMakesNanOfOnePageOrSlotOnly) {
  const auto device = make_cpu_device(1);
  const KvShape shape = small_shape();
  PagePool pool = PagePool::create(*device, shape, 2).value();
  const auto nans = [&](int32_t layer, int32_t page, int32_t head) {
    const auto* x = reinterpret_cast<const bf16*>(pool.view(layer).k(page, head, 0));
    return std::count_if(x, x + shape.block_head_bytes() / 2, [](bf16 v) { return std::isnan(to_float(v)); });
  };
  pool.poison(1, 2, 0);
  EXPECT_EQ(nans(2, 1, 0), shape.block_head_bytes() / 2);
  EXPECT_EQ(nans(2, 1, 1) + nans(2, 0, 0) + nans(1, 1, 0), 0);
  pool.poison(0);
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(nans(layer, 0, 0) + nans(layer, 0, 1), shape.block_head_bytes());
  }
  EXPECT_EQ(nans(0, 1, 0), 0);
}

TEST(PagePool, AnImpossibleSizeIsAnErrorThatNamesTheBytes) {
  const auto device = make_cpu_device(1);
  KvShape shape = small_shape();
  shape.head_dim = 16384;
  shape.block_size = 64;
  shape.kv_heads = 1024;
  const Result<PagePool> pool = PagePool::create(*device, shape, 2'000'000'000);
  ASSERT_FALSE(pool.ok());
  EXPECT_NE(pool.status().message().find("2000000000 pages"), std::string::npos) << pool.status().message();
  EXPECT_EQ(PagePool::create(*device, small_shape(), 0).status().code(), StatusCode::kInvalidArgument);
  shape.layers = 0;
  EXPECT_EQ(PagePool::create(*device, shape, 1).status().code(), StatusCode::kInvalidArgument);
}

class SummaryPoolTest : public ::testing::TestWithParam<KvType> {};

TEST_P(SummaryPoolTest, APageCopiedOutAndInIsTheSame) {
  const auto device = make_cpu_device(1);
  KvShape shape = small_shape();
  shape.summary_type = GetParam();
  SummaryPool pool = SummaryPool::create(*device, shape, 3).value();
  EXPECT_EQ(shape.summary_rows_bytes(), GetParam() == KvType::kBf16 ? 8 * 2 * 2 : 8 * 2 + 8);
  EXPECT_EQ(pool.bytes(), 3 * 3 * 2 * shape.summary_rows_bytes());
  unsigned char next = 0;
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      for (int64_t i = 0; i < shape.summary_rows_bytes(); ++i) pool.view(layer).rows(2, head)[i] = std::byte{next++};
    }
  }
  std::vector<std::byte> record(static_cast<size_t>(shape.summary_page_bytes()));
  pool.read(2, record.data());
  for (size_t i = 0; i < record.size(); ++i) ASSERT_EQ(record[i], std::byte{static_cast<unsigned char>(i)});
  pool.write(0, record.data());
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    EXPECT_EQ(std::memcmp(pool.view(layer).rows(0, 0), pool.view(layer).rows(2, 0),
                          static_cast<size_t>(2 * shape.summary_rows_bytes())),
              0);
    EXPECT_EQ(pool.view(layer).rows(1, 0)[0], std::byte{0});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SummaryPoolTest, ::testing::Values(KvType::kBf16, KvType::kFp8E4M3),
                         [](const auto& info) { return info.param == KvType::kBf16 ? "Bf16" : "Fp8"; });

}  // namespace
}  // namespace oasis::kv
