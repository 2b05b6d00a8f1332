#include "oasis/kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/matmul/matmul_ref.h"

namespace oasis::kernels {
namespace {

class Embedding : public testing::TestWithParam<Backend> {};

TEST_P(Embedding, EachRowIsItsTokensRowOfTheTable) {
  OASIS_SKIP_WITHOUT(GetParam());
  constexpr int64_t kVocab = 7, kHidden = 64;
  for (DType type : {DType::kQ8_0, DType::kBF16, DType::kF32}) {
    if (GetParam() == Backend::kCuda && type == DType::kQ8_0) continue;  // unpacked when a model is loaded
    std::vector<uint8_t> bytes(static_cast<size_t>(bytes_of(type, kVocab * kHidden)));
    // No exponent of a half or a bf16 is all ones.
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 59);
    const WeightView table{bytes.data(), type, kVocab, kHidden};
    const std::vector<int32_t> ids = {6, 0, 3, 3, 1};
    std::vector<float> out(ids.size() * kHidden);
    kernels_for(GetParam())
        .embedding(test_device(GetParam(), 2).foreground(),
                   {table, ids.data(), static_cast<int64_t>(ids.size()), out.data()});
    for (size_t r = 0; r < ids.size(); ++r) {
      const auto want = weight_row_ref(table, ids[r]);
      for (size_t k = 0; k < kHidden; ++k) EXPECT_EQ(out[r * kHidden + k], static_cast<float>(want[k]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Embedding, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

// The GPU cannot stop; the sampler reports the NaN.
TEST(EmbeddingOnCuda, AnIdOutsideTheVocabularyGivesNan) {
  OASIS_SKIP_WITHOUT(Backend::kCuda);
  const std::vector<float> table(4 * 8, 1.0f);
  std::vector<float> out(3 * 8);
  const int32_t ids[] = {4, 3, -1};
  kernels_for(Backend::kCuda)
      .embedding(test_device(Backend::kCuda).foreground(), {{table.data(), DType::kF32, 4, 8}, ids, 3, out.data()});
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 8 != 1) << i;
}

TEST(EmbeddingDeathTest, AnIdPastTheVocabularyIsNamed) {
  const std::vector<float> table(4 * 8);
  float out[8];
  const int32_t id = 4;
  const auto device = make_cpu_device(1);
  EXPECT_DEATH(embedding_cpu(device->foreground(), {{table.data(), DType::kF32, 4, 8}, &id, 1, out}),
               "token 4 is not in a vocabulary of 4");
}

}  // namespace
}  // namespace oasis::kernels
