// Every task on a tiny random model, and what the tasks stand on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "eval/block_rule.h"
#include "eval/task.h"
#include "oasis/model/random_checkpoint.h"

namespace oasis::eval {
namespace {

Device& device() {
  static const auto device = make_cpu_device(1);
  return *device;
}

const model::Checkpoint& tiny_model() {
  static const model::Checkpoint checkpoint = [] {
    model::ModelConfig c;
    c.name = "tiny", c.layers = 2, c.hidden = 64, c.heads = 2, c.kv_heads = 1, c.head_dim = 64;
    c.intermediate = 64, c.vocab = 300, c.context = 4096;
    return model::make_random(c, 7);
  }();
  return checkpoint;
}

Text random_text(const char* kind, uint32_t seed, int tokens = 900) {
  std::mt19937 random(seed);
  Text text{kind, {}};
  for (int i = 0; i < tokens; ++i) text.tokens.push_back(static_cast<int32_t>(random() % 300));
  return text;
}

// Ids 0 .. 127 are the ASCII bytes, the rest are words.
const text::Tokenizer& tiny_tokenizer() {
  static const auto made = [] {
    text::TokenizerSpec spec;
    int other = 0;  // bytes that do not print stand for themselves from 256 on
    for (int i = 0; i < 300; ++i) {
      const int c = i > 32 && i < 127 ? i : 256 + other++;
      spec.tokens.push_back(i >= 128 ? fmt::format("w{}", i)
                            : c < 128
                                ? std::string(1, static_cast<char>(c))
                                : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))});
    }
    auto t = text::Tokenizer::create(std::move(spec));
    EXPECT_TRUE(t.ok()) << t.status().message();
    return std::move(*t);
  }();
  return made;
}

class EvalTest : public testing::Test {
 protected:
  EvalTest() : folder_(testing::TempDir() + "eval_" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~EvalTest() override { std::filesystem::remove_all(folder_); }

  Context context() const {
    engine::EngineConfig base;
    base.top_k_blocks = 4;
    base.draft = "ngram";
    return {.device = device(),
            .checkpoint = tiny_model(),
            .tokenizer = nullptr,
            .base = base,
            .texts = {random_text("a", 1), random_text("b", 2)},
            .context = 256,
            .steps = 12,
            .out = folder_};
  }
  double number(const Table& t, size_t row, const std::string& column) const {
    const auto at = std::find(t.columns.begin(), t.columns.end(), column) - t.columns.begin();
    return t.rows[row][static_cast<size_t>(at)].get<double>();
  }

  const std::string folder_;
};

TEST_F(EvalTest, EveryTaskEndsWithATableAndAPicture) {
  for (const Task& task : tasks()) {
    SCOPED_TRACE(task.name);
    Context c = context();
    c.tokenizer = &tiny_tokenizer();
    if (task.name == std::string("recall")) c.context = 1200, c.texts = {random_text("a", 1, 1200)};
    const auto outcome = task.run(c);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_FALSE(outcome->table.rows.empty());
    for (const auto& row : outcome->table.rows) EXPECT_EQ(row.size(), outcome->table.columns.size());
    EXPECT_THAT(outcome->picture, testing::StartsWith("<svg"));
    EXPECT_EQ(outcome->picture.find("nan"), std::string::npos);
  }
}

TEST_F(EvalTest, RecallSaysThatItNeedsATokenizer) {
  const auto outcome = recall(context());
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), testing::HasSubstr("tokenizer"));
}

TEST_F(EvalTest, RecallRefusesAContextTooShortForItsQuestions) {
  Context c = context();
  c.tokenizer = &tiny_tokenizer();
  c.context = 600;
  const auto outcome = recall(c);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), testing::HasSubstr("--context 600"));
}

TEST_F(EvalTest, ReadingAllBlocksExactlyIsTheDenseRun) {
  const auto outcome = k_sweep(context());
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  const Table& t = outcome->table;
  int found = 0;
  for (size_t r = 0; r < t.rows.size(); ++r) {
    if (t.rows[r][0] != "exact") continue;
    const bool all = t.rows[r][1] == 256 / 16;
    if (all) {
      EXPECT_LT(number(t, r, "KL"), 1e-5);
      EXPECT_EQ(number(t, r, "top-1"), 1);
      ++found;
    } else {
      EXPECT_GT(number(t, r, "KL"), 1e-5);
    }
  }
  EXPECT_EQ(found, 3);  // two texts and both together
}

TEST_F(EvalTest, TheTokenThatThePrefillGaveIsNotScored) {
  const auto outcome = quality(context());
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(number(outcome->table, 0, "tokens"), 11);
  EXPECT_EQ(number(outcome->table, 2, "tokens"), 22);
  EXPECT_EQ(number(outcome->table, 0, "KL"), 0);
}

