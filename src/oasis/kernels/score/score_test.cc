#include "oasis/kernels/score/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/score/score_ref.h"

namespace oasis::kernels {
namespace {

struct Case {
  KvType type = KvType::kBf16;
  int64_t d = 64;
  int64_t group = 3;  // query heads a KV head
  int64_t kv_heads = 3;
  std::vector<int32_t> rows = {1};  // an item each
  std::vector<int32_t> candidates = {470};
  int64_t padding = 4;  // bytes behind a head's rows, so that rows lie where they lie
};

struct Inputs {
  Case c;
  int64_t max_blocks, summary_bytes, q_stride;
  std::vector<std::byte> memory;
  std::vector<float> q;
  std::vector<int32_t> row_begin = {0};
  std::vector<std::vector<int32_t>> pages;                   // an item each
  std::vector<std::vector<std::vector<double>>> corners[2];  // upper, lower: [page][head][d]

  explicit Inputs(const Case& which) : c(which) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 2);
    max_blocks = *std::max_element(c.candidates.begin(), c.candidates.end());
    const int64_t all = max_blocks * static_cast<int64_t>(c.candidates.size());
    summary_bytes = (c.type == KvType::kBf16 ? 4 * c.d : 8 + 2 * c.d) + c.padding;
    memory.resize(static_cast<size_t>(all * c.kv_heads * summary_bytes));
    for (auto& corner : corners) {
      corner.resize(static_cast<size_t>(all), std::vector<std::vector<double>>(static_cast<size_t>(c.kv_heads)));
    }
    for (int64_t page = 0; page < all; ++page) {
      for (int64_t head = 0; head < c.kv_heads; ++head) fill(page, head, normal, random);
    }
    q_stride = c.kv_heads * c.group * c.d + 5;
    for (int32_t n : c.rows) row_begin.push_back(row_begin.back() + n);
    q.resize(static_cast<size_t>(row_begin.back() * q_stride));
    for (float& x : q) x = normal(random);
    std::vector<int32_t> order(static_cast<size_t>(all));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < c.candidates.size(); ++i) {
      pages.emplace_back(order.begin() + static_cast<int64_t>(i) * max_blocks,
                         order.begin() + static_cast<int64_t>(i + 1) * max_blocks);
    }
  }

  void fill(int64_t page, int64_t head, std::normal_distribution<float>& normal, std::mt19937& random) {
    std::byte* rows = view().rows(page, head);
    std::vector<float> corner[2];
    for (int64_t i = 0; i < c.d; ++i) {
      const float a = normal(random), b = normal(random);
      corner[0].push_back(std::max(a, b));
      corner[1].push_back(std::min(a, b));
    }
    for (int64_t which = 0; which < 2; ++which) {
      auto& read = corners[which][static_cast<size_t>(page)][static_cast<size_t>(head)];
      float scale = 0.01f * static_cast<float>(1 + which);
      if (c.type == KvType::kFp8E4M3) std::memcpy(rows + 4 * which, &scale, 4);
      for (int64_t i = 0; i < c.d; ++i) {
        if (c.type == KvType::kBf16) {
          const bf16 x = to_bf16(corner[which][static_cast<size_t>(i)]);
          std::memcpy(rows + 2 * (which * c.d + i), &x, 2);
          read.push_back(to_float(x));
        } else {
          const fp8_e4m3 x = to_fp8_e4m3(corner[which][static_cast<size_t>(i)] / scale);
          rows[8 + which * c.d + i] = static_cast<std::byte>(x.bits);
          read.push_back(double{scale} * to_float(x));
        }
      }
    }
  }

  SummaryView view() {
    return {
        .base = memory.data(), .page_stride = c.kv_heads * summary_bytes, .head_stride = summary_bytes, .type = c.type};
  }

  std::vector<float> scores(Backend backend, int threads, const std::vector<int32_t>& candidates) {
    std::vector<float> out(static_cast<size_t>(static_cast<int64_t>(c.rows.size()) * c.kv_heads * stride()), -77);
    std::vector<const int32_t*> page_tables;
    for (auto& p : pages) page_tables.push_back(p.data());
    Device& device = test_device(backend, threads);
    Buffer on_device;
    SummaryView summaries = view();
    if (backend == Backend::kCuda) {
      on_device = copy_to(device, memory.data(), memory.size());
      summaries.base = on_device.data();
    }
    kernels_for(backend).score(device.foreground(), {.summaries = summaries,
                                                     .head_dim = c.d,
                                                     .kv_heads = c.kv_heads,
                                                     .q_per_kv = c.group,
                                                     .items = static_cast<int64_t>(c.rows.size()),
                                                     .row_begin = row_begin.data(),
                                                     .candidates = candidates.data(),
                                                     .summary_pages = page_tables.data(),
                                                     .q = q.data(),
                                                     .q_stride = q_stride,
                                                     .scores = out.data(),
                                                     .score_stride = stride()});
    return out;
  }
  int64_t stride() const { return max_blocks + 3; }

  double expected(size_t item, int64_t head, int64_t block, double& magnitude) const {
    std::vector<std::vector<std::vector<double>>> rows;
    for (int32_t r = row_begin[item]; r < row_begin[item + 1]; ++r) {
      auto& row = rows.emplace_back();
      for (int64_t g = 0; g < c.group; ++g) {
        const auto at = q.begin() + r * q_stride + (head * c.group + g) * c.d;
        row.emplace_back(at, at + c.d);
      }
    }
    const size_t page = static_cast<size_t>(pages[item][static_cast<size_t>(block)]);
    return score_ref(rows, corners[0][page][static_cast<size_t>(head)], corners[1][page][static_cast<size_t>(head)],
                     magnitude);
  }
};

