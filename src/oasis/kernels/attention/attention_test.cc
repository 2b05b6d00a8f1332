#include "oasis/kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/attention/attention_ref.h"
#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/fp8_row.h"

namespace oasis::kernels {
namespace {

struct Group {
  std::vector<int32_t> positions;  // one a row
  std::vector<int32_t> blocks;     // of every KV head's list, unless `per_head`
};

struct Case {
  const char* name;
  int64_t block_size, head_dim, kv_heads, q_per_kv;
  std::vector<Group> groups;
  bool interleaved_pool = false;  // pages hold [token, k or v, head, d] rather than contiguous block-heads
  float logit_spread = 1;         // multiplies q
};

std::vector<int32_t> range(int32_t begin, int32_t end, int32_t step = 1) {
  std::vector<int32_t> out;
  for (int32_t i = begin; i < end; i += step) out.push_back(i);
  return out;
}

std::vector<Case> cases() {
  return {
      {"one key", 16, 64, 1, 1, {{{0}, {0}}}},
      {"two rows, dense, open block", 16, 64, 3, 3, {{{37, 38}, range(0, 3)}}},
      {"a row of a draft begins a new block", 16, 64, 3, 3, {{{95, 96}, range(0, 7)}}},
      {"several splits with gaps", 16, 64, 2, 4, {{{3000, 3001}, range(1, 188, 3)}}},
      {"a split of which a row sees nothing", 16, 64, 1, 2, {{{511, 512}, range(0, 33)}}},
      {"masked rows", 16, 64, 2, 3, {{{40, -1, 41}, range(0, 3)}, {{-1}, {0, 1}}, {{20}, {0, 1}}}},
      {"an empty list", 16, 64, 2, 1, {{{5}, {}}, {{3}, {0}}}},
      {"listed blocks all past the row", 16, 64, 1, 1, {{{5}, {1, 2}}}},
      {"nine rows over three open blocks", 16, 64, 1, 3, {{range(120, 129), range(0, 9)}}},
      {"a batch", 16, 64, 2, 2, {{{17}, {0, 1}}, {{700, 701}, range(0, 44)}, {{90, 91, 92}, {0, 2, 4, 5}}}},
      {"head_dim 80", 16, 80, 2, 1, {{{70, 71}, range(0, 5)}}},
      {"head_dim 96", 16, 96, 2, 3, {{{70, 71}, range(0, 5)}}},
      {"head_dim 128, a group of 5", 16, 128, 2, 5, {{{600, 601}, range(0, 38)}}},
      {"head_dim 256", 16, 256, 1, 4, {{{600, 601}, range(0, 38)}}},
      {"block size 32", 32, 128, 2, 4, {{{1500, 1501}, range(0, 47)}}},
      {"block size 64", 64, 64, 2, 7, {{{2500, 2501, 2502}, range(0, 40, 2)}}},
      {"strided pool", 16, 64, 3, 3, {{{300, 301}, range(0, 19)}}, true},
      {"strided pool, block size 32, head_dim 80", 32, 80, 2, 6, {{{300, 301}, range(0, 10)}}, true},
      {"three tiles of queries, head_dim 128", 16, 128, 2, 4, {{range(500, 509), range(0, 33)}, {{7}, {0}}}},
      {"two tiles of queries, head_dim 256", 16, 256, 1, 8, {{{300, 301, 302}, range(0, 19)}}},
      {"large logits", 16, 64, 2, 4, {{{900, 901}, range(0, 57)}}, false, 12},
      {"q heads of 1 to 9 a group: 2", 16, 64, 1, 2, {{{30, 31}, {0, 1}}}},
      {"q heads of 1 to 9 a group: 6", 16, 64, 1, 6, {{{30, 31}, {0, 1}}}},
      {"q heads of 1 to 9 a group: 7", 16, 64, 1, 7, {{{30, 31}, {0, 1}}}},
      {"q heads of 1 to 9 a group: 8", 16, 64, 1, 8, {{{30, 31}, {0, 1}}}},
      {"q heads of 1 to 9 a group: 9", 16, 64, 1, 9, {{{30, 31}, {0, 1}}}},
  };
}

// A case's memory. Pages that no list names, and tokens past the last position of a list's group, hold NaN.
class Problem {
 public:
  explicit Problem(const Case& c, int64_t page_shuffle = 7) : case_(c) {
    const int64_t d = c.head_dim, row_bytes = d * 2;
    int64_t lists = static_cast<int64_t>(c.groups.size()) * c.kv_heads, longest = 1, rows = 0, listed = 0;
    row_begin.push_back(0);
    for (const Group& g : c.groups) {
      longest = std::max<int64_t>(longest, g.blocks.size());
      listed += static_cast<int64_t>(g.blocks.size());
      rows += static_cast<int64_t>(g.positions.size());
      row_begin.push_back(static_cast<int32_t>(rows));
      positions.insert(positions.end(), g.positions.begin(), g.positions.end());
    }
    const int64_t pages = 2 * listed + 1;
    params.block_size = c.block_size;
    params.head_dim = d;
    params.kv_heads = c.kv_heads;
    params.q_per_kv = c.q_per_kv;
    if (c.interleaved_pool) {
      params.pool = {.page_stride = c.block_size * 2 * c.kv_heads * row_bytes,
                     .head_stride = row_bytes,
                     .token_stride = 2 * c.kv_heads * row_bytes,
                     .v_offset = c.kv_heads * row_bytes};
    } else {
      params.pool = {.page_stride = c.kv_heads * c.block_size * 2 * row_bytes,
                     .head_stride = c.block_size * 2 * row_bytes,
                     .token_stride = row_bytes,
                     .v_offset = c.block_size * row_bytes};
    }
    pool.assign(pages * params.pool.page_stride / 2, bf16{0x7fc0});
    params.pool.base = reinterpret_cast<std::byte*>(pool.data());

    entries.resize(lists * longest, {-1, -1});
    entry_count.resize(lists);
    params.list_stride = longest;
    int64_t next = 0;
    for (size_t g = 0; g < c.groups.size(); ++g) {
      const Group& group = c.groups[g];
      const int32_t last = *std::max_element(group.positions.begin(), group.positions.end());
      for (int64_t h = 0; h < c.kv_heads; ++h) entry_count[g * c.kv_heads + h] = group.blocks.size();
      for (size_t e = 0; e < group.blocks.size(); ++e, ++next) {
        for (int64_t h = 0; h < c.kv_heads; ++h) {
          const int64_t page = (next + page_shuffle * (h + 1)) % listed * 2 + 1;
          entries[(g * c.kv_heads + h) * longest + e] = {group.blocks[e], static_cast<int32_t>(page)};
          std::mt19937 random(1000 * group.blocks[e] + 77 * h + 13 * static_cast<uint32_t>(g));
          // Uniform of variance 1, which is cheap to draw.
          const auto draw = [&] { return to_bf16((static_cast<float>(random() >> 8) * 0x1p-24f - 0.5f) * 3.4641f); };
          for (int64_t i = 0; i < c.block_size && group.blocks[e] * c.block_size + i <= last; ++i) {
            auto* k = reinterpret_cast<bf16*>(params.pool.k(page, h, i));
            auto* v = reinterpret_cast<bf16*>(params.pool.v(page, h, i));
            for (int64_t j = 0; j < d; ++j) k[j] = draw(), v[j] = draw();
          }
        }
      }
    }
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, c.logit_spread);
    params.q_stride = c.kv_heads * c.q_per_kv * d + 3;
    params.out_stride = c.kv_heads * c.q_per_kv * d + 5;
    q.resize(rows * params.q_stride);
    for (float& x : q) x = to_float(to_bf16(normal(random)));
    out.assign(rows * params.out_stride, std::numeric_limits<float>::quiet_NaN());
    params.groups = static_cast<int64_t>(c.groups.size());
    bind();
  }