TEST_F(EvalTest, AStoppedTaskGoesOnWhereItStopped) {
  Context c = context();
  int asked = 0;
  c.stopped = [&] { return ++asked > 5; };
  const auto stopped = quality(c);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
  // Ended in the middle of a line.
  std::ofstream(folder_ + "/quality.journal", std::ios::app) << "{\"key\": \"half";
  asked = 0;
  c.stopped = [&] { return ++asked > 11; };  // 16 runs, of which 5 are done
  const auto resumed = quality(c);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  std::filesystem::remove(folder_ + "/quality.journal");
  c.stopped = nullptr;
  const auto whole = quality(c);
  ASSERT_TRUE(whole.ok());
  for (size_t r = 0; r < whole->table.rows.size(); ++r) {
    if (whole->table.rows[r][0].get<std::string>().starts_with("adaptive")) continue;  // follows the clock
    for (size_t column = 0; column < whole->table.columns.size(); ++column) {
      if (whole->table.columns[column] == "tokens/s") continue;
      EXPECT_EQ(resumed->table.rows[r][column], whole->table.rows[r][column]) << whole->table.columns[column];
    }
  }
}

TEST_F(EvalTest, PiecesThatAreNotThereAreAnErrorWithNumbers) {
  Context c = context();
  c.pieces = 4;
  const auto outcome = quality(c);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), testing::AllOf(testing::HasSubstr("900"), testing::HasSubstr("4 pieces")));
}

TEST_F(EvalTest, AgreementIsApartByWhatBecameOfTheDraft) {
  Context c = context();
  // A text that repeats itself, so that copied drafts are right, and then stops doing so.
  for (Text& text : c.texts) {
    for (size_t i = 200; i < 245; ++i) text.tokens[i] = text.tokens[i - 20];
  }
  c.steps = 24;
  const auto outcome = agreement(c);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  bool right = false, wrong = false;
  for (const auto& row : outcome->table.rows) right |= !row[4].is_null(), wrong |= !row[5].is_null();
  EXPECT_TRUE(right);
  EXPECT_TRUE(wrong);
}

class BlockRuleTest : public EvalTest {
 protected:
  Json forced_run(const Variant& v) const {
    auto session = Session::create(device(), tiny_model(), v, 256);
    EXPECT_TRUE(session.ok()) << session.status().message();
    const std::span<const int32_t> all(text_.tokens);
    const auto run = session->run({.prompt = all.first(200), .forced = all.subspan(200, 40)});
    EXPECT_TRUE(run.ok()) << run.status().message();
    Json j = sums(*run, context().heads());
    if (v.finish) v.finish(j);
    return j;
  }
  Variant exact(lookahead::BlockScore score, kv::KvType rows) const {
    Variant v = policy(context(), "exact", lookahead::FetchMode::kExact, 1.5);
    v.config.block_score = score, v.config.summary_type = rows, v.config.draft = "none";
    return v;
  }
  const Text text_ = random_text("a", 1);
};

TEST_F(BlockRuleTest, RulesThatTheEngineHasChooseAsTheEngineDoes) {
  using lookahead::BlockScore;
  const auto minmax = exact(BlockScore::kMinMax, kv::KvType::kBf16);
  const auto shrunk = exact(BlockScore::kShrunk, kv::KvType::kBf16);
  const auto fp8 = exact(BlockScore::kShrunk, kv::KvType::kFp8E4M3);
  const double a = forced_run(minmax)["nll"], b = forced_run(shrunk)["nll"], c = forced_run(fp8)["nll"];
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
  // The study's choice takes the place of another rule's.
  EXPECT_EQ(forced_run(with_rule(shrunk, {.name = "minmax"}))["nll"], a);
  EXPECT_EQ(forced_run(with_rule(minmax, {.name = "shrunk", .beta = 0.5f, .pin_first = true}))["nll"], b);
  EXPECT_EQ(forced_run(with_rule(
                minmax, {.name = "fp8", .beta = 0.5f, .rows = BlockRule::Rows::kFp8, .pin_first = true}))["nll"],
            c);
}

TEST_F(BlockRuleTest, MassIsThatOfTheChoiceAndAtMostTheIdeal) {
  Variant v = exact(lookahead::BlockScore::kShrunk, kv::KvType::kBf16);
  const Json some = forced_run(with_rule(v, {.name = "prob", .beta = 0.5f, .prob = true}));
  EXPECT_GT(ratio(some, "mass", "mass_count"), 0.2);
  EXPECT_LT(ratio(some, "mass", "mass_count"), ratio(some, "ideal_mass", "mass_count"));
  EXPECT_LT(ratio(some, "ideal_mass", "mass_count"), 1);
  v.config.top_k_blocks = 16;  // all
  const Json all = forced_run(with_rule(v, {.name = "prob", .beta = 0.5f, .prob = true}));
  EXPECT_NEAR(ratio(all, "mass", "mass_count"), 1, 1e-6);
  EXPECT_GT(some["lru_misses"], 0);
  EXPECT_LT(all["lru_misses"], 10);  // blocks that are new
}

