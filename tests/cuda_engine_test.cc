// The engine on a GPU against the engine on the CPU, in every way to run. Skipped where no GPU is found.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "oasis/draft/testing/head_files.h"
#include "oasis/engine/engine_test_util.h"
#include "oasis/kernels/backend_test_util.h"

namespace oasis {
namespace {

using engine::Attention;
using engine::EngineConfig;
using engine::Request;
using engine::testing::Output;
using lookahead::FetchMode;

const std::string kSource = OASIS_SOURCE_DIR;
const std::string kModel = kSource + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
const std::string kHead = kSource + "/drafts/smollm2-135m-eagle3";
constexpr float kMargin = 0.15f;  // logits: below it rounding may decide

Device& gpu() { return kernels::test_device(Backend::kCuda); }

// The margin between the best logit and the next.
float margin_of(std::vector<float> z) {
  std::nth_element(z.begin(), z.begin() + 1, z.end(), std::greater<>());
  return z[0] - z[1];
}

int32_t best_of(const std::vector<float>& z) {
  return static_cast<int32_t>(std::max_element(z.begin(), z.end()) - z.begin());
}

struct Ran {
  std::vector<Output> outputs;
  std::vector<engine::RequestStats> stats;
  engine::EngineMetrics metrics;
};

// All requests at once.
Ran run_all(Device& device, const model::Checkpoint& model, const EngineConfig& config, std::vector<Request> requests,
            bool logits) {
  const auto engine = engine::testing::make_engine(config, model, device);
  Ran ran;
  ran.outputs.resize(requests.size());
  std::vector<engine::RequestId> ids;
  for (size_t i = 0; i < requests.size(); ++i) {
    engine::testing::report_to(ran.outputs[i], requests[i], logits);
    ids.push_back(engine::testing::submit(*engine, std::move(requests[i])));
  }
  engine->run_until_idle();
  const Status status = engine->check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < ids.size(); ++i) {
    ran.stats.push_back(engine->take_stats(ids[i]).value());
    EXPECT_EQ(ran.outputs[i].finishes, 1);
    EXPECT_NE(ran.outputs[i].finish, engine::FinishReason::kError) << ran.outputs[i].error.message();
  }
  ran.metrics = engine->metrics();
  return ran;
}

// A way to run, on the tiny model or, with larger numbers, on SmolLM2.
struct Mode {
  const char* name;
  Attention attention = Attention::kSparse;
  FetchMode fetch = FetchMode::kBounded;
  const char* draft = "none";  // "head": the model's own EAGLE-3 head
  bool accept = false;
  lookahead::BlockScore score = lookahead::BlockScore::kShrunk;

  EngineConfig config(const std::string& head) const {
    EngineConfig c;
    c.max_sequences = 3;
    c.attention = attention;
    c.fetch = fetch;
    c.block_score = score;
    c.top_k_blocks = 8;
    // Exact: the union of all rows' lists has to fit. Auto: prompts below the border outgrow it.
    c.resident_ratio = fetch == FetchMode::kExact ? 3 : 1.5;
    c.fetch_ratio = .25;
    c.draft = std::string_view(draft) == "head" ? "eagle3:" + head : draft;
    c.accept_drafts = accept;
    c.draft_tokens = 4;
    return c;
  }
};

constexpr Mode kModes[] = {
    {.name = "Dense", .attention = Attention::kDense},
    {.name = "SparseWithoutDrafts"},
    {.name = "SparseWithNgrams", .draft = "ngram"},
    {.name = "SparseWithAHead", .draft = "head"},
    {.name = "SparseByTheWholeBox", .draft = "ngram", .score = lookahead::BlockScore::kMinMax},
    {.name = "Auto", .attention = Attention::kAuto, .draft = "ngram"},
    {.name = "AutoWithAHead", .attention = Attention::kAuto, .draft = "head", .accept = true},
    {.name = "Adaptive", .fetch = FetchMode::kAdaptive, .draft = "ngram"},
    {.name = "AcceptedDense", .attention = Attention::kDense, .draft = "ngram", .accept = true},
    {.name = "AcceptedSparse", .draft = "ngram", .accept = true},
    {.name = "AcceptedFromAHead", .draft = "head", .accept = true},
    {.name = "Exact", .fetch = FetchMode::kExact, .draft = "ngram"},
    {.name = "ExactAccepted", .fetch = FetchMode::kExact, .draft = "ngram", .accept = true},
};

std::string mode_name(const testing::TestParamInfo<Mode>& info) { return info.param.name; }

// Compares the GPU's run of `requests` with the CPU's, free and teacher-forced along the CPU's output.
class GpuAgainstCpu : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(Backend::kCuda); }

  // `alike`: nothing but rounding may differ. A step that reads some blocks is chaotic: where two blocks score nearly
  // alike rounding decides which is read, and a random model's logits go with it.
  void compare(const model::Checkpoint& model, const EngineConfig& config, const std::vector<Request>& requests,
               bool alike) {
    const Ran want = run_all(*cpu_, model, config, requests, true);
    // Without logits asked for, the tokens come from the device's own argmax.
    const Ran got = run_all(gpu(), model, config, requests, false);
    std::vector<Request> forced = requests;
    for (size_t i = 0; i < requests.size(); ++i) forced[i].forced = want.outputs[i].tokens;
    const Ran cpu = run_all(*cpu_, model, config, forced, true), device = run_all(gpu(), model, config, forced, true);
    if (!config.accept_drafts) expect_alike_agreement(device.metrics.core, cpu.metrics.core);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(fmt::format("request {}", i));
      if (alike) expect_equal_up_to_a_small_margin(got.outputs[i].tokens, want.outputs[i]);
      EXPECT_EQ(device.outputs[i].tokens, forced[i].forced);
      count_best(device.outputs[i], cpu.outputs[i]);
      expect_the_modes_work(got.stats[i], requests[i]);
    }
  }

  // Of positions with a margin, at most so many in a hundred.
  void expect_the_best_tokens_differ_at_most(int64_t percent) const {
    EXPECT_GE(compared_, 100);
    EXPECT_LE(different_ * 100, compared_ * percent) << different_ << " of " << compared_ << " best tokens differ";
  }

 private:
  void expect_equal_up_to_a_small_margin(const std::vector<int32_t>& got, const Output& want) {
    ASSERT_EQ(got.size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size() && margin_of(want.logits[i]) >= kMargin; ++i) {
      ASSERT_EQ(got[i], want.tokens[i]) << "token " << i << " of " << got.size() << ", margin "
                                        << margin_of(want.logits[i]);
    }
  }
  void count_best(const Output& got, const Output& want) {
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t i = 0; i < want.logits.size(); ++i) {
      if (margin_of(want.logits[i]) < kMargin) continue;
      ++compared_;
      different_ += best_of(got.logits[i]) != best_of(want.logits[i]);
    }
  }
  // Along the same text as many heads are measured in as many steps, on the GPU in the captured steps themselves.
  static void expect_alike_agreement(const lookahead::CoreStats& got, const lookahead::CoreStats& want) {
    EXPECT_EQ(got.agreement_count, want.agreement_count);
    EXPECT_EQ(got.layer_agreement_count, want.layer_agreement_count);
    EXPECT_NEAR(got.agreement(), want.agreement(), .05);
    EXPECT_NEAR(got.cover(), want.cover(), .05);
  }
  static void expect_the_modes_work(const engine::RequestStats& stats, const Request& request) {
    const Mode& mode = GetParam();
    EXPECT_EQ(stats.output_tokens, request.max_tokens);
    if (mode.attention == Attention::kDense) {
      EXPECT_EQ(stats.sparse_steps, 0);
    }
    if (mode.attention == Attention::kSparse) {
      EXPECT_EQ(stats.sparse_steps, stats.steps);
    }
  }

  std::unique_ptr<Device> cpu_ = make_cpu_device(0);
  int64_t compared_ = 0, different_ = 0;
};

