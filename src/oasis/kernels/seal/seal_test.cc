#include "oasis/kernels/seal/seal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/fp8_row_ref.h"
#include "oasis/kernels/seal/seal_ref.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kPages = 7, kHeads = 3;

struct Case {
  KvType type = KvType::kBf16;
  int64_t block_size = 16;
  int64_t d = 64;
  float beta = 0.5f;
  int64_t gap = 0;  // bytes between tokens: a pool that another engine laid out
  KvType pool_type = KvType::kBf16, home_type = KvType::kBf16;
};

// A pool of random keys and values, with summaries and homes to be written.
struct Inputs {
  static inline Backend backend = Backend::kCpu;  // that seals

  Case c;
  int64_t row, slot, summary_bytes;
  std::vector<std::byte> pool, summaries;
  std::vector<std::vector<std::byte>> homes;
  std::vector<int32_t> pages, summary_pages;
  std::vector<bool> written;  // of each entry: into its home

  explicit Inputs(const Case& which, float scale = 3)
      : c(which),
        row(c.d * (c.pool_type == KvType::kBf16 ? 2 : 1) + c.gap),
        slot(2 * c.block_size * (row + 16)),
        summary_bytes(c.type == KvType::kBf16 ? 4 * c.d : 8 + 2 * c.d) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, scale);
    pool.resize(static_cast<size_t>(kPages * kHeads * slot));
    for (size_t i = 0; i + 1 < pool.size(); i += 2) {
      const bf16 x = to_bf16(normal(random));
      std::memcpy(&pool[i], &x, 2);
    }
    for (int64_t i = 0; c.pool_type == KvType::kFp8E4M3 && i < kPages * kHeads * 2 * c.block_size; ++i) {
      const int64_t s = i / (2 * c.block_size), token = i % (2 * c.block_size);
      std::byte* bytes = &pool[static_cast<size_t>(s * slot + token * row)];
      for (int64_t j = 0; j < c.d; ++j) bytes[j] = static_cast<std::byte>((random() & 0x80) | random() % 0x7f);
      view().scales(s / kHeads, s % kHeads)[token] = static_cast<uint8_t>(115 + random() % 5);
    }
    summaries.resize(static_cast<size_t>(kPages * kHeads * summary_bytes), std::byte{0xee});
    // Two entries; the heads of an entry lie on pages of their own.
    pages = {4, 1, 6, 0, 5, 3};
    summary_pages = {2, 5};
    homes.resize(2, std::vector<std::byte>(static_cast<size_t>(kHeads * home_stride()), std::byte{0xee}));
    written = {true, true};
  }

  int64_t block_head_bytes() const { return 2 * c.block_size * (c.home_type == KvType::kBf16 ? 2 * c.d : c.d + 1); }
  int64_t home_stride() const { return (block_head_bytes() + 79) / 16 * 16; }
  PoolView view() {
    return {.base = pool.data(),
            .page_stride = kHeads * slot,
            .head_stride = slot,
            .token_stride = row,
            .v_offset = c.block_size * row,
            .scale_offset = 2 * c.block_size * row,
            .type = c.pool_type};
  }
  SummaryView summary_view() {
    return {
        .base = summaries.data(), .page_stride = kHeads * summary_bytes, .head_stride = summary_bytes, .type = c.type};
  }
  // What is written may lie in any memory of the device; the homes in memory that host and device share.
  void seal(int threads = 1) {
    Device& device = test_device(backend, threads);
    Stream& stream = device.foreground();
    const Buffer on_device = copy_to(device, pool.data(), pool.size());
    const Buffer boxes = copy_to(device, summaries.data(), summaries.size());
    std::vector<Buffer> pinned;
    std::vector<std::byte*> to;
    for (size_t i = 0; i < homes.size(); ++i) {
      pinned.push_back(std::move(device.allocate_pinned(homes[i].size())).value());
      std::copy(homes[i].begin(), homes[i].end(), pinned[i].data());
      for (int64_t h = 0; h < kHeads; ++h) to.push_back(written[i] ? pinned[i].data() + h * home_stride() : nullptr);
    }
    PoolView from = view();
    from.base = on_device.data();
    SummaryView rows = summary_view();
    rows.base = boxes.data();
    kernels_for(backend).seal(stream, {.pool = from,
                                       .block_size = c.block_size,
                                       .head_dim = c.d,
                                       .kv_heads = kHeads,
                                       .beta = c.beta,
                                       .entries = 2,
                                       .pages = pages.data(),
                                       .summaries = rows,
                                       .summary_pages = summary_pages.data(),
                                       .homes = to.data(),
                                       .home_type = c.home_type});
    stream.copy(summaries.data(), boxes.data(), summaries.size());
    stream.synchronize();
    for (size_t i = 0; i < homes.size(); ++i) std::copy_n(pinned[i].data(), homes[i].size(), homes[i].data());
  }
  // A row of the pool, as a reader sees it.
  std::vector<double> row_of(int64_t page, int64_t head, int64_t token, bool value = false) {
    const std::byte* from = value ? view().v(page, head, token) : view().k(page, head, token);
    if (c.pool_type == KvType::kBf16) return bf16_row(from);
    return read_fp8_row_ref(reinterpret_cast<const uint8_t*>(from),
                            view().scales(page, head)[token + (value ? c.block_size : 0)], c.d);
  }
  std::vector<double> bf16_row(const std::byte* from) const {
    std::vector<double> out;
    for (int64_t i = 0; i < c.d; ++i) {
      bf16 x;
      std::memcpy(&x, from + 2 * i, 2);
      out.push_back(to_float(x));
    }
    return out;
  }
  // Row t of a block-head at home: K's rows come first, then V's.
  std::vector<double> home_row(const std::byte* home, int64_t t) const {
    if (c.home_type == KvType::kBf16) return bf16_row(home + 2 * t * c.d);
    const auto* bytes = reinterpret_cast<const uint8_t*>(home);
    return read_fp8_row_ref(bytes + t * c.d, bytes[2 * c.block_size * c.d + t], c.d);
  }
  RefBox box(int64_t entry, int64_t head) {
    std::vector<std::vector<double>> keys(static_cast<size_t>(c.block_size));
    for (int64_t t = 0; t < c.block_size; ++t) {
      keys[static_cast<size_t>(t)] = row_of(pages[static_cast<size_t>(entry * kHeads + head)], head, t);
    }
    return seal_ref(keys, c.beta);
  }
  // Value i of the upper (0) or lower (1) row as a reader sees it.
  float summary(int64_t entry, int64_t head, int64_t which, int64_t i) {
    const std::byte* rows = summary_view().rows(summary_pages[static_cast<size_t>(entry)], head);
    if (c.type == KvType::kBf16) {
      bf16 x;
      std::memcpy(&x, rows + 2 * (which * c.d + i), 2);
      return to_float(x);
    }
    float scale;
    std::memcpy(&scale, rows + 4 * which, 4);
    return scale * to_float(fp8_e4m3{static_cast<uint8_t>(rows[8 + which * c.d + i])});
  }
};

