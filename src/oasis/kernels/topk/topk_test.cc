#include "oasis/kernels/topk/topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/topk/topk_ref.h"

namespace oasis::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// How the scores of a case are drawn.
enum class Scores { kNormal, kFewValues, kAllEqual, kAscending, kOneFarAway, kHostile, kAnyBits };

float draw(Scores kind, int64_t block, std::mt19937& random) {
  const float x = std::normal_distribution<float>(40, 15)(random);
  switch (kind) {
    case Scores::kNormal:
      return x;
    case Scores::kFewValues:
      return std::floor(x / 10);
    case Scores::kAllEqual:
      return 1;
    case Scores::kAscending:
      return static_cast<float>(block);
    case Scores::kOneFarAway:
      return block == 3 ? -1e30f : x;
    case Scores::kHostile: {
      constexpr float values[] = {0.0f, -0.0f, kInf, -kInf, kNaN, -kNaN, 1e-40f, -1e-40f, 1, -1};
      return values[random() % std::size(values)];
    }
    case Scores::kAnyBits:
      return std::bit_cast<float>(static_cast<uint32_t>(random()));
  }
  return 0;
}

struct Case {
  Scores kind;
  std::vector<int32_t> candidates;  // an item each
  int64_t heads;
  int64_t k;
  int64_t stride = 8200;  // at least, of scores; on CUDA short rows have a way of their own
};

void check(Backend backend, const Case& c, bool pin_first, int threads) {
  SCOPED_TRACE(fmt::format("kind {} n {} k {} pinned {}", static_cast<int>(c.kind), c.candidates[0], c.k, pin_first));
  std::mt19937 random(7);
  const int64_t items = static_cast<int64_t>(c.candidates.size()), rows = items * c.heads,
                stride = std::max<int64_t>(c.stride, *std::max_element(c.candidates.begin(), c.candidates.end()));
  std::vector<float> scores(static_cast<size_t>(rows * stride), kInf);  // beyond the candidates: tempting
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t b = 0; b < c.candidates[static_cast<size_t>(row / c.heads)]; ++b) {
      scores[static_cast<size_t>(row * stride + b)] = draw(c.kind, b, random);
    }
  }
  const int64_t block_stride = c.k + 2;
  std::vector<int32_t> blocks(static_cast<size_t>(rows * block_stride), -9), count(static_cast<size_t>(rows));
  std::vector<float> block_scores(blocks.size(), -9);
  kernels_for(backend).topk(test_device(backend, threads).foreground(), {.scores = scores.data(),
                                                                         .score_stride = stride,
                                                                         .candidates = c.candidates.data(),
                                                                         .items = items,
                                                                         .heads = c.heads,
                                                                         .k = c.k,
                                                                         .pin_first = pin_first,
                                                                         .blocks = blocks.data(),
                                                                         .block_scores = block_scores.data(),
                                                                         .block_stride = block_stride,
                                                                         .count = count.data()});
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = scores.begin() + row * stride;
    const std::vector<float> own(at, at + c.candidates[static_cast<size_t>(row / c.heads)]);
    const auto begin = blocks.begin() + row * block_stride;
    const std::vector<int32_t> got(begin, begin + count[static_cast<size_t>(row)]);
    ASSERT_EQ(got, topk_ref(own, c.k, pin_first)) << "row " << row;
    for (size_t i = 0; i < got.size(); ++i) {
      const float is = block_scores[static_cast<size_t>(row * block_stride) + i],
                  want = own[static_cast<size_t>(got[i])];
      EXPECT_EQ(std::bit_cast<uint32_t>(is), std::bit_cast<uint32_t>(want));
    }
    EXPECT_EQ(begin[static_cast<int64_t>(got.size())], -9) << "wrote past the end";
  }
}

class TopK : public testing::TestWithParam<std::tuple<Backend, Scores>> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(backend()); }
  static Backend backend() { return std::get<0>(GetParam()); }
  static Scores kind() { return std::get<1>(GetParam()); }
};

TEST_P(TopK, IsTheRankOrderForAnySizes) {
  for (int32_t n : {0, 1, 2, 31, 32, 100, 470, 8192}) {
    for (int64_t k : {0, 1, 8, 64, 128, 470, 1024}) {
      if (n == 8192 && k > 128 && k < 1024) continue;
      for (bool pin_first : {false, true}) {
        check(backend(), {kind(), {n}, n == 8192 ? 1 : 3, k}, pin_first, 1);
        if (n < 8192) check(backend(), {kind(), {n}, 3, k, 1}, pin_first, 1);
      }
    }
  }
}

TEST_P(TopK, TreatsEachItemByItsOwnCandidates) {
  for (int threads : {1, 3}) check(backend(), {kind(), {500, 0, 17, 3000, 64, 65}, 3, 64}, true, threads);
}

TEST_P(TopK, TakesManyCandidates) { check(backend(), {kind(), {65536}, 1, 100}, true, 1); }

TEST_P(TopK, TakesShortRows) {
  for (int64_t k : {1, 127, 128, 300, 1500}) {
    for (bool pin_first : {false, true}) {
      check(backend(), {kind(), {1024, 0, 1, 129, 700}, 2, k, 1024}, pin_first, 1);
      check(backend(), {kind(), {2048, 1025, 1, 300}, 2, k, 2048}, pin_first, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TopK,
                         testing::Combine(testing::Values(Backend::kCpu, Backend::kCuda),
                                          testing::Values(Scores::kNormal, Scores::kFewValues, Scores::kAllEqual,
                                                          Scores::kAscending, Scores::kOneFarAway, Scores::kHostile,
                                                          Scores::kAnyBits)),
                         case_name);

class TopKOrder : public testing::TestWithParam<Backend> {};

TEST_P(TopKOrder, ZerosOfBothSignsTieAndNaNComesLast) {
  OASIS_SKIP_WITHOUT(GetParam());
  const float scores[] = {kNaN, 0.0f, -0.0f, 0.0f, -kInf, -1};
  const int32_t n = 6;
  int32_t blocks[6], count;
  kernels_for(GetParam())
      .topk(test_device(GetParam()).foreground(), {.scores = scores,
                                                   .score_stride = 6,
                                                   .candidates = &n,
                                                   .items = 1,
                                                   .heads = 1,
                                                   .k = 6,
                                                   .blocks = blocks,
                                                   .block_stride = 6,
                                                   .count = &count});
  EXPECT_EQ(std::vector<int32_t>(blocks, blocks + 6), (std::vector<int32_t>{1, 2, 3, 5, 4, 0}));
}

INSTANTIATE_TEST_SUITE_P(Backends, TopKOrder, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