  void bind() {
    params.row_begin = row_begin.data();
    params.positions = positions.data();
    params.entries = entries.data();
    params.entry_count = entry_count.data();
    params.q = q.data();
    params.out = out.data();
  }

  // [rows, heads * head_dim]
  std::vector<float> result(int threads = 1) {
    Device& device = test_device(backend, threads);
    AttentionParams p = params;
    Buffer memory;
    if (backend == Backend::kCuda) {
      const bool bf16_slots = p.pool.type == KvType::kBf16;
      memory = copy_to(device, p.pool.base, bf16_slots ? pool.size() * sizeof(bf16) : fp8_pool.size());
      p.pool.base = memory.data();
    }
    kernels_for(backend).attention(device.foreground(), p);
    return rows_of(out);
  }
  std::vector<float> expected() {
    std::vector<float> mine = out;
    params.out = mine.data();
    attention_ref(params);
    params.out = out.data();
    return rows_of(mine);
  }
  std::vector<float> rows_of(const std::vector<float>& x) const {
    const int64_t n = params.kv_heads * params.q_per_kv * params.head_dim;
    std::vector<float> rows;
    for (size_t r = 0; r < positions.size(); ++r)
      rows.insert(rows.end(), x.begin() + r * params.out_stride, x.begin() + r * params.out_stride + n);
    return rows;
  }

