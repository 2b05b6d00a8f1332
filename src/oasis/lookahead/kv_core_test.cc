// The core driven without a model: keys, values and queries are made up, scores and what attention returns are compared
// with fp64 scores and attention over the blocks that the core says it reads. Wherever a block-head went in between
// (home, slot, another slot, a preempted sequence's memory), its numbers must be those that were written.
#include "oasis/lookahead/kv_core.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "oasis/base/numeric.h"
#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::lookahead {
namespace {

constexpr int32_t kLayers = 2, kHeads = 2, kGroup = 2, kDim = 64;
constexpr int64_t kQWidth = kHeads * kGroup * kDim, kKvWidth = kHeads * kDim;

float unit(std::mt19937& random) { return std::uniform_real_distribution<float>(-1, 1)(random); }

// A row of K and V of all heads, as bf16 will hold it.
struct Row {
  std::vector<float> k, v;  // [kv_heads * d]
};

Row random_row(std::mt19937& random, int32_t block) {
  Row row{std::vector<float>(kKvWidth), std::vector<float>(kKvWidth)};
  for (float& x : row.k) x = to_float(to_bf16(unit(random)));
  // Values of different blocks differ widely.
  for (float& x : row.v) x = to_float(to_bf16(static_cast<float>(block * 7 % 11 - 5) + unit(random)));
  return row;
}

struct Model {
  std::vector<std::vector<Row>> rows;  // [layer, position]: final ones, then the current step's
  int32_t position = 0;                // final
  int32_t length = 0;                  // at most
};

struct Setup {
  CoreConfig config;
  bool staged = false;
  int32_t homes = 200;
};

class Driver {
 public:
  Driver(Setup setup, uint32_t seed) : random_(seed), setup_(std::move(setup)) {
    CoreConfig& c = setup_.config;
    c.shape = {.layers = kLayers, .kv_heads = kHeads, .head_dim = kDim, .block_size = 16};
    c.q_per_kv = kGroup;
    c.max_blocks = 40;
    if (c.pages == 0) c.pages = c.max_sequences * std::max(c.slots(), c.dense_blocks);
    if (c.summary_pages == 0) c.summary_pages = c.max_sequences * (c.max_blocks + 1);
    const kv::TierConfig tier{.shape = c.shape};
    auto dram = kv::make_dram_tier(tier, setup_.homes * kv::dram_home_bytes(tier));
    OASIS_CHECK(dram.ok(), "{}", dram.status().message());
    std::unique_ptr<kv::Tier> made = std::move(*dram);
    if (setup_.staged) {
      const kv::testing::TierFaults faults{
          .staged = true, .batch_latency_seconds = 1e-4, .batch_jitter_seconds = 1e-3, .present_limit = 40};
      made = std::make_unique<kv::testing::FaultyTier>(std::move(made), tier, faults);
    }
    homes_ = std::make_unique<kv::HomeStore>(std::move(made), c.shape.block_size);
    auto core = KvCore::create(*device_, c, *homes_);
    OASIS_CHECK(core.ok(), "{}", core.status().message());
    core_ = std::move(*core);
    core_->keep_traces(true);
    for (int32_t i = 0; i < c.max_sequences; ++i) free_.insert(i);
  }

  KvCore& core() { return *core_; }
  kv::HomeStore& homes() { return *homes_; }
  const std::map<int32_t, Model>& sequences() const { return models_; }

