// The product of few rows with what it takes in, against fp64 from the operands as they are rounded. Skipped where no
// GPU is found.
#include <cmath>
#include <limits>

#include "oasis/base/numeric.h"
#include "oasis/kernels/matmul/matmul_cuda.h"
#include "oasis/kernels/step/step_cuda_test_util.h"

namespace oasis::kernels {
namespace {

using namespace step_testing;

std::vector<uint16_t> rounded(const std::vector<float>& x) {
  std::vector<uint16_t> out;
  for (const float v : x) out.push_back(to_bf16(v).bits);
  return out;
}
double value(uint16_t bits) { return to_float(bf16{bits}); }

// [rows, n] = x [rows, k] w [n, k]^T
std::vector<double> product(const std::vector<uint16_t>& x, const std::vector<uint16_t>& w, int64_t rows, int64_t k) {
  const int64_t n = static_cast<int64_t>(w.size()) / k;
  std::vector<double> y(static_cast<size_t>(rows * n));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < k; ++c) {
        y[static_cast<size_t>(r * n + i)] +=
            value(x[static_cast<size_t>(r * k + c)]) * value(w[static_cast<size_t>(i * k + c)]);
      }
    }
  }
  return y;
}

double distance(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) error += std::pow(got[i] - want[i], 2), size += want[i] * want[i];
  return std::sqrt(error / size);
}
std::vector<double> wide(const std::vector<float>& x) { return {x.begin(), x.end()}; }

struct Shape {
  int32_t rows;
  int64_t k, n;
};
// Fewer chunks than warps, some more, many; tiles of one CTA and of more than a GPU has.
constexpr Shape kShapes[] = {{1, 64, 16}, {2, 576, 48}, {5, 4096, 96}, {8, 1536, 8192}, {3, 96, 160}};

class FewRows : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(Backend::kCuda); }
  static std::vector<uint16_t> weights(int64_t n, int64_t k, uint32_t seed) {
    return rounded(normal_floats(n * k, seed, 1 / std::sqrt(static_cast<float>(k))));
  }
};

TEST_P(FewRows, StoreAndAddAsFp64DoesWithBothKindsOfInput) {
  const auto [rows, k, n] = GetParam();
  const Both<uint16_t> w(weights(n, k, 1));
  const Both<float> x(normal_floats(rows * k, 2));
  const Both<uint16_t> x_bf16(rounded(x.host));
  const int64_t stride = n + 3;
  const std::vector<double> want = product(x_bf16.host, w.host, rows, k);
  for (const bool bf16_input : {false, true}) {
    for (const bool accumulate : {false, true}) {
      Both<float> y(normal_floats(rows * stride, 3));
      gemm_few_rows(foreground(), {.rows = rows,
                                   .k = k,
                                   .n = n,
                                   .w = w.device(),
                                   .x = bf16_input ? nullptr : x.device(),
                                   .x_bf16 = bf16_input ? x_bf16.device() : nullptr,
                                   .x_stride = k,
                                   .y = y.device(),
                                   .y_stride = stride,
                                   .accumulate = accumulate});
      const std::vector<float> got = y.download();
      std::vector<double> inside;
      for (int64_t i = 0; i < rows * stride; ++i) {
        const auto at = static_cast<size_t>(i);
        if (i % stride < n) {
          inside.push_back(accumulate ? double{got[at]} - y.host[at] : got[at]);
        } else {
          EXPECT_EQ(got[at], y.host[at]);
        }
      }
      EXPECT_LT(distance(inside, want), 1e-5) << bf16_input << accumulate;
    }
  }
}

// Rows 1 and 2 of every three of x, normed.
TEST_P(FewRows, NormAndGateAsFp64Does) {
  const auto [rows, k, n] = GetParam();
  constexpr float kEps = 1e-5f;
  const int32_t per_item = 2, item_rows = 3;
  const Both<float> x(normal_floats(((rows + 1) / 2) * item_rows * k, 4, 3)), norm(normal_floats(k, 5));
  const Both<uint16_t> w(weights(2 * n, k, 6));
  std::vector<float> normed;
  for (int32_t r = 0; r < rows; ++r) {
    const float* row = x.host.data() + (r / per_item * item_rows + r % per_item) * k;
    double squares = 0;
    for (int64_t c = 0; c < k; ++c) squares += double{row[c]} * row[c];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(k) + kEps);
    for (int64_t c = 0; c < k; ++c)
      normed.push_back(static_cast<float>(row[c] * scale * norm.host[static_cast<size_t>(c)]));
  }
  const std::vector<double> both = product(rounded(normed), w.host, rows, k);
  FewRowsParams p{.rows = rows,
                  .k = k,
                  .n = 2 * n,
                  .w = w.device(),
                  .x = x.device(),
                  .x_stride = k,
                  .norm = norm.device(),
                  .eps = kEps,
                  .per_item = per_item,
                  .item_rows = item_rows};
  const Both<float> y(std::vector<float>(static_cast<size_t>(rows * 2 * n), NAN));
  p.y = y.device(), p.y_stride = 2 * n;
  gemm_few_rows(foreground(), p);
  // A sum near the border between two bf16 may be rounded to either.
  EXPECT_LT(distance(wide(y.download()), both), 1e-3);

  const Both<uint16_t> gated(std::vector<uint16_t>(static_cast<size_t>(rows * n), 0x7fc0));
  p.y = nullptr, p.gated = gated.device();
  gemm_few_rows(foreground(), p);
  std::vector<double> got, want;
  for (const uint16_t bits : gated.download()) got.push_back(value(bits));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      const double gate = both[static_cast<size_t>(r * 2 * n + i)], up = both[static_cast<size_t>(r * 2 * n + n + i)];
      want.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  EXPECT_LT(distance(got, want), 4e-3);
}

TEST_P(FewRows, ANaNStaysInItsRow) {
  const auto [rows, k, n] = GetParam();
  const Both<uint16_t> w(weights(n, k, 7));
  std::vector<float> values = normal_floats(rows * k, 8);
  values.back() = std::numeric_limits<float>::quiet_NaN();
  const Both<float> x(values), y(std::vector<float>(static_cast<size_t>(rows * n)));
  gemm_few_rows(
      foreground(),
      {.rows = rows, .k = k, .n = n, .w = w.device(), .x = x.device(), .x_stride = k, .y = y.device(), .y_stride = n});
  const std::vector<float> got = y.download();
  for (int64_t i = 0; i < rows * n; ++i) EXPECT_EQ(std::isnan(got[static_cast<size_t>(i)]), i / n == rows - 1) << i;
}

INSTANTIATE_TEST_SUITE_P(Cuda, FewRows, testing::ValuesIn(kShapes));

}  // namespace
}  // namespace oasis::kernels
