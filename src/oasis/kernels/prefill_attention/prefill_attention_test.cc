#include "oasis/kernels/prefill_attention/prefill_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/prefill_attention/prefill_attention_ref.h"

namespace oasis::kernels {
namespace {

struct Case {
  int64_t first_position, rows, kv_heads, q_per_kv, head_dim;
  float logit_spread = 1;  // multiplies q
};
constexpr Case kCases[] = {
    {0, 1, 1, 1, 64},    {0, 37, 3, 3, 64},   {128, 1, 1, 2, 64},    {100, 60, 2, 4, 128},     {127, 2, 1, 3, 64},
    {300, 33, 1, 5, 80}, {250, 20, 2, 1, 96}, {500, 70, 1, 2, 256},  {0, 300, 2, 3, 64},       {700, 40, 2, 3, 64, 12},
    {5, 9, 1, 9, 16},    {64, 64, 1, 8, 64},  {1000, 130, 1, 7, 64}, {2000, 256, 1, 1, 64, 3},
};

// A prompt; tokens past the last row hold NaN.
class Problem {
 public:
  explicit Problem(const Case& c) {
    const int64_t tokens = c.first_position + c.rows, d = c.head_dim;
    params.first_position = c.first_position;
    params.rows = c.rows;
    params.kv_heads = c.kv_heads;
    params.q_per_kv = c.q_per_kv;
    params.head_dim = d;
    params.kv_head_stride = (tokens + 50) * d;
    params.q_stride = c.kv_heads * c.q_per_kv * d + 2;
    params.out_stride = c.kv_heads * c.q_per_kv * d + 7;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    k.assign(c.kv_heads * params.kv_head_stride, bf16{0x7fc0});
    v = k;
    for (int64_t h = 0; h < c.kv_heads; ++h) {
      for (int64_t i = 0; i < tokens * d; ++i) {
        k[h * params.kv_head_stride + i] = to_bf16(normal(random));
        v[h * params.kv_head_stride + i] = to_bf16(normal(random));
      }
    }
    q.resize(c.rows * params.q_stride);
    for (float& x : q) x = to_float(to_bf16(c.logit_spread * normal(random)));
    out.assign(c.rows * params.out_stride, std::numeric_limits<float>::quiet_NaN());
    params.k = k.data();
    params.v = v.data();
    params.q = q.data();
    params.out = out.data();
  }

  // [rows, heads * head_dim]
  std::vector<float> result(int threads) {
    kernels_for(backend).prefill_attention(test_device(backend, threads).foreground(), params);
    return rows_of(out);
  }
  // Of the prompt's rows in chunks of `chunk`.
  std::vector<float> result_in_chunks(int64_t chunk, int threads) {
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
    for (int64_t first = 0; first < params.rows; first += chunk) {
      PrefillAttentionParams part = params;
      part.q += first * params.q_stride;
      part.out += first * params.out_stride;
      part.first_position += first;
      part.rows = std::min(chunk, params.rows - first);
      kernels_for(backend).prefill_attention(test_device(backend, threads).foreground(), part);
    }
    return rows_of(out);
  }
  std::vector<float> expected() {
    std::vector<float> mine(out.size());
    params.out = mine.data();
    prefill_attention_ref(params);
    params.out = out.data();
    return rows_of(mine);
  }
  std::vector<float> rows_of(const std::vector<float>& x) const {
    const int64_t n = params.kv_heads * params.q_per_kv * params.head_dim;
    std::vector<float> rows;
    for (int64_t r = 0; r < params.rows; ++r)
      rows.insert(rows.end(), x.begin() + r * params.out_stride, x.begin() + r * params.out_stride + n);
    return rows;
  }

  static inline Backend backend = Backend::kCpu;  // that all results come from

  PrefillAttentionParams params;
  std::vector<bf16> k, v;
  std::vector<float> q, out;
};

// What computes: the GPU, or the CPU with an instruction set.
class PrefillAttentionOn : public OnTarget {
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

TEST_P(PrefillAttentionOn, EqualsCausalAttentionInFp64) {
  // The test's queries are bf16. AVX-512 scales and rounds them again; both it and the GPU round the weights to bf16.
  const bool rounds = GetParam().backend == Backend::kCuda || GetParam().level == CpuLevel::kAvx512;
  const double tolerance = rounds ? 1.5e-2 : 1e-5;
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows at " << c.first_position << ", head_dim " << c.head_dim);
    Problem problem(c);
    const std::vector<float> got = problem.result(2), want = problem.expected();
    double squares = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * c.logit_spread) << "element " << i;
      squares += (got[i] - want[i]) * (got[i] - want[i]);
    }
    EXPECT_LT(std::sqrt(squares / static_cast<double>(got.size())), tolerance * c.logit_spread / 5);
  }
}

TEST_P(PrefillAttentionOn, DoesNotDependOnChunksOrThreads) {
  Problem problem({90, 275, 2, 3, 64});
  const std::vector<float> whole = problem.result(1);
  EXPECT_EQ(problem.result(3), whole);
  for (int64_t chunk : {1, 16, 31, 100, 256}) EXPECT_EQ(problem.result_in_chunks(chunk, 2), whole) << chunk;
}

INSTANTIATE_TEST_SUITE_P(Targets, PrefillAttentionOn, all_targets(), target_name);

}  // namespace
}  // namespace oasis::kernels