class OnBackend : public testing::Test {
 protected:
  void use(Backend backend) {
    Inputs::backend = backend;
    OASIS_SKIP_WITHOUT(backend);
  }
  void TearDown() override { Inputs::backend = Backend::kCpu; }
};

class Seal : public OnBackend, public testing::WithParamInterface<std::tuple<Backend, Case>> {
 protected:
  void SetUp() override {
    use(std::get<0>(GetParam()));
    if (Inputs::backend == Backend::kCuda && which().d % 8 != 0) GTEST_SKIP() << "the GPU copies vectors of 16 bytes";
  }
  static const Case& which() { return std::get<1>(GetParam()); }
};

TEST_P(Seal, SummaryIsTheShrunkBoxWithinARounding) {
  for (int threads : {1, 3}) {
    Inputs s(which());
    s.seal(threads);
    for (int64_t entry = 0; entry < 2; ++entry) {
      for (int64_t head = 0; head < kHeads; ++head) {
        const RefBox want = s.box(entry, head);
        for (int64_t which = 0; which < 2; ++which) {
          const auto& row = which == 0 ? want.upper : want.lower;
          double largest = 0;
          for (double x : row) largest = std::max(largest, std::abs(x));
          for (int64_t i = 0; i < s.c.d; ++i) {
            const double x = row[static_cast<size_t>(i)];
            // Half a unit in the last place: at most 2^-8 of the value for bf16; for FP8 2^-4 of it, or half the
            // spacing of the subnormals, 2^-10 of the scale. The 1e-6 is for the fp32 arithmetic before.
            const double error =
                s.c.type == KvType::kBf16 ? std::abs(x) / 256 : std::max(std::abs(x) / 16, largest / 448 / 1024);
            ASSERT_NEAR(s.summary(entry, head, which, i), x, error + 1e-6 * largest);
          }
        }
      }
    }
  }
}