class TinyModel : public GpuAgainstCpu {
 protected:
  void compare_all(int32_t top_k_blocks, bool alike);
};

void TinyModel::compare_all(int32_t top_k_blocks, bool alike) {
  const model::ModelConfig tiny = engine::testing::tiny_config();
  const draft::HeadFiles::Folder folder("cuda_engine");
  draft::random_head({.hidden = tiny.hidden, .target_hidden = tiny.hidden, .vocab = static_cast<int>(tiny.vocab)}, 3)
      .write(folder.path());
  EngineConfig config = GetParam().config(folder.path());
  config.max_context = 448;
  config.prefill_chunk = 100;
  config.top_k_blocks = top_k_blocks;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    std::mt19937 random(seed);
    std::vector<Request> requests(3);
    // Those of `auto` (R = 12 blocks) begin dense or sparse or switch; the second ends first and leaves a gap.
    constexpr int64_t kPrompts[] = {180, 91, 330};
    constexpr int32_t kOutputs[] = {48, 20, 48};
    for (size_t i = 0; i < 3; ++i) {
      requests[i].prompt = engine::testing::repetitive_tokens(random, kPrompts[i], 12);
      requests[i].max_tokens = kOutputs[i];
    }
    compare(engine::testing::tiny_model(), config, requests, alike);
  }
}

TEST_P(TinyModel, TokensAreTheCpusUpToTheFirstSmallMarginWhereAllBlocksAreRead) {
  compare_all(28, true);
  expect_the_best_tokens_differ_at_most(1);
}

TEST_P(TinyModel, TokensAreMostlyTheCpusWhereSomeBlocksAreRead) {
  compare_all(8, GetParam().attention == Attention::kDense);
  expect_the_best_tokens_differ_at_most(33);
}

INSTANTIATE_TEST_SUITE_P(Modes, TinyModel, testing::ValuesIn(kModes), mode_name);

std::string read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class SmolLm2 : public GpuAgainstCpu {};

TEST_P(SmolLm2, TokensAreTheCpusUpToTheFirstSmallMargin) {
  if (!std::filesystem::exists(kModel)) GTEST_SKIP() << "needs " << kModel << " (make model)";
  const auto checkpoint = model::Checkpoint::open(kModel);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto spec = checkpoint->tokenizer_spec();
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto tokenizer = text::Tokenizer::create(std::move(*spec));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::vector<int32_t> text = tokenizer->encode(read(kSource + "/docs/architecture.md"), false, false);
  EngineConfig config = GetParam().config(kHead);
  config.max_sequences = 2;
  config.max_context = 640;
  config.top_k_blocks = 12;  // R = 18 blocks
  std::vector<Request> requests(2);
  constexpr size_t kPrompts[] = {240, 470};
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_GE(text.size(), kPrompts[i]);
    requests[i].prompt.assign(text.begin(), text.begin() + static_cast<int64_t>(kPrompts[i]));
    requests[i].max_tokens = 128;
    requests[i].ignore_eos = true;
  }
  compare(*checkpoint, config, requests, true);
  expect_the_best_tokens_differ_at_most(1);
}

INSTANTIATE_TEST_SUITE_P(Modes, SmolLm2, testing::ValuesIn(kModes), mode_name);

}  // namespace
}  // namespace oasis