// The instruction sets that a backend's results are checked with.
std::vector<CpuLevel> levels(Backend backend = Backend::kCpu) {
  std::vector<CpuLevel> out;
  if (backend == Backend::kCuda) return {CpuLevel::kPortable};
  for (CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    set_cpu_level(level);
    if (cpu_level() == level) out.push_back(level);
  }
  return out;
}

class Score : public testing::TestWithParam<std::tuple<Backend, Case>> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(backend()); }
  static Backend backend() { return std::get<0>(GetParam()); }
  static const Case& which() { return std::get<1>(GetParam()); }
  void TearDown() override { set_cpu_level(CpuLevel::kAvx512); }
};

TEST_P(Score, IsQuestsScoreWithinFp32Rounding) {
  for (CpuLevel level : levels(backend())) {
    set_cpu_level(level);
    Inputs s(which());
    const auto got = s.scores(backend(), 2, s.c.candidates);
    for (size_t item = 0; item < s.c.rows.size(); ++item) {
      for (int64_t head = 0; head < s.c.kv_heads; ++head) {
        const float* row = got.data() + (static_cast<int64_t>(item) * s.c.kv_heads + head) * s.stride();
        const int32_t scored = s.c.rows[item] == 0 ? 0 : s.c.candidates[item];
        for (int64_t block = 0; block < scored; ++block) {
          double magnitude = 0;
          const double want = s.expected(item, head, block, magnitude);
          // n roundings of at most 2^-24 of what is added up; in practice a tenth of the square root.
          ASSERT_NEAR(row[block], want, magnitude * 0x1p-24 * 16)
              << "level " << static_cast<int>(level) << " item " << item << " head " << head << " block " << block;
        }
        for (int64_t block = scored; block < s.stride(); ++block) ASSERT_EQ(row[block], -77);
      }
    }
  }
}