  // The same keys and values in FP8 slots; the bf16 ones get the values that these hold.
  void quantize() {
    const PoolView from = params.pool;
    const int64_t d = case_.head_dim, block = case_.block_size,
                  pages = static_cast<int64_t>(pool.size()) * 2 / from.page_stride;
    PoolView to = from;
    to.type = KvType::kFp8E4M3;
    to.token_stride /= 2, to.v_offset /= 2;
    to.head_stride = case_.interleaved_pool ? d : 2 * block * (d + 1);
    to.scale_offset = case_.kv_heads * 2 * block * d;  // behind the page's rows, d bytes a head
    if (!case_.interleaved_pool) to.scale_offset = 2 * block * d;
    to.page_stride = case_.kv_heads * (2 * block * d + std::max(d, 2 * block));
    fp8_pool.assign(static_cast<size_t>(pages * to.page_stride), 0xff);
    to.base = reinterpret_cast<std::byte*>(fp8_pool.data());
    for (int64_t page = 0; page < pages; ++page) {
      for (int64_t h = 0; h < case_.kv_heads; ++h) {
        for (int64_t i = 0; i < 2 * block; ++i) {
          const bool value = i >= block;
          auto* row = reinterpret_cast<bf16*>(value ? from.v(page, h, i - block) : from.k(page, h, i));
          auto* bytes = reinterpret_cast<uint8_t*>(value ? to.v(page, h, i - block) : to.k(page, h, i));
          to.scales(page, h)[i] = write_fp8_row(row, d, bytes);
          read_fp8_row(bytes, to.scales(page, h)[i], d, row);
        }
      }
    }
    fp8 = to;
  }

  static inline Backend backend = Backend::kCpu;  // that all results come from

  Case case_;
  AttentionParams params;
  std::vector<bf16> pool;
  PoolView fp8;
  std::vector<uint8_t> fp8_pool;
  std::vector<int32_t> row_begin, positions, entry_count;
  std::vector<ListEntry> entries;
  std::vector<float> q, out;
};

// What computes: the GPU, or the CPU with an instruction set.
class AttentionOn : public OnTarget {
 protected:
  void SetUp() override {
    Problem::backend = GetParam().backend;
    OnTarget::SetUp();
  }
  void TearDown() override {
    OnTarget::TearDown();
    Problem::backend = Backend::kCpu;
  }
};

TEST_P(AttentionOn, EqualsSoftmaxAttentionInFp64) {
  // Values are of size 1. AVX-512 and the GPU round the queries to bf16, the GPU the weights too.
  const bool rounds = GetParam().backend == Backend::kCuda || GetParam().level == CpuLevel::kAvx512;
  const double tolerance = rounds ? 1.5e-2 : 1e-5;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Problem problem(c);
    const std::vector<float> got = problem.result(2), want = problem.expected();
    ASSERT_EQ(got.size(), want.size());
    double squares = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * c.logit_spread) << "element " << i;
      squares += (got[i] - want[i]) * (got[i] - want[i]);
    }
    EXPECT_LT(std::sqrt(squares / static_cast<double>(got.size())), tolerance * c.logit_spread / 5);
  }
}

TEST_P(AttentionOn, GivesZerosToMaskedRowsAndToRowsThatSeeNoKey) {
  Problem problem({"", 16, 64, 1, 2, {{{5, -1, 40}, {1, 2}}, {{7}, {}}}});
  const std::vector<float> got = problem.result();
  const std::vector<float> zeros(128, 0.0f);
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 128), zeros);
  EXPECT_EQ(std::vector<float>(got.begin() + 128, got.begin() + 256), zeros);
  EXPECT_NE(std::vector<float>(got.begin() + 256, got.begin() + 384), zeros);
  EXPECT_EQ(std::vector<float>(got.begin() + 384, got.end()), zeros);
}

TEST_P(AttentionOn, DoesNotDependOnTheNumberOfThreadsOrOnPages) {
  for (const Case& c : {Case{"splits with gaps", 16, 64, 2, 4, {{{3000, 3001}, range(1, 188, 3)}}},
                        Case{"a batch", 32, 80, 2, 2, {{{17}, {0}}, {{1400, 1401}, range(0, 44)}, {{90}, {0, 2}}}}}) {
    SCOPED_TRACE(c.name);
    Problem problem(c);
    const std::vector<float> one = problem.result(1);
    EXPECT_EQ(problem.result(2), one);
    EXPECT_EQ(problem.result(5), one);
    EXPECT_EQ(Problem(c, 2).result(2), one);
  }
}