TEST_F(BlockRuleTest, AChoiceAmongResidentsFetchesNothingOnDemand) {
  const Variant v = exact(lookahead::BlockScore::kShrunk, kv::KvType::kBf16);
  EXPECT_GT(forced_run(v)["demand"], 0);
  EXPECT_EQ(
      forced_run(with_rule(v, {.name = "there", .beta = 0.5f, .pin_first = true, .residents_only = true}))["demand"],
      0);
}

TEST_F(EvalTest, QuestionsAreScoredByMatchByChoiceAndByTheMeanOfSamples) {
  Context c = context();
  c.tokenizer = &tiny_tokenizer();
  c.tasks_file = folder_ + "/questions.jsonl";
  const std::string prompt = "What is it?\nAnswer:";
  // What the model says: greedily, and with the first sample's seed.
  auto session = Session::create(device(), tiny_model(), dense(c), 256);
  ASSERT_TRUE(session.ok());
  const auto tokens = tiny_tokenizer().encode(prompt, true, false);
  const auto greedy = session->run({.prompt = tokens, .free_tokens = 6});
  const auto sampled = session->run({.prompt = tokens, .free_tokens = 6, .sampling = {.temperature = 2, .seed = 1}});
  ASSERT_TRUE(greedy.ok() && sampled.ok());
  // The likelier of two choices, from the log-probabilities of a forced run.
  const std::vector<std::string> choices = {" yes", " no, never"};
  std::vector<double> likely;
  for (const auto& choice : choices) {
    auto forced = tiny_tokenizer().encode(choice, false, false);
    forced.insert(forced.begin(), tokens.back());
    Reference seen;
    ASSERT_TRUE(
        session->run({.prompt = std::span(tokens).first(tokens.size() - 1), .forced = forced, .record = &seen}).ok());
    double sum = 0;
    for (size_t i = 1; i < forced.size(); ++i) sum += seen[i][static_cast<size_t>(forced[i])];
    likely.push_back(sum / static_cast<double>(forced.size() - 1));
  }
  const int right = likely[0] > likely[1] ? 0 : 1;
  const auto said = [](const eval::Run& run) { return tiny_tokenizer().decode(run.tokens, true); };
  const auto ask = [&](const std::vector<Json>& lines) {
    std::ofstream file(c.tasks_file);
    for (const Json& line : lines) file << line.dump() << "\n";
    file.close();
    const auto outcome = quality(c);
    EXPECT_TRUE(outcome.ok()) << outcome.status().message();
    return number(outcome->table, 0, "score");
  };
  const Json match = {{"prompt", prompt}, {"answer", said(*greedy)}, {"max_tokens", 6}};
  const Json boxed = {{"prompt", prompt}, {"answer", "42"}, {"max_tokens", 6}};
  EXPECT_EQ(ask({match}), 1);
  EXPECT_EQ(ask({match, boxed}), 0.5);
  EXPECT_EQ(ask({{{"prompt", prompt}, {"choices", choices}, {"answer", right}}}), 1);
  EXPECT_EQ(ask({{{"prompt", prompt}, {"choices", choices}, {"answer", 1 - right}}}), 0);
  const Json four = {
      {"prompt", prompt}, {"answer", said(*sampled)}, {"max_tokens", 6}, {"samples", 4}, {"temperature", 2}};
  EXPECT_EQ(ask({four}), 0.25);  // the other three say something else
}

TEST_F(EvalTest, AQuestionThatCannotBeAskedIsAnErrorWithItsLine) {
  Context c = context();
  c.tokenizer = &tiny_tokenizer();
  c.tasks_file = folder_ + "/questions.jsonl";
  std::ofstream(c.tasks_file) << R"({"prompt": "a", "answer": "b"})" << "\n"
                              << R"({"prompt": "a", "choices": ["x", "y"], "answer": 2})" << "\n";
  const auto outcome = quality(c);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), testing::HasSubstr("questions.jsonl:2"));
}

TEST(EvalReport, CsvQuotesWhatNeedsIt) {
  const Table t{"t", {"a", "b"}, {{"x, y", 0.5}, {Json(), 3}}};
  EXPECT_EQ(t.csv(), "a,b\n\"x, y\",0.5\n,3\n");
}

TEST(EvalReport, SumsAddUpMemberByMember) {
  Json to;
  add(to, {{"n", 2}, {"sum", 0.5}, {"list", {1.0, 2.0}}});
  add(to, {{"n", 3}, {"sum", 1.5}, {"list", {10.0, 20.0}}});
  EXPECT_EQ(to, (Json{{"n", 5}, {"sum", 2.0}, {"list", {11.0, 22.0}}}));
  EXPECT_EQ(ratio(to, "sum", "n"), 0.4);
}

}  // namespace
}  // namespace oasis::eval
