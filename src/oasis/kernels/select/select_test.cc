#include "oasis/kernels/select/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "oasis/kernels/select/select_ref.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kOpenBlocks = 7;  // at most, in these tests
constexpr float kNoThreshold = -std::numeric_limits<float>::infinity();

// One head's map in memory of its own.
struct OwnedMap {
  std::vector<int32_t> slot_of_block, block_of_slot, last_predicted;

  OwnedMap(int32_t blocks, int32_t slots)
      : slot_of_block(static_cast<size_t>(blocks), -1),
        block_of_slot(static_cast<size_t>(slots), -1),
        last_predicted(static_cast<size_t>(slots), 12345) {}

  HeadMap view() { return {slot_of_block.data(), block_of_slot.data(), last_predicted.data()}; }

  void put(int32_t block, int32_t slot, int32_t last) {
    slot_of_block[static_cast<size_t>(block)] = slot;
    block_of_slot[static_cast<size_t>(slot)] = block;
    last_predicted[static_cast<size_t>(slot)] = last;
  }

  // Writes the same state into slots drawn at random, as a resumed sequence does.
  void scatter(const RefHead& head, std::mt19937& random) {
    std::fill(slot_of_block.begin(), slot_of_block.end(), -1);
    std::fill(block_of_slot.begin(), block_of_slot.end(), -1);
    std::vector<int32_t> order(block_of_slot.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    size_t next = 0;
    for (auto [block, last] : head.residents) put(block, order[next++], last);
    for (int32_t block : head.open) put(block, order[next++], HeadMap::kOpen);
  }

  // The state as sets; fails where map and inverse disagree.
  RefHead read() const {
    RefHead out;
    size_t mapped = 0;
    for (size_t slot = 0; slot < block_of_slot.size(); ++slot) {
      const int32_t block = block_of_slot[slot];
      if (block < 0) continue;
      EXPECT_EQ(slot_of_block[static_cast<size_t>(block)], static_cast<int32_t>(slot));
      if (last_predicted[slot] == HeadMap::kOpen) {
        out.open.insert(block);
      } else {
        out.residents[block] = last_predicted[slot];
      }
      ++mapped;
    }
    for (int32_t slot : slot_of_block) mapped -= slot >= 0;
    EXPECT_EQ(mapped, 0u);
    return out;
  }
};

// Everything that one call of select needs, for items x heads, with the outcome of each head.
struct Call {
  std::vector<SelectItem> items;
  std::vector<std::vector<HeadMap>> maps;
  int64_t heads;
  int64_t stride;
  std::vector<int32_t> predicted, predicted_count;
  std::vector<float> scores, spread;
  std::vector<Fetch> fetches, wanted;
  std::vector<int32_t> fetch_count, wanted_count, list_count, stats;
  std::vector<ListEntry> list;
  int64_t* budget = nullptr;

  Call(int64_t item_count, int64_t head_count, int64_t row)
      : items(static_cast<size_t>(item_count)), maps(items.size()), heads(head_count), stride(row) {
    const size_t n = items.size() * static_cast<size_t>(heads), m = n * static_cast<size_t>(stride);
    predicted.resize(m, -7);
    scores.resize(m);
    fetches.resize(m);
    wanted.resize(m);
    list.resize(m + n * kOpenBlocks);
    predicted_count.resize(n);
    spread.resize(n);
    fetch_count.resize(n, -1);
    wanted_count.resize(n, -1);
    list_count.resize(n, -1);
    stats.resize(n * 4, -1);
  }

  SelectParams params() {
    for (size_t i = 0; i < items.size(); ++i) items[i].maps = maps[i].data();
    return {.items = static_cast<int64_t>(items.size()),
            .kv_heads = heads,
            .item = items.data(),
            .predicted = predicted.data(),
            .predicted_scores = scores.data(),
            .predicted_count = predicted_count.data(),
            .predicted_stride = stride,
            .spread = spread.data(),
            .budget = budget,
            .fetches = fetches.data(),
            .fetch_count = fetch_count.data(),
            .wanted = wanted.data(),
            .wanted_count = wanted_count.data(),
            .fetch_stride = stride,
            .list = list.data(),
            .list_count = list_count.data(),
            .list_stride = stride + kOpenBlocks,
            .stats = stats.data()};
  }

