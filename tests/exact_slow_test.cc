// The exact policy is exact on a real model and a long context. Takes a minute: ctest -L slow. OASIS_EXACT_TOKENS sets
// how many tokens are decoded (default 32) and, if set, has the same from a file below a small cache as well.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "oasis/engine/engine_test_util.h"

namespace oasis {
namespace {

const std::string kSource = OASIS_SOURCE_DIR;
const std::string kModel = kSource + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr size_t kPrompt = 6000;

const char* tokens_set() { return std::getenv("OASIS_EXACT_TOKENS"); }

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
  request.max_tokens = tokens_set() ? std::atoi(tokens_set()) : 32;
  request.ignore_eos = true;

  const auto device = make_cpu_device(0);
  const auto run = [&](double resident_ratio, const std::string& file, int64_t* fetched) {
    engine::EngineConfig config;
    config.max_context = kPrompt + request.max_tokens;
    config.attention = engine::Attention::kSparse;
    config.fetch = lookahead::FetchMode::kExact;
    config.top_k_blocks = 64;  // of 377
    config.resident_ratio = resident_ratio;
    config.draft = "ngram";
    if (!file.empty()) {
      config.capacity_file = file;
      config.capacity_memory = 24 << 20;  // a sixth of the KV
    }
    auto engine = engine::Engine::create(*device, *checkpoint, nullptr, config);
    OASIS_CHECK(engine.ok(), "{}", engine.status().message());
    auto out = engine::testing::run(**engine, request, true);
    *fetched = (*engine)->metrics().core.blocks;
    return out;
  };
  int64_t none = 0;
  const auto want = run(7, "", &none);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(want.tokens.size(), static_cast<size_t>(request.max_tokens));
  std::vector<std::string> tiers = {""};
  if (tokens_set()) tiers.push_back(std::filesystem::temp_directory_path() / fmt::format("oasis-exact-{}", ::getpid()));
  for (const std::string& file : tiers) {
    SCOPED_TRACE(file.empty() ? "DRAM" : file);
    int64_t some = 0;
    const auto got = run(1, file, &some);
    EXPECT_GT(some, 1000);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.logits, want.logits);
  }
}

}  // namespace
}  // namespace oasis
