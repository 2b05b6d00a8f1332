// The whole engine on SmolLM2-135M-Instruct against reference.json of its EAGLE-3 head: fp32 PyTorch on the dequantised
// weights. Tokens must be equal up to the first margin under 0.15 logits and, teacher-forced, wherever the margin is at
// least that.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "oasis/engine/engine.h"

namespace oasis {
namespace {

const std::string kSource = OASIS_SOURCE_DIR;
const std::string kModel = kSource + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
const std::string kHead = kSource + "/drafts/smollm2-135m-eagle3";
constexpr double kMargin = 0.15;

class Reference : public testing::TestWithParam<engine::EngineConfig> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "needs " << kModel << " (make model)";
    auto opened = model::Checkpoint::open(kModel);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    checkpoint_.emplace(std::move(*opened));
    reference_ = nlohmann::json::parse(std::ifstream(kHead + "/reference.json"));
  }

  // Greedy output of the prompt; `forced`: the sequence follows it and the argmax of every position is returned.
  std::vector<int32_t> run(const std::vector<int32_t>& prompt, const std::vector<int32_t>& forced, int32_t tokens) {
    engine::EngineConfig config = GetParam();
    config.max_context = 512;
    auto engine = engine::Engine::create(*device_, *checkpoint_, nullptr, config);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    std::vector<int32_t> out, best;
    engine::Request r;
    r.prompt = prompt;
    r.max_tokens = tokens;
    r.ignore_eos = true;
    r.forced = forced;
    r.on_logits = [&](int32_t, std::span<const float> z) {
      best.push_back(static_cast<int32_t>(std::max_element(z.begin(), z.end()) - z.begin()));
    };
    r.on_event = [&](const engine::Event& e) {
      for (const auto& t : e.tokens) out.push_back(t.token);
    };
    EXPECT_TRUE((*engine)->submit(std::move(r)).ok());
    (*engine)->run_until_idle();
    EXPECT_TRUE((*engine)->check_integrity().ok()) << (*engine)->check_integrity().message();
    return forced.empty() ? out : best;
  }

  std::unique_ptr<Device> device_ = make_cpu_device(2);
  std::optional<model::Checkpoint> checkpoint_;
  nlohmann::json reference_;
};

TEST_P(Reference, GreedyTokensAreTheReferencesUpToTheFirstSmallMargin) {
  for (const auto& p : reference_["prompts"]) {
    const std::vector<int32_t> expected = p["continuation"];
    const std::vector<double> margins = p["margins"];
    const auto first_small =
        std::find_if(margins.begin(), margins.end(), [](double m) { return m < kMargin; }) - margins.begin();
    const auto got = run(p["prompt"], {}, static_cast<int32_t>(expected.size()));
    ASSERT_EQ(got.size(), expected.size());
    for (int64_t i = 0; i < first_small; ++i)
      EXPECT_EQ(got[static_cast<size_t>(i)], expected[static_cast<size_t>(i)]) << "token " << i;
  }
}

TEST_P(Reference, TeacherForcedTheBestTokenIsTheReferencesWhereverTheMarginIsLarge) {
  int compared = 0;
  for (const auto& p : reference_["prompts"]) {
    const std::vector<int32_t> expected = p["continuation"];
    const std::vector<double> margins = p["margins"];
    const auto best = run(p["prompt"], expected, static_cast<int32_t>(expected.size()));
    ASSERT_GE(best.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (margins[i] < kMargin) continue;
      EXPECT_EQ(best[i], expected[i]) << "position " << i << ", margin " << margins[i];
      ++compared;
    }
  }
  EXPECT_GE(compared, 48);
}

engine::EngineConfig dense() { return {.attention = engine::Attention::kDense, .draft = "none"}; }
engine::EngineConfig sparse() { return {.attention = engine::Attention::kSparse, .draft = "eagle3:" + kHead}; }
engine::EngineConfig exact() {
  return {.attention = engine::Attention::kSparse, .fetch = lookahead::FetchMode::kExact, .draft = "ngram"};
}
engine::EngineConfig accepting() {
  return {.attention = engine::Attention::kDense, .draft = "eagle3:" + kHead, .draft_tokens = 4, .accept_drafts = true};
}

std::string mode_name(const testing::TestParamInfo<engine::EngineConfig>& info) {
  constexpr const char* names[] = {"Dense", "Sparse", "Exact", "AcceptedDrafts"};
  return names[info.index];
}
INSTANTIATE_TEST_SUITE_P(Modes, Reference, testing::Values(dense(), sparse(), exact(), accepting()), mode_name);

}  // namespace
}  // namespace oasis