  int32_t join(int32_t tokens, int32_t length, bool sparse) {
    const int32_t index = *free_.begin();
    free_.erase(free_.begin());
    core_->settle();  // what those before left comes back
    const int32_t blocks = (length + 15) / 16;
    OASIS_CHECK(homes_->reserve(length / 16).value(), "no homes");
    EXPECT_TRUE(core_->attach(index, blocks, length / 16).ok());
    EXPECT_TRUE(core_->begin_prefill(index, tokens, sparse, {}).ok());
    Model& m = models_[index];
    m = {.rows = std::vector<std::vector<Row>>(kLayers), .position = tokens, .length = length};
    const int64_t padded = (tokens + 15) / 16 * 16, stride = padded * kDim;
    std::vector<bf16> workspace(static_cast<size_t>(2 * kHeads * stride));
    const PrefillKv kv{.k = workspace.data(), .v = workspace.data() + kHeads * stride, .kv_head_stride = stride};
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t p = 0; p < tokens; ++p) {
        m.rows[static_cast<size_t>(layer)].push_back(random_row(random_, p / 16));
        const Row& row = m.rows[static_cast<size_t>(layer)].back();
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t d = 0; d < kDim; ++d) {
            kv.k[h * stride + p * kDim + d] = to_bf16(row.k[static_cast<size_t>(h * kDim + d)]);
            kv.v[h * stride + p * kDim + d] = to_bf16(row.v[static_cast<size_t>(h * kDim + d)]);
          }
        }
      }
      const auto q = random_queries(1);
      EXPECT_TRUE(core_->finish_layer(index, layer, kv, q.data()).ok());
    }
    core_->finish_prefill(index);
    return index;
  }

  void leave(int32_t index) {
    core_->detach(index);
    models_.erase(index);
    free_.insert(index);
  }

  void preempt(int32_t index) {
    auto saved = core_->save(index);
    Model m = std::move(models_.at(index));
    models_.erase(index);
    free_.insert(index);
    core_->settle();
    const int32_t next = *free_.rbegin();
    free_.erase(next);
    const Status status = core_->restore(next, saved);
    ASSERT_TRUE(status.ok()) << status.message();
    models_[next] = std::move(m);
  }

  // A step of all sequences, each with some draft rows; sequences at their length leave afterwards.
  void step() {
    const CoreConfig& c = core_->config();
    std::vector<StepSequence> steps;
    for (const auto& [index, m] : models_) {
      const int32_t rows = 1 + pick(0, std::min(c.max_draft_rows, m.length - 1 - m.position));
      const int32_t most = core_->sequence(index).sparse ? std::max(1, rows - 1) : std::min(rows, c.max_draft_rows);
      steps.push_back({.sequence = index, .rows = rows, .verified = c.max_draft_rows == 1 ? 1 : pick(1, most)});
    }
    if (steps.empty()) return;
    listed_.clear();
    core_->begin_step(steps);
    const auto n = static_cast<int64_t>(core_->positions().size());
    for (int32_t layer = 0; layer < kLayers; ++layer) run_layer(layer, n, steps);
    std::vector<StepOutcome> outcomes;
    for (const auto& st : steps) outcomes.push_back({st.sequence, pick(1, core_->verified(st.sequence))});
    core_->end_step(outcomes, 1e-3);
    for (const auto& o : outcomes) {
      Model& m = models_.at(o.sequence);
      m.position += o.advanced;
      for (auto& rows : m.rows) rows.resize(static_cast<size_t>(m.position));
      const Status& error = core_->sequence(o.sequence).error;
      EXPECT_TRUE(error.ok()) << error.message();
      if (m.position >= m.length - 1) leave(o.sequence);
    }
  }

  int32_t pick(int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random_); }

 private:
  std::vector<float> random_queries(int64_t rows) {
    std::vector<float> q(static_cast<size_t>(rows * kQWidth));
    for (float& x : q) x = 3 * unit(random_);
    return q;
  }

  void run_layer(int32_t layer, int64_t n, const std::vector<StepSequence>& steps) {
    std::vector<float> k, v;
    for (const auto& st : steps) {
      Model& m = models_.at(st.sequence);
      for (int32_t r = 0; r < st.rows; ++r) {
        auto& rows = m.rows[static_cast<size_t>(layer)];
        rows.push_back(random_row(random_, (m.position + r) / 16));
        k.insert(k.end(), rows.back().k.begin(), rows.back().k.end());
        v.insert(v.end(), rows.back().v.begin(), rows.back().v.end());
      }
    }
    const auto q = random_queries(n), q_next = random_queries(n);
    // What the step reads by its lists, known before select writes the next ones.
    std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> lists;
    for (const auto& st : steps) {
      for (int32_t h = 0; h < kHeads; ++h) lists[{st.sequence, h}] = core_->listed(st.sequence, layer, h);
    }
    core_->after_qkv(layer, q.data(), q_next.data(), k.data(), v.data());
    expect_scores(layer, steps, q, q_next);
    std::vector<float> out(static_cast<size_t>(n * kQWidth), std::nanf(""));
    core_->attention(layer, q.data(), out.data());
    int64_t row = 0;
    for (const auto& st : steps) {
      for (int32_t r = 0; r < st.rows; ++r, ++row) {
        for (int32_t h = 0; h < kHeads; ++h) {
          const bool exact = core_->config().fetch == FetchMode::kExact && core_->sequence(st.sequence).sparse;
          const auto& row_lists = core_->trace(st.sequence, layer, h).row_lists;
          const auto list =
              exact ? row_lists[static_cast<size_t>(std::min(r, st.verified - 1))] : lists.at({st.sequence, h});
          // Open blocks are always read, the row's own and those before it. case 15
          const Model& m = models_.at(st.sequence);
          const auto& s = core_->sequence(st.sequence);
          for (int32_t b = exact ? (m.position + std::min(r, core_->verified(st.sequence) - 1)) / 16 : s.sealed;
               b <= (m.position + r) / 16; ++b) {
            EXPECT_TRUE(std::binary_search(list.begin(), list.end(), b)) << "block " << b;
          }
          expect_attention(layer, st.sequence, r, h, list, &q[static_cast<size_t>(row * kQWidth)],
                           &out[static_cast<size_t>(row * kQWidth)]);
        }
      }
    }
  }

  // The score of a block for one KV head: over its query heads, the most that a key within the shrunk box can give.
  double score(int32_t layer, int32_t sequence, int32_t head, int32_t block, const float* q) const {
    const auto& rows = models_.at(sequence).rows[static_cast<size_t>(layer)];
    double sum = 0;
    for (int32_t d = 0; d < kDim; ++d) {
      double low = 1e30, high = -1e30;
      for (int32_t p = block * 16; p < (block + 1) * 16; ++p) {
        const double k = rows[static_cast<size_t>(p)].k[static_cast<size_t>(head * kDim + d)];
        low = std::min(low, k), high = std::max(high, k);
      }
      const double middle = (low + high) / 2, half = .5 * (high - low) / 2;
      for (int32_t g = head * kGroup; g < (head + 1) * kGroup; ++g) {
        sum += q[g * kDim + d] * middle + std::abs(q[g * kDim + d]) * half;
      }
    }
    return sum;
  }

  // The draft rows' best (or the row's own, rotated to the next position), and under exact each verified row's.
  void expect_scores(int32_t layer, const std::vector<StepSequence>& steps, const std::vector<float>& q,
                     const std::vector<float>& q_next) const {
    constexpr double kTolerance = .3;  // summaries are bf16
    int64_t first = 0;
    for (const auto& st : steps) {
      const int32_t position = models_.at(st.sequence).position;
      for (int32_t h = 0; h < kHeads && core_->sequence(st.sequence).sparse; ++h) {
        const HeadTrace& trace = core_->trace(st.sequence, layer, h);
        ASSERT_EQ(trace.scores.size(), static_cast<size_t>((position + 1) / 16));
        for (int32_t b = 0; b < static_cast<int32_t>(trace.scores.size()); ++b) {
          double want =
              st.rows > 1 ? -1e30 : score(layer, st.sequence, h, b, &q_next[static_cast<size_t>(first * kQWidth)]);
          for (int32_t r = 1; r < st.rows; ++r) {
            want = std::max(want, score(layer, st.sequence, h, b, &q[static_cast<size_t>((first + r) * kQWidth)]));
          }
          ASSERT_NEAR(trace.scores[static_cast<size_t>(b)], want, kTolerance) << "block " << b;
        }
        for (size_t r = 0; r < trace.row_scores.size(); ++r) {
          ASSERT_EQ(trace.row_scores[r].size(), (static_cast<size_t>(position) + r) / 16);
          const float* row = &q[(static_cast<size_t>(first) + r) * kQWidth];
          for (int32_t b = 0; b < static_cast<int32_t>(trace.row_scores[r].size()); ++b) {
            ASSERT_NEAR(trace.row_scores[r][static_cast<size_t>(b)], score(layer, st.sequence, h, b, row), kTolerance)
                << "row " << r << " block " << b;
          }
        }
      }
      first += st.rows;
    }
  }

  void expect_attention(int32_t layer, int32_t sequence, int32_t r, int32_t head, const std::vector<int32_t>& list,
                        const float* q, const float* out) {
    const Model& m = models_.at(sequence);
    const auto& rows = m.rows[static_cast<size_t>(layer)];
    for (int32_t g = head * kGroup; g < (head + 1) * kGroup; ++g) {
      std::vector<double> want(kDim);
      double sum = 0;
      for (const int32_t block : list) {
        for (int32_t p = block * 16; p < std::min((block + 1) * 16, m.position + r + 1); ++p) {
          double dot = 0;
          for (int32_t d = 0; d < kDim; ++d) {
            dot +=
                double{q[g * kDim + d]} * double{rows[static_cast<size_t>(p)].k[static_cast<size_t>(head * kDim + d)]};
          }
          const double weight = std::exp(dot / std::sqrt(double{kDim}));
          sum += weight;
          for (int32_t d = 0; d < kDim; ++d) {
            want[static_cast<size_t>(d)] +=
                weight * double{rows[static_cast<size_t>(p)].v[static_cast<size_t>(head * kDim + d)]};
          }
        }
      }
      for (int32_t d = 0; d < kDim; ++d) {
        ASSERT_NEAR(out[g * kDim + d], want[static_cast<size_t>(d)] / sum, 0.05)
            << "layer " << layer << " sequence " << sequence << " row " << r << " of position " << m.position
            << " head " << head;
      }
    }
  }

  std::mt19937 random_;
  Setup setup_;
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::unique_ptr<kv::HomeStore> homes_;
  std::unique_ptr<KvCore> core_;
  std::map<int32_t, Model> models_;
  std::set<int32_t> free_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> listed_;
};