TEST_P(Seal, HomeHoldsKThenVAndNothingElseIsWritten) {
  Inputs s(which());
  s.seal();
  for (int64_t entry = 0; entry < 2; ++entry) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::byte* home = s.homes[static_cast<size_t>(entry)].data() + head * s.home_stride();
      for (int64_t t = 0; t < 2 * s.c.block_size; ++t) {
        const int64_t page = s.pages[static_cast<size_t>(entry * kHeads + head)];
        const auto row = s.row_of(page, head, t % s.c.block_size, t >= s.c.block_size);
        ASSERT_EQ(s.home_row(home, t), s.c.home_type == KvType::kBf16 ? row : fp8_row_ref(row));
      }
      for (int64_t i = s.block_head_bytes(); i < s.home_stride(); ++i) ASSERT_EQ(home[i], std::byte{0xee});
    }
  }
  for (int64_t page : {0, 1, 3, 4, 6}) {
    const std::byte* rows = s.summary_view().rows(page, 0);
    for (int64_t i = 0; i < kHeads * s.summary_bytes; ++i) ASSERT_EQ(rows[i], std::byte{0xee});
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Seal,
    testing::Combine(
        testing::Values(Backend::kCpu, Backend::kCuda),
        testing::Values(
            Case{}, Case{.d = 128, .beta = 1}, Case{.d = 80, .beta = 0}, Case{.block_size = 32, .d = 128},
            Case{.block_size = 64, .d = 20}, Case{.d = 256}, Case{.gap = 48}, Case{.type = KvType::kFp8E4M3},
            Case{.type = KvType::kFp8E4M3, .d = 128, .beta = 1},
            Case{.type = KvType::kFp8E4M3, .block_size = 32, .d = 96, .beta = 0}, Case{.home_type = KvType::kFp8E4M3},
            Case{.block_size = 64, .d = 80, .gap = 32, .home_type = KvType::kFp8E4M3},
            Case{.type = KvType::kFp8E4M3, .d = 128, .pool_type = KvType::kFp8E4M3, .home_type = KvType::kFp8E4M3},
            Case{.block_size = 32,
                 .d = 256,
                 .beta = 1,
                 .gap = 16,
                 .pool_type = KvType::kFp8E4M3,
                 .home_type = KvType::kFp8E4M3})),
    case_name);

class SealBox : public OnBackend, public testing::WithParamInterface<Backend> {
 protected:
  void SetUp() override { use(GetParam()); }
};

TEST_P(SealBox, OfBetaOneIsTheExactMinimumAndMaximum) {
  for (float scale : {1e-30f, 3.0f, 1e30f}) {
    Inputs s({.beta = 1}, scale);
    s.seal();
    for (int64_t i = 0; i < s.c.d; ++i) {
      EXPECT_EQ(s.summary(0, 1, 0, i), static_cast<float>(s.box(0, 1).upper[static_cast<size_t>(i)]));
      EXPECT_EQ(s.summary(0, 1, 1, i), static_cast<float>(s.box(0, 1).lower[static_cast<size_t>(i)]));
    }
  }
}

TEST_P(SealBox, OfEqualKeysIsThatKey) {
  Inputs s({});
  for (size_t i = 0; i < s.pool.size(); i += 2) s.pool[i] = std::byte{0x40}, s.pool[i + 1] = std::byte{0xc0};
  s.seal();
  for (int64_t which : {0, 1}) EXPECT_EQ(s.summary(0, 0, which, 5), -3.0f);
}

TEST_P(SealBox, OfZeroKeysIsZeroInFp8) {
  Inputs s({.type = KvType::kFp8E4M3});
  std::fill(s.pool.begin(), s.pool.end(), std::byte{0});
  s.seal();
  for (int64_t which : {0, 1}) EXPECT_EQ(s.summary(1, 2, which, 5), 0.0f);
}

TEST_P(SealBox, ANaNKeyShows) {
  for (KvType type : {KvType::kBf16, KvType::kFp8E4M3}) {
    for (int64_t token : {0, 7, 15}) {
      Inputs s({.type = type});
      const bf16 nan = to_bf16(std::numeric_limits<float>::quiet_NaN());
      std::memcpy(s.view().k(4, 0, token) + 2 * 9, &nan, 2);
      s.seal();
      for (int64_t which : {0, 1}) EXPECT_TRUE(std::isnan(s.summary(0, 0, which, 9)));
    }
  }
}

TEST_P(SealBox, NoSummaryAndNoHomeWhereNoneIsWanted) {
  Inputs s({});
  s.summary_pages[0] = -1;
  s.written[1] = false;
  const auto before = s.homes[1];
  s.seal();
  EXPECT_EQ(s.homes[1], before);
  EXPECT_EQ(s.summary_view().rows(2, 0)[0], std::byte{0xee});
  EXPECT_NE(s.summary_view().rows(5, 0)[0], std::byte{0xee});
  EXPECT_NE(s.homes[0], before);
}

TEST_P(SealBox, NothingIsDoneWhereThereIsNoPage) {
  Inputs s({});
  const auto home = s.homes[0];
  s.pages = {-1, 1, -1, 0, -1, 3};
  s.seal();
  EXPECT_TRUE(std::equal(home.begin(), home.begin() + s.home_stride(), s.homes[0].begin()));
  EXPECT_NE(home, s.homes[0]);
  EXPECT_EQ(s.summary_view().rows(2, 0)[0], std::byte{0xee});
  EXPECT_NE(s.summary_view().rows(2, 1)[0], std::byte{0xee});
}

INSTANTIATE_TEST_SUITE_P(Backends, SealBox, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