  void predict(size_t at, const std::vector<int32_t>& p, const std::vector<float>& s) {
    std::copy(p.begin(), p.end(), predicted.begin() + static_cast<int64_t>(at) * stride);
    std::copy(s.begin(), s.end(), scores.begin() + static_cast<int64_t>(at) * stride);
    predicted_count[at] = static_cast<int32_t>(p.size());
  }

  std::vector<int32_t> blocks_of(const std::vector<Fetch>& from, const std::vector<int32_t>& count, size_t at) const {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < count[at]; ++i)
      out.push_back(from[at * static_cast<size_t>(stride) + static_cast<size_t>(i)].block);
    return out;
  }
  std::vector<int32_t> admitted(size_t at) const { return blocks_of(fetches, fetch_count, at); }
  std::vector<int32_t> wanted_blocks(size_t at) const { return blocks_of(wanted, wanted_count, at); }
  std::vector<int32_t> listed(size_t at) const {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < list_count[at]; ++i) {
      out.push_back(list[at * static_cast<size_t>(stride + kOpenBlocks) + static_cast<size_t>(i)].block);
    }
    return out;
  }
};

Device& device(int threads) {
  static std::map<int, std::unique_ptr<Device>> devices;
  auto& d = devices[threads];
  if (!d) d = make_cpu_device(threads);
  return *d;
}

// ---------------------------------------------------------------------------------------------------------------------
// Random sequences of steps against the oracle.

enum class Policy { kBounded, kExact, kAdaptive };

struct Shape {
  Policy policy;
  int32_t k, r, max_cap;
  int32_t drafts;  // n: tokens that may be accepted on top of one
  int32_t slots;   // R and the widest open window: R + 3 up to 8 drafts
  int32_t prompt;  // tokens
  int32_t steps;
  double absence;  // share of blocks whose part is absent at a step
};

Shape random_shape(std::mt19937& random) {
  const auto pick = [&](int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random); };
  Shape s{};
  s.policy = static_cast<Policy>(pick(0, 2));
  s.k = pick(1, 40);
  s.r = pick(0, 2) == 0 ? s.k : s.k + pick(0, s.k);
  s.max_cap = pick(0, 3) == 0 ? s.k : pick(0, 5);
  s.drafts = pick(0, 4) == 0 ? pick(20, 40) : pick(0, 8);  // the many seal several blocks in a step
  s.slots = s.r + (2 * s.drafts + 16) / 16 + 1;
  s.prompt = pick(1, 120 * 16);
  s.steps = pick(5, 40);
  s.absence = pick(0, 1) ? 0.0 : pick(1, 9) / 10.0;
  return s;
}

// A sequence of one head with scores that drift, driving kernel and oracle side by side.
class Sequence {
 public:
  Sequence(const Shape& shape, std::mt19937& random)
      : shape_(shape),
        random_(random),
        max_blocks_((shape.prompt + (shape.steps + 2) * (shape.drafts + 1)) / 16 + 4),
        map_(max_blocks_, shape.slots),
        page_of_slot_(static_cast<size_t>(shape.slots)),
        present_(static_cast<size_t>(max_blocks_), 1),
        score_(static_cast<size_t>(max_blocks_)),
        position_(shape.prompt - 1) {
    std::iota(page_of_slot_.begin(), page_of_slot_.end(), pick(0, 1000));
    std::shuffle(page_of_slot_.begin(), page_of_slot_.end(), random_);
    for (float& s : score_) s = draw();
    // Warm start: the R best by the last prompt token.
    candidates_ = shape.prompt / 16;
    const auto order = ranking(candidates_);
    for (int32_t rank = 0; rank < std::min(shape.r, candidates_); ++rank) {
      head_.residents[order[static_cast<size_t>(rank)]] = rank < shape.k ? -1 : -2 - rank;
    }
    for (int32_t b = candidates_; b < open_end(); ++b) head_.open.insert(b);
    map_.scatter(head_, random_);
  }