void expect_sound(Driver& driver) {
  driver.core().settle();
  const Status status = driver.core().check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
}

// Sequences of all lengths join, step, are preempted and leave.
void expect_attention_reads_what_was_written(FetchMode fetch, bool staged, int32_t dense_blocks) {
  for (uint32_t seed = 1; seed <= 12 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Setup setup{.staged = staged};
    CoreConfig& c = setup.config;
    c.max_sequences = 3;
    c.attend_blocks = 4;
    c.resident_blocks = 4 + static_cast<int32_t>(seed % 3) * 2;
    c.fetch_ratio = .5;
    c.fetch = fetch;
    c.max_draft_rows = seed % 4 == 0 ? 1 : static_cast<int32_t>(seed % 9) + 1;
    c.serial = seed % 5 == 0;
    c.dense_blocks = dense_blocks > 0 ? c.slots() : 0;
    c.hooks.poison = true;
    c.hooks.delay = [](Stage stage, int32_t layer, int64_t step) {
      if (stage == Stage::kTransfer && (step + layer) % 3 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    };
    Driver driver(setup, seed);
    for (int32_t step = 0; step < 60 && !testing::Test::HasFailure(); ++step) {
      if (driver.sequences().size() < 3 && driver.pick(0, 3) == 0) {
        const bool sparse = dense_blocks == 0 || driver.pick(0, 1);
        const int32_t tokens = sparse ? driver.pick(1, 250) : driver.pick(1, 16 * c.resident_blocks + 15);
        driver.join(tokens, std::min(640, tokens + driver.pick(2, 200)), sparse);
      }
      driver.step();
      if (!driver.sequences().empty() && driver.pick(0, 9) == 0) driver.preempt(driver.sequences().begin()->first);
      if (!driver.sequences().empty() && driver.pick(0, 24) == 0) driver.leave(driver.sequences().begin()->first);
      if (driver.pick(0, 9) == 0) expect_sound(driver);
    }
    while (!driver.sequences().empty()) driver.leave(driver.sequences().begin()->first);
    expect_sound(driver);
    EXPECT_EQ(driver.core().free_pages(), driver.core().config().pages);
    EXPECT_EQ(driver.homes().stats().free, driver.homes().capacity());
  }
}

TEST(KvCore, AttentionReadsWhatWasWrittenWhenBounded) {
  expect_attention_reads_what_was_written(FetchMode::kBounded, false, 0);
}
TEST(KvCore, AttentionReadsWhatWasWrittenWhenExact) {
  expect_attention_reads_what_was_written(FetchMode::kExact, false, 0);
}
TEST(KvCore, AttentionReadsWhatWasWrittenWhenAdaptive) {
  expect_attention_reads_what_was_written(FetchMode::kAdaptive, false, 0);
}
TEST(KvCore, AttentionReadsWhatWasWrittenFromAStagedTier) {
  expect_attention_reads_what_was_written(FetchMode::kBounded, true, 0);
  expect_attention_reads_what_was_written(FetchMode::kExact, true, 0);
}
TEST(KvCore, AttentionReadsWhatWasWrittenBeforeAndAfterTheSwitchToSparse) {
  expect_attention_reads_what_was_written(FetchMode::kBounded, false, 1);
  expect_attention_reads_what_was_written(FetchMode::kExact, false, 1);
}

}  // namespace
}  // namespace oasis::lookahead
