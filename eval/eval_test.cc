// Every task on a tiny random model, and what the tasks stand on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

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

Text random_text(const char* kind, uint32_t seed) {
  std::mt19937 random(seed);
  Text text{kind, {}};
  for (int i = 0; i < 900; ++i) text.tokens.push_back(static_cast<int32_t>(random() % 300));
  return text;
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
    if (task.name == std::string("recall")) continue;  // made of words
    const auto outcome = task.run(context());
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
  c.stopped = [&] { return ++asked > 9; };  // 14 runs, of which 5 are done
  const auto resumed = quality(c);
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  std::filesystem::remove(folder_ + "/quality.journal");
  c.stopped = nullptr;
  const auto whole = quality(c);
  ASSERT_TRUE(whole.ok());
  for (size_t r = 0; r < whole->table.rows.size(); ++r) {
    if (whole->table.rows[r][0].get<std::string>().starts_with("adaptive")) continue;  // follows the clock
    EXPECT_EQ(resumed->table.rows[r], whole->table.rows[r]);
  }
}

TEST_F(EvalTest, PiecesThatAreNotThereAreAnErrorWithNumbers) {
  Context c = context();
  c.pieces = 4;
  const auto outcome = quality(c);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), testing::AllOf(testing::HasSubstr("900"), testing::HasSubstr("4 pieces")));
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