  // Tokens advance, scores drift, something is absent; fills the next call for (item, head).
  void begin_step(Call& call, size_t item) {
    const int32_t advanced = t_ == 0 ? 1 : pick(1, shape_.drafts + 1);
    position_ += advanced;
    sealed_begin_ = candidates_;
    candidates_ = (position_ + 1) / 16;
    for (float& s : score_) {
      if (pick(0, 9) == 0) s = draw();
    }
    for (auto& byte : present_) byte = std::generate_canonical<double, 32>(random_) >= shape_.absence;
    if (pick(0, 7) == 0) map_.scatter(head_, random_);  // preempted and resumed: other slots, the same state

    step_ = RefStep{};
    step_.t = t_;
    step_.r = shape_.r;
    step_.k = shape_.k;
    step_.candidates = candidates_;
    step_.open_end = open_end();
    step_.cap = shape_.policy == Policy::kBounded ? shape_.max_cap * advanced : shape_.k;
    step_.wait_for_absent = shape_.policy == Policy::kExact;
    if (shape_.policy == Policy::kAdaptive) step_.threshold = pick(-1, 6) * 0.25 + 0.01;
    for (int32_t b = 0; b < max_blocks_; ++b) {
      if (!present_[static_cast<size_t>(b)]) step_.absent.insert(b);
    }
    step_.p = ranking(candidates_);
    if (static_cast<int32_t>(step_.p.size()) > shape_.k) step_.p.resize(static_cast<size_t>(shape_.k));
    for (int32_t b : step_.p) step_.scores.push_back(score_[static_cast<size_t>(b)]);

    call.maps[item] = {map_.view()};
    call.items[item] = {
        .page_of_slot = page_of_slot_.data(),
        .slots = shape_.slots,
        .step = t_,
        .resident_limit = shape_.r,
        .attend_limit = shape_.k,
        .candidates = candidates_,
        .sealed_begin = sealed_begin_,
        .open_end = step_.open_end,
        .cap = step_.cap,
        .margin_threshold = shape_.policy == Policy::kAdaptive ? static_cast<float>(step_.threshold) : kNoThreshold,
        .present = present_.data(),
        .wait_for_absent = step_.wait_for_absent};
    call.predict(item, step_.p, step_.scores);
    call.spread[item] = static_cast<float>(head_.spread);
  }

  // exact: turns the prepared call into a demand for T, an order of up to R blocks. Returns false for other policies.
  bool to_demand(Call& call, size_t item) {
    if (shape_.policy != Policy::kExact) return false;
    prefetch_ = step_;
    auto order = ranking(candidates_);
    std::shuffle(order.begin(), order.end(), random_);
    // Blocks sealed in this step may be among them, and others that are open.
    order.resize(static_cast<size_t>(std::min<int32_t>(static_cast<int32_t>(order.size()), pick(0, shape_.r))));
    if (static_cast<int32_t>(order.size()) < shape_.r && pick(0, 1)) order.push_back(candidates_);
    step_.p = order;
    call.predict(item, step_.p, {});
    return true;
  }

  void to_prefetch(Call& call, size_t item) {
    step_ = prefetch_;
    call.predict(item, step_.p, step_.scores);
  }

  void check_demand(const Call& call, size_t at) {
    const RefOutcome want = demand_ref(head_, step_);
    EXPECT_EQ(call.admitted(at), want.admitted);
    EXPECT_EQ(call.stats[at * 4], want.hits);
    EXPECT_EQ(call.stats[at * 4 + 1], want.misses);
    check_state(call, at);
  }

