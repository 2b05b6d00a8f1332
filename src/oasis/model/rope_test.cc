#include "oasis/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "oasis/model/checkpoint.h"
#include "oasis/model/test_files.h"

namespace oasis::model {
namespace {

using ::testing::HasSubstr;

// transformers computed the frequencies of every tiny checkpoint: plain, llama3, YaRN, and GGUF's divisors of llama3.
TEST(Rope, FrequenciesAndScaleAreThoseOfTransformers) {
  for (const char* name : {"llama-gqa3", "llama-hd96", "llama3-rope", "llama-yarn-hd80", "qwen3", "qwen3-yarn",
                           "llama3-rope-gguf/model.gguf", "qwen3-yarn-gguf/model.gguf"}) {
    const std::string path = test::models_folder() + "/" + name;
    auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const std::string folder = path.substr(0, path.find("/model.gguf"));
    const auto reference = nlohmann::json::parse(test::read_file(folder + "/reference.json"));
    const RopeConfig& rope = checkpoint->config().rope;
    const std::vector<double> got = rope_frequencies(rope, checkpoint->config().head_dim);
    const auto& wanted = reference["rope_frequencies"];
    ASSERT_EQ(got.size(), wanted.size()) << name;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i] / wanted[i].get<double>(), 1, 2e-6) << name << " pair " << i;
    EXPECT_NEAR(rope_attention_scale(rope), reference["rope_attention_scale"].get<double>(), 1e-6) << name;
  }
}

// By hand from the published formula, for Llama 3.1 (theta 500000, factor 8, original context 8192).
TEST(Rope, Llama31KeepsShortWavesAndDividesLongOnes) {
  RopeConfig rope;
  rope.theta = 500000;
  const std::vector<double> plain = rope_frequencies(rope, 128);
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.original_context = 8192;
  const std::vector<double> scaled = rope_frequencies(rope, 128);
  EXPECT_DOUBLE_EQ(scaled[0], 1.0);
  EXPECT_DOUBLE_EQ(scaled[28], plain[28]);      // 1,957 positions a turn: under 8192 / 4
  EXPECT_DOUBLE_EQ(scaled[63], plain[63] / 8);  // 2,559,000 positions a turn: over 8192
  // Pair 32: 4,443 positions a turn, s = (8192 / 4442.9 - 1) / 3 = 0.28129.
  EXPECT_NEAR(scaled[32] / plain[32], (1 - 0.28129) / 8 + 0.28129, 1e-4);
}

// Both ends of YaRN's ramp fall on pair 0, where a plain quotient would be 0 / 0.
TEST(Rope, YarnOfATinyOriginalContextDividesEveryPairButTheFirst) {
  RopeConfig rope;
  const std::vector<double> plain = rope_frequencies(rope, 64);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_context = 6;
  const std::vector<double> scaled = rope_frequencies(rope, 64);
  EXPECT_DOUBLE_EQ(scaled[0], plain[0]);
  for (size_t i = 1; i < 32; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, ValuesOutOfRangeAreErrorsThatNameThem) {
  const auto error = [](auto change) {
    RopeConfig rope;
    rope.scaling = RopeScaling::kYarn;
    rope.factor = 4;
    rope.original_context = 4096;
    EXPECT_TRUE(validate(rope, 64).ok());
    change(rope);
    return validate(rope, 64).message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(error([](RopeConfig& r) { r.theta = 1; }), HasSubstr("theta 1"));
  EXPECT_THAT(error([&](RopeConfig& r) { r.theta = nan; }), HasSubstr("theta nan"));
  EXPECT_THAT(error([](RopeConfig& r) { r.factor = 0.5f; }), HasSubstr("factor 0.5"));
  EXPECT_THAT(error([&](RopeConfig& r) { r.factor = nan; }), HasSubstr("factor nan"));
  EXPECT_THAT(error([](RopeConfig& r) { r.original_context = 0; }), HasSubstr("original context 0"));
  EXPECT_THAT(error([](RopeConfig& r) { r.attention_factor = -1; }), HasSubstr("attention_factor -1"));
  EXPECT_THAT(error([](RopeConfig& r) { r.beta_slow = 40; }), HasSubstr("beta_slow 40"));
  EXPECT_THAT(error([](RopeConfig& r) { r.freq_divisors.assign(31, 1.0f); }), HasSubstr("31"));
  EXPECT_THAT(error([](RopeConfig& r) { r.freq_divisors.assign(32, 0.0f); }), HasSubstr("divisor 0"));
  EXPECT_THAT(error([](RopeConfig& r) {
                r.scaling = RopeScaling::kLlama3;
                r.high_freq_factor = r.low_freq_factor;
              }),
              HasSubstr("low_freq_factor"));
}

}  // namespace
}  // namespace oasis::model
