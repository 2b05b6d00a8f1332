// The exact policy is exact on a real model and a long context. Takes a minute: ctest -L slow.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "oasis/engine/engine_test_util.h"

namespace oasis {
namespace {

const std::string kSource = OASIS_SOURCE_DIR;
const std::string kModel = kSource + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr size_t kPrompt = 6000;
constexpr int32_t kOutput = 32;

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ExactOnALongContext, TokensAndLogitsDoNotDependOnTheFastTier) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "too slow under sanitizers";
#endif
  if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "needs " << kModel << " (make model)";
  const auto checkpoint = model::Checkpoint::open(kModel);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto spec = checkpoint->tokenizer_spec();
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto tokenizer = text::Tokenizer::create(std::move(*spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  engine::Request request;
  const std::string text = read(kSource + "/docs/design.md") + read(kSource + "/docs/architecture.md") +
                           read(kSource + "/docs/decisions.md");
  request.prompt = tokenizer->encode(text, false, false);
  ASSERT_GE(request.prompt.size(), kPrompt) << "a longer text is needed";
  request.prompt.resize(kPrompt);
  request.max_tokens = kOutput;
  request.ignore_eos = true;

  const auto device = make_cpu_device(0);
  const auto run = [&](double resident_ratio, int64_t* fetched) {
    engine::EngineConfig config;
    config.max_context = kPrompt + kOutput;
    config.attention = engine::Attention::kSparse;
    config.fetch = lookahead::FetchMode::kExact;
    config.top_k_blocks = 64;  // of 377
    config.resident_ratio = resident_ratio;
    config.draft = "ngram";
    auto engine = engine::Engine::create(*device, *checkpoint, nullptr, config);
    OASIS_CHECK(engine.ok(), "{}", engine.status().message());
    auto out = engine::testing::run(**engine, request, true);
    *fetched = (*engine)->metrics().core.blocks;
    return out;
  };
  int64_t none = 0, some = 0;
  const auto want = run(6, &none), got = run(1, &some);
  EXPECT_EQ(none, 0);
  EXPECT_GT(some, 1000);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(want.tokens.size(), static_cast<size_t>(kOutput));
}

}  // namespace
}  // namespace oasis
