// K and V in FP8: the engine against textbook attention over rows that are rounded as FP8 rounds them.
#include <cmath>

#include "oasis/base/numeric.h"
#include "oasis/engine/engine_test_util.h"
#include "oasis/kernels/fp8_row_ref.h"
#include "oasis/model/dense_run.h"

namespace oasis::engine {
namespace {

using testing::make_engine;
using testing::Output;

void round_to_fp8(std::span<float> row) {
  std::vector<double> values;
  for (const float x : row) values.push_back(to_float(to_bf16(x)));
  const std::vector<double> rounded = kernels::fp8_row_ref(values);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(rounded[i]);
}

// Logits of the positions from `first` on, [position][vocab].
std::vector<std::vector<float>> textbook(const std::vector<int32_t>& tokens, size_t first,
                                         model::DenseRun::KvRow kv_row) {
  const auto rows = static_cast<int64_t>(tokens.size());
  model::DenseRun run(testing::device(), testing::tiny_model(), rows, std::move(kv_row));
  const auto x = run.run(tokens);
  const auto logits = run.logits(x);
  const size_t vocab = logits.size() / tokens.size();
  std::vector<std::vector<float>> out;
  for (size_t i = first; i < tokens.size(); ++i)
    out.emplace_back(logits.begin() + static_cast<int64_t>(i * vocab),
                     logits.begin() + static_cast<int64_t>((i + 1) * vocab));
  return out;
}

// Root of the mean square of the difference.
double distance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t t = 0; t < a[i].size(); ++t, ++count) sum += std::pow(a[i][t] - b[i][t], 2);
  }
  return std::sqrt(sum / count);
}

TEST(KvType, Fp8IsTextbookAttentionOverRowsRoundedToFp8) {
  std::mt19937 random(11);
  constexpr int32_t kPrompt = 150, kOutput = 60;
  EngineConfig c;
  c.attention = Attention::kDense;
  c.kv_type = kv::KvType::kFp8E4M3;
  c.max_context = kPrompt + kOutput;
  c.draft = "none";
  Request r;
  r.prompt = testing::random_tokens(random, kPrompt);
  r.forced = testing::random_tokens(random, kOutput);
  r.max_tokens = kOutput;
  std::vector<int32_t> tokens = r.prompt;
  tokens.insert(tokens.end(), r.forced.begin(), r.forced.end() - 1);
  const Output got = testing::run(*make_engine(c), r, true);
  ASSERT_EQ(got.logits.size(), static_cast<size_t>(kOutput));
  const auto rounded = textbook(tokens, kPrompt - 1, round_to_fp8), exact = textbook(tokens, kPrompt - 1, {});
  const double error = distance(got.logits, rounded), rounding = distance(rounded, exact);
  EXPECT_LT(error, rounding / 3) << "rounding K and V moves the logits by " << rounding;
}

TEST(KvType, Fp8HalvesWhatATokenTakesInBothTiersAndOnTheLink) {
  EngineConfig c;
  c.max_context = 640;
  c.top_k_blocks = 8;
  c.attention = Attention::kSparse;
  c.draft = "none";
  Request r;
  std::mt19937 random(12);
  r.prompt = testing::random_tokens(random, 500);
  r.max_tokens = 100;
  const auto wide = make_engine(c);
  c.kv_type = kv::KvType::kFp8E4M3;
  const auto narrow = make_engine(c);
  testing::run(*wide, r);
  testing::run(*narrow, r);
  // A scale byte a row of 64 elements.
  constexpr double kShare = 65.0 / 128;
  const auto share = [](int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  EXPECT_EQ(share(narrow->plan().kv_bytes, wide->plan().kv_bytes), kShare);
  EXPECT_LT(share(narrow->plan().home_bytes, wide->plan().home_bytes), .57);  // summaries stay as they are
  const auto a = narrow->metrics().core, b = wide->metrics().core;
  EXPECT_EQ(share(a.bytes, a.blocks), kShare * share(b.bytes, b.blocks));
}

}  // namespace
}  // namespace oasis::engine