TEST_P(Score, OfABlockDependsNeitherOnThreadsNorOnTheNumberOfCandidates) {
  for (CpuLevel level : levels(backend())) {
    set_cpu_level(level);
    Inputs s(which());
    const auto all = s.scores(backend(), 1, s.c.candidates);
    EXPECT_EQ(s.scores(backend(), 3, s.c.candidates), all);
    for (int32_t fewer : {1, 2, 3, 5}) {
      auto candidates = s.c.candidates;
      for (auto& n : candidates) n = std::max(0, n - fewer);
      const auto some = s.scores(backend(), 2, candidates);
      for (size_t i = 0; i < some.size(); ++i) {
        if (some[i] == -77) continue;
        ASSERT_EQ(some[i], all[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Score,
    testing::Combine(
        testing::Values(Backend::kCpu, Backend::kCuda),
        testing::Values(
            Case{}, Case{.type = KvType::kFp8E4M3}, Case{.d = 128, .group = 4, .kv_heads = 2},
            Case{.type = KvType::kFp8E4M3, .d = 128, .group = 1, .kv_heads = 8},
            Case{.d = 80, .rows = {3}, .candidates = {131}},
            Case{.type = KvType::kFp8E4M3, .d = 80, .rows = {3}, .candidates = {131}},
            Case{.d = 20, .rows = {2}, .candidates = {17}},
            Case{.type = KvType::kFp8E4M3, .d = 20, .rows = {2}, .candidates = {17}},
            Case{.d = 256, .group = 7, .kv_heads = 1, .candidates = {129}},
            Case{.rows = {1, 0, 2, 9, 1}, .candidates = {128, 40, 1, 257, 0}},
            Case{.type = KvType::kFp8E4M3, .rows = {1, 0, 2, 9, 1}, .candidates = {128, 40, 1, 257, 0}},
            Case{.padding = 0}, Case{.d = 96, .kv_heads = 10, .padding = 0},
            Case{.d = 128, .kv_heads = 8, .rows = {2, 1}, .candidates = {1000, 37}, .padding = 0},
            Case{.type = KvType::kFp8E4M3, .d = 128, .kv_heads = 8, .rows = {6}, .candidates = {1000}, .padding = 0},
            Case{.d = 256, .rows = {5}, .padding = 0},
            Case{.type = KvType::kFp8E4M3, .d = 256, .rows = {5}, .padding = 0})),
    case_name);

class ScoreFp8 : public testing::TestWithParam<Backend> {};

TEST_P(ScoreFp8, ReadsAllFiniteValuesExactly) {
  OASIS_SKIP_WITHOUT(GetParam());
  Device& device = test_device(GetParam());
  for (CpuLevel level : levels(GetParam())) {
    set_cpu_level(level);
    for (int value = 0; value < 256; ++value) {
      const float x = to_float(fp8_e4m3{static_cast<uint8_t>(value)});
      if (std::isnan(x)) continue;
      constexpr int64_t d = 64;
      std::vector<std::byte> summary(8 + 2 * d);
      const float one[2] = {1, 1};
      std::memcpy(summary.data(), one, 8);
      std::vector<float> q(d);
      for (int64_t i = 0; i < d; i += 3) {
        std::fill(summary.begin() + 8, summary.end(), std::byte{0});
        summary[static_cast<size_t>(8 + i)] = static_cast<std::byte>(value);
        std::fill(q.begin(), q.end(), 0.0f);
        q[static_cast<size_t>(i)] = 1;
        const int32_t rows[] = {0, 1}, candidates = 1, page = 0;
        const int32_t* pages = &page;
        float score = -1;
        const Buffer memory = copy_to(device, summary.data(), summary.size());
        kernels_for(GetParam())
            .score(device.foreground(), {.summaries = {memory.data(), 8 + 2 * d, 8 + 2 * d, KvType::kFp8E4M3},
                                         .head_dim = d,
                                         .kv_heads = 1,
                                         .q_per_kv = 1,
                                         .items = 1,
                                         .row_begin = rows,
                                         .candidates = &candidates,
                                         .summary_pages = &pages,
                                         .q = q.data(),
                                         .q_stride = d,
                                         .scores = &score,
                                         .score_stride = 1});
        ASSERT_EQ(score, x) << "level " << static_cast<int>(level) << " byte " << value;
      }
    }
  }
  set_cpu_level(CpuLevel::kAvx512);
}

INSTANTIATE_TEST_SUITE_P(Backends, ScoreFp8, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