  void check_select(const Call& call, size_t at) {
    const RefOutcome want = select_ref(head_, step_);
    EXPECT_EQ(call.admitted(at), want.admitted);
    EXPECT_EQ(call.wanted_blocks(at), want.wanted);
    EXPECT_EQ(call.listed(at), want.list);
    EXPECT_LE(call.fetch_count[at], step_.cap);
    EXPECT_EQ(call.stats[at * 4], want.hits);
    EXPECT_EQ(call.stats[at * 4 + 1], want.misses);
    EXPECT_EQ(call.stats[at * 4 + 2], want.refused);
    EXPECT_EQ(call.stats[at * 4 + 3], want.refused_absent);
    EXPECT_NEAR(call.spread[at], head_.spread, 1e-5 * std::abs(head_.spread));
    for (int32_t i = 0; i < call.list_count[at]; ++i) {
      const ListEntry e = call.list[at * static_cast<size_t>(call.stride + kOpenBlocks) + static_cast<size_t>(i)];
      const int32_t slot = map_.slot_of_block[static_cast<size_t>(e.block)];
      ASSERT_GE(slot, 0);
      EXPECT_EQ(e.page, page_of_slot_[static_cast<size_t>(slot)]);
    }
    check_state(call, at);
    ++t_;
  }

  bool done() const { return t_ == shape_.steps; }
  Policy policy() const { return shape_.policy; }

 private:
  int32_t pick(int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random_); }
  // Few distinct values, so that ties are common.
  float draw() { return static_cast<float>(pick(-40, 40)) * 0.5f; }
  int32_t open_end() const { return (position_ + 2 + 2 * shape_.drafts) / 16 + 1; }

  std::vector<int32_t> ranking(int32_t candidates) const {
    std::vector<int32_t> order(static_cast<size_t>(candidates));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return score_[static_cast<size_t>(a)] > score_[static_cast<size_t>(b)];
    });
    return order;
  }

  void check_state(const Call& call, size_t at) {
    const RefHead now = map_.read();
    EXPECT_EQ(now.residents, head_.residents);
    EXPECT_EQ(now.open, head_.open);
    EXPECT_LE(static_cast<int32_t>(now.residents.size()), shape_.r);
    std::set<int32_t> used;
    for (int32_t i = 0; i < call.fetch_count[at]; ++i) {
      const Fetch f = call.fetches[at * static_cast<size_t>(call.stride) + static_cast<size_t>(i)];
      EXPECT_EQ(map_.slot_of_block[static_cast<size_t>(f.block)], f.slot);
      EXPECT_TRUE(used.insert(f.slot).second);
    }
  }

  const Shape shape_;
  std::mt19937& random_;
  const int32_t max_blocks_;
  OwnedMap map_;
  std::vector<int32_t> page_of_slot_;
  std::vector<uint8_t> present_;
  std::vector<float> score_;
  int32_t position_;  // of x_t; before step 0 that of the last prompt token
  int32_t candidates_ = 0, sealed_begin_ = 0, t_ = 0;
  RefHead head_;
  RefStep step_, prefetch_;
};

class SelectSequences : public testing::TestWithParam<uint32_t> {};