TEST_P(AttentionOn, OfAGroupDoesNotDependOnTheBatch) {
  const Case batch{"", 16, 128, 2, 4, {{{17}, {0, 1}}, {{700, 701}, range(0, 44)}, {{90, 91, 92}, {0, 2, 4, 5}}}};
  Problem together(batch), alone(batch);
  const int64_t lists = 2, n = 2 * 4 * 128;
  const std::vector<float> all = together.result();
  alone.params.groups = 1;
  alone.entries.erase(alone.entries.begin(), alone.entries.begin() + lists * alone.params.list_stride);
  alone.entry_count.erase(alone.entry_count.begin(), alone.entry_count.begin() + lists);
  alone.q.erase(alone.q.begin(), alone.q.begin() + alone.params.q_stride);
  alone.row_begin = {0, 2};
  alone.positions = {700, 701};
  alone.bind();
  EXPECT_EQ(alone.result(), std::vector<float>(all.begin() + n, all.begin() + 3 * n));
}

TEST_P(AttentionOn, OfARowDoesNotDependOnTheRowsBesideIt) {
  for (int64_t q_per_kv : {1, 3, 8}) {
    const Case together{"", 16, 80, 2, q_per_kv, {{range(505, 522), range(0, 33)}}};
    Problem problem(together);
    const std::vector<float> all = problem.result();
    const int64_t n = 2 * q_per_kv * 80;
    for (int32_t r = 0; r < 17; ++r) {
      Problem alone(together);
      // Blocks past the row may be listed or not.
      if (r % 2 == 0)
        for (int32_t& count : alone.entry_count) count = (505 + r) / 16 + 1;
      alone.positions = {505 + r};
      alone.row_begin = {0, 1};
      alone.q.erase(alone.q.begin(), alone.q.begin() + r * alone.params.q_stride);
      alone.bind();
      EXPECT_EQ(alone.result(), std::vector<float>(all.begin() + r * n, all.begin() + (r + 1) * n)) << "row " << r;
    }
  }
}

TEST_P(AttentionOn, OfARowIsUntouchedByNanThatOnlyLaterRowsSee) {
  const Case c{"", 16, 64, 1, 3, {{{35, 36, 37}, range(0, 3)}}};
  Problem clean(c), poisoned(c);
  const int32_t page = poisoned.entries[2].page;
  for (std::byte* row : {poisoned.params.pool.k(page, 0, 36 % 16), poisoned.params.pool.v(page, 0, 36 % 16)})
    std::fill_n(reinterpret_cast<bf16*>(row), 64, bf16{0x7fc0});
  const std::vector<float> want = clean.result(), got = poisoned.result();
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 192), std::vector<float>(want.begin(), want.begin() + 192));
  EXPECT_TRUE(std::isnan(got[192]));
}

TEST_P(AttentionOn, ShowsNanThatTheRowDoesSee) {
  Problem problem({"", 16, 64, 1, 1, {{{0}, range(0, 40)}}});
  std::fill_n(reinterpret_cast<bf16*>(problem.params.pool.k(problem.entries[0].page, 0, 0)), 64, bf16{0x7fc0});
  for (const float x : problem.result()) EXPECT_TRUE(std::isnan(x));
}

TEST_P(AttentionOn, OverFp8SlotsIsThatOverBf16SlotsWithTheSameValues) {
  if (Problem::backend == Backend::kCuda) GTEST_SKIP() << "attention on a GPU reads bf16 slots";
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Problem problem(c);
    problem.quantize();
    const std::vector<float> want = problem.result(2), exact = problem.expected();
    problem.params.pool = problem.fp8;
    const std::vector<float> got = problem.result(2);
    ASSERT_EQ(got, want);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], exact[i], 1.5e-2 * c.logit_spread) << "element " << i;
  }
}

TEST_P(AttentionOn, ShowsAnFp8RowThatIsNaN) {
  if (Problem::backend == Backend::kCuda) GTEST_SKIP() << "attention on a GPU reads bf16 slots";
  for (const int64_t which : {0, 1}) {
    Problem problem({"", 16, 64, 1, 1, {{{700}, range(0, 40)}}});
    problem.quantize();
    problem.params.pool = problem.fp8;
    problem.fp8.scales(problem.entries[3].page, 0)[16 * which + 5] = 0xff;
    for (const float x : problem.result()) EXPECT_TRUE(std::isnan(x));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionOn, all_targets(), target_name);

}  // namespace
}  // namespace oasis::kernels
