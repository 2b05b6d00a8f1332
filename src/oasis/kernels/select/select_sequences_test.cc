// Random sequences of steps against the oracle.
#include <set>
#include <tuple>

#include "oasis/kernels/select/select_test_util.h"

namespace oasis::kernels {
namespace {

using namespace select_test;

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

class SelectSequences : public testing::TestWithParam<std::tuple<Backend, uint32_t>> {};

TEST_P(SelectSequences, DoWhatTheRulesSay) {
  const auto [backend, seed] = GetParam();
  OASIS_SKIP_WITHOUT(backend);
  std::mt19937 random(seed);
  const int rounds = backend == Backend::kCpu ? 60 : 10;  // each call carries its maps to the GPU and back
  for (int round = 0; round < rounds; ++round) {
    const Shape shape = random_shape(random);
    SCOPED_TRACE(fmt::format("round {}: policy {} K {} R {} cap {} drafts {} prompt {}", round,
                             static_cast<int>(shape.policy), shape.k, shape.r, shape.max_cap, shape.drafts,
                             shape.prompt));
    Sequence sequence(shape, random);
    while (!sequence.done() && !testing::Test::HasFailure()) {
      Call call(1, 1, shape.r + 1);
      sequence.begin_step(call, 0);
      Stream& stream = test_device(backend).foreground();
      if (sequence.to_demand(call, 0)) {
        kernels_for(backend).demand(stream, call.params());
        sequence.check_demand(call, 0);
        sequence.to_prefetch(call, 0);
      }
      kernels_for(backend).select(stream, call.params());
      sequence.check_select(call, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Select, SelectSequences,
                         testing::Combine(testing::Values(Backend::kCpu, Backend::kCuda), testing::Range(0u, 20u)),
                         case_name);

class SelectManyItems : public testing::TestWithParam<Backend> {};

TEST_P(SelectManyItems, AreEachTheirOwnInOneCall) {
  OASIS_SKIP_WITHOUT(GetParam());
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
      kernels_for(GetParam()).select(test_device(GetParam(), threads).foreground(), call.params());
      for (size_t i = 0; i < kItems; ++i) sequences[i]->check_select(call, i);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SelectManyItems, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