TEST_P(SelectSequences, DoWhatTheRulesSay) {
  std::mt19937 random(GetParam());
  for (int round = 0; round < 60; ++round) {
    const Shape shape = random_shape(random);
    SCOPED_TRACE(fmt::format("round {}: policy {} K {} R {} cap {} drafts {} prompt {}", round,
                             static_cast<int>(shape.policy), shape.k, shape.r, shape.max_cap, shape.drafts,
                             shape.prompt));
    Sequence sequence(shape, random);
    while (!sequence.done() && !testing::Test::HasFailure()) {
      Call call(1, 1, shape.r + 1);
      sequence.begin_step(call, 0);
      Stream& stream = device(1).foreground();
      if (sequence.to_demand(call, 0)) {
        demand_cpu(stream, call.params());
        sequence.check_demand(call, 0);
        sequence.to_prefetch(call, 0);
      }
      select_cpu(stream, call.params());
      sequence.check_select(call, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Select, SelectSequences, testing::Range(0u, 20u));

TEST(Select, ManyItemsInOneCallAreEachTheirOwn) {
  std::mt19937 random(99);
  for (int threads : {1, 3}) {
    constexpr size_t kItems = 70;
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (size_t i = 0; i < kItems; ++i) {
      Shape shape = random_shape(random);
      if (shape.policy == Policy::kExact) shape.policy = Policy::kBounded;
      shape.steps = 12;
      sequences.push_back(std::make_unique<Sequence>(shape, random));
    }
    for (int step = 0; step < 12; ++step) {
      Call call(kItems, 1, 81);
      for (size_t i = 0; i < kItems; ++i) sequences[i]->begin_step(call, i);
      select_cpu(device(threads).foreground(), call.params());
      for (size_t i = 0; i < kItems; ++i) sequences[i]->check_select(call, i);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Single rules by hand.

// One head with R = K = 3, residents 0 (last predicted 5), 1 (3), 2 (3), open block 8, step 6, candidates 8.
class SelectOneHead : public testing::Test {
 protected:
  static void SetUpTestSuite() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  SelectOneHead() : map_(16, 6), call_(1, 1, 8) {
    map_.put(0, 0, 5);
    map_.put(1, 1, 3);
    map_.put(2, 2, 3);
    map_.put(8, 3, HeadMap::kOpen);
    call_.maps[0] = {map_.view()};
    call_.items[0] = {.page_of_slot = pages_,
                      .slots = 6,
                      .step = 6,
                      .resident_limit = 3,
                      .attend_limit = 3,
                      .candidates = 8,
                      .sealed_begin = 8,
                      .open_end = 9,
                      .cap = 8,
                      .margin_threshold = kNoThreshold};
  }
  SelectItem& item() { return call_.items[0]; }
  void select(const std::vector<int32_t>& p, const std::vector<float>& scores = {}) {
    call_.predict(0, p, scores.empty() ? std::vector<float>(p.size()) : scores);
    select_cpu(device(1).foreground(), call_.params());
  }
  using Blocks = std::vector<int32_t>;
  Blocks residents() const {
    Blocks out;
    for (auto [block, last] : map_.read().residents) out.push_back(block);
    return out;
  }

  const int32_t pages_[6] = {10, 11, 12, 13, 14, 15};
  OwnedMap map_;
  Call call_;
};

TEST_F(SelectOneHead, TheResidentPredictedLongestAgoGoesAndTiesGoToTheLowerBlock) {
  select({7, 0});
  EXPECT_EQ(residents(), (Blocks{0, 2, 7}));
  EXPECT_EQ(call_.admitted(0), Blocks{7});
}

TEST_F(SelectOneHead, AdmissionFollowsTheRankUnderTheCap) {
  item().cap = 2;
  select({6, 5, 4});
  EXPECT_EQ(call_.admitted(0), (Blocks{6, 5}));
  EXPECT_EQ(residents(), (Blocks{0, 5, 6}));
  EXPECT_EQ(call_.stats, (Blocks{0, 3, 1, 0}));
}

TEST_F(SelectOneHead, ACapOfZeroFetchesNothing) {
  item().cap = 0;
  select({6, 5, 4});
  EXPECT_TRUE(call_.admitted(0).empty());
  EXPECT_EQ(residents(), (Blocks{0, 1, 2}));
  EXPECT_EQ(call_.listed(0), (Blocks{0, 1, 2, 8}));
}

TEST_F(SelectOneHead, FillersAreThoseLastPredictedLatestAndTiesGoToTheHigherBlock) {
  item().cap = 0;
  item().attend_limit = 2;
  select({0, 5});
  EXPECT_EQ(call_.listed(0), (Blocks{0, 2, 8}));
  EXPECT_EQ(map_.read().residents.at(2), 3);  // not touched
}

TEST_F(SelectOneHead, ABlockSealedNowJoinsAtNoCostAndPushesOneOut) {
  item().candidates = 9;
  item().open_end = 10;
  item().cap = 0;
  select({0, 1, 2});
  // The sealed block is the only one outside P.
  EXPECT_EQ(residents(), (Blocks{0, 1, 2}));
  EXPECT_EQ(map_.read().open, (std::set<int32_t>{9}));
  EXPECT_EQ(call_.listed(0), (Blocks{0, 1, 2, 9}));
}

TEST_F(SelectOneHead, AnAbsentPartIsWantedAndAdmissionGoesOnDownTheRank) {
  std::vector<uint8_t> present(16, 1);
  present[7] = present[5] = present[3] = 0;
  item().present = present.data();
  item().cap = 2;
  item().resident_limit = 5;
  item().slots = 6;
  map_.slot_of_block[8] = map_.block_of_slot[3] = -1;
  item().open_end = 8;
  select({7, 6, 5, 4, 3});
  EXPECT_EQ(call_.wanted_blocks(0), Blocks{7});  // among the first two misses
  EXPECT_EQ(call_.admitted(0), (Blocks{6, 4}));  // absent ones do not use up the cap
  EXPECT_EQ(call_.stats, (Blocks{0, 5, 1, 2}));  // the last is past the cap
}

TEST_F(SelectOneHead, ExactAdmitsAbsentParts) {
  std::vector<uint8_t> present(16, 0);
  item().present = present.data();
  item().wait_for_absent = true;
  select({7, 6});
  EXPECT_EQ(call_.admitted(0), (Blocks{7, 6}));
  EXPECT_TRUE(call_.wanted_blocks(0).empty());
}

TEST_F(SelectOneHead, FreeSlotsAreUsedBeforeThoseOfVictims) {
  select({7, 6, 0});
  const auto& f = call_.fetches;
  EXPECT_EQ(f[0].slot, 4);
  EXPECT_EQ(f[1].slot, 5);
  EXPECT_EQ(map_.block_of_slot[1], -1);
}

TEST_F(SelectOneHead, AnOpenBlockTakesASlotThatAVictimLeftBehind) {
  item().resident_limit = 5;
  map_.put(3, 4, 6);
  map_.put(4, 5, 6);  // no slot is free
  item().resident_limit = 4;
  item().open_end = 10;
  select({0, 2});
  EXPECT_EQ(residents(), (Blocks{0, 2, 3, 4}));
  EXPECT_EQ(map_.slot_of_block[9], 1);
  EXPECT_EQ(map_.last_predicted[1], HeadMap::kOpen);
}

TEST_F(SelectOneHead, NothingIsPredictedBeforeTheFirstBlockIsSealed) {
  OwnedMap fresh(4, 6);
  fresh.put(0, 2, HeadMap::kOpen);
  call_.maps[0] = {fresh.view()};
  item().candidates = item().sealed_begin = 0;
  item().open_end = 2;
  select({});
  EXPECT_EQ(call_.listed(0), (Blocks{0, 1}));
  EXPECT_EQ(call_.fetch_count[0], 0);
}

TEST_F(SelectOneHead, BelowTheThresholdOnlyTheFirstIsAdmitted) {
  item().margin_threshold = 100;
  select({7, 6, 5}, {9, 8, 1});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(call_.stats, (Blocks{0, 3, 2, 0}));
}

TEST_F(SelectOneHead, TheMarginIsInUnitsOfTheRunningSpread) {
  item().margin_threshold = 0.5f;
  call_.spread[0] = 16;
  select({7, 6, 5}, {17, 10, 1});  // spread of this step: 17 - 1 = 16; margins 1, 9/16, 0
  EXPECT_EQ(call_.admitted(0), (Blocks{7, 6}));
  EXPECT_FLOAT_EQ(call_.spread[0], 16);
}

TEST_F(SelectOneHead, TheSpreadRunsFromItsFirstValue) {
  item().margin_threshold = 0;
  select({7, 6, 5}, {17, 10, 1});
  EXPECT_FLOAT_EQ(call_.spread[0], 16);
  select({7, 6, 5}, {33, 10, 1});
  EXPECT_FLOAT_EQ(call_.spread[0], 17);
}

TEST_F(SelectOneHead, NaNScoresAreBelowAnyThreshold) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  item().margin_threshold = 0;
  select({7, 6, 5}, {2, 1, nan});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(call_.spread[0], 0);
}

TEST_F(SelectOneHead, TheFirstOverdrawsTheBudgetAndTheRestDoNot) {
  int64_t budget = 0;
  call_.budget = &budget;
  select({7, 6, 5}, {3, 2, 1});
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(budget, -1);
}

TEST(Select, TheBudgetIsSharedByAllHeads) {
  constexpr size_t kItems = 400;
  for (int threads : {1, 4}) {
    std::vector<OwnedMap> maps(kItems, OwnedMap(16, 9));
    std::vector<int32_t> pages(9);
    Call call(kItems, 1, 8);
    int64_t budget = 700;
    call.budget = &budget;
    for (size_t i = 0; i < kItems; ++i) {
      call.maps[i] = {maps[i].view()};
      call.items[i] = {.page_of_slot = pages.data(),
                       .slots = 9,
                       .step = 1,
                       .resident_limit = 6,
                       .attend_limit = 4,
                       .candidates = 10,
                       .sealed_begin = 10,
                       .open_end = 11,
                       .cap = 4,
                       .margin_threshold = kNoThreshold};
      call.predict(i, {9, 8, 7, 6}, {4, 3, 2, 1});
    }
    select_cpu(device(threads).foreground(), call.params());
    const int64_t admitted = std::accumulate(call.fetch_count.begin(), call.fetch_count.end(), int64_t{0});
    EXPECT_EQ(admitted, 700 - budget);
    EXPECT_GE(admitted, 700);
    EXPECT_LE(budget, 0);
    EXPECT_GT(budget, -static_cast<int64_t>(kItems));
    EXPECT_GE(*std::min_element(call.fetch_count.begin(), call.fetch_count.end()), 1);
  }
}

TEST_F(SelectOneHead, DemandBringsInAllOfItWithoutACapAndLeavesOpenBlocksAlone) {
  item().cap = 0;
  call_.predict(0, {7, 8, 2}, {});
  demand_cpu(device(1).foreground(), call_.params());
  EXPECT_EQ(call_.admitted(0), Blocks{7});
  EXPECT_EQ(residents(), (Blocks{0, 2, 7}));
  EXPECT_EQ(map_.read().residents.at(2), 6);
  EXPECT_EQ(map_.read().open, (std::set<int32_t>{8}));
}

TEST_F(SelectOneHead, ABlockSealedNowSurvivesTheDemandAndJoinsAtSelect) {
  item().candidates = 9;  // block 8 is sealed in this step; its rows still read it, and T fills R
  item().open_end = 10;
  call_.predict(0, {7, 6, 5}, {});
  demand_cpu(device(1).foreground(), call_.params());
  EXPECT_EQ(residents(), (Blocks{5, 6, 7}));
  EXPECT_EQ(map_.slot_of_block[8], 3);
  select({7, 8, 6});
  EXPECT_EQ(residents(), (Blocks{6, 7, 8}));
  EXPECT_TRUE(call_.admitted(0).empty());
}

using SelectDeath = SelectOneHead;
TEST_F(SelectDeath, MorePredictedThanMayBeResidentIsABrokenInvariant) {
  EXPECT_DEATH(select({4, 5, 6, 7}), "only 3 may be resident");
}
TEST_F(SelectDeath, ABlockSealedButNeverOpenIsABrokenInvariant) {
  item().sealed_begin = 7;
  EXPECT_DEATH(select({0}), "block 7 is sealed but was not open");
}
TEST_F(SelectDeath, AnOpenBlockInThePredictionIsABrokenInvariant) {
  EXPECT_DEATH(select({0, 8}), "an open block is predicted");
}
TEST_F(SelectDeath, TooFewSlotsIsABrokenInvariant) {
  item().open_end = 12;
  EXPECT_DEATH(select({0}), "no slot left for block 11");
}

}  // namespace
}  // namespace oasis::kernels
