// The simulation of the rules against the kernels (topk, demand, select) on random runs. The engine's own runs are
// compared with it elsewhere.
#include "rules_simulation.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "oasis/kernels/select/select.h"
#include "oasis/kernels/topk/topk.h"

namespace oasis::rules {
namespace {

using kernels::HeadMap;
using Blocks = std::vector<int32_t>;

Trace random_trace(std::mt19937& random) {
  const auto pick = [&](int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random); };
  Trace trace;
  trace.k = pick(1, 30);
  trace.r = trace.k + (pick(0, 1) ? pick(0, trace.k) : 0);
  trace.c = pick(0, 4);
  trace.exact = pick(0, 1);
  trace.pin_first = pick(0, 1);
  trace.block_size = 16 << pick(0, 2);
  trace.accepted_at_most = pick(0, 8);
  trace.start.position = pick(0, 60 * trace.block_size);

  std::vector<float> base(200);
  const auto draw = [&] { return static_cast<float>(pick(-30, 30)) / 2; };
  for (float& s : base) s = draw();
  // Rows of one step score nearly alike.
  const auto scores = [&](int32_t n) {
    std::vector<float> out(base.begin(), base.begin() + n);
    for (float& s : out) {
      if (pick(0, 7) == 0) s = draw();
    }
    return out;
  };
  int32_t position = trace.start.position;
  trace.start.scores = scores((position + 1) / trace.block_size);
  for (int32_t t = 0; t < 40; ++t) {
    TraceStep step{.t = t, .advanced = t == 0 ? 1 : pick(1, trace.accepted_at_most + 1)};
    step.position = position += step.advanced;
    for (float& s : base) {
      if (pick(0, 15) == 0) s = draw();
    }
    step.scores = scores((position + 1) / trace.block_size);
    for (int32_t b = 0; !trace.exact && trace.c % 2 == 1 && b < static_cast<int32_t>(step.scores.size()); ++b) {
      if (pick(0, 2) == 0) step.absent.push_back(b);
    }
    for (int32_t row = 0; trace.exact && row < pick(1, trace.accepted_at_most + 1); ++row) {
      step.verified.push_back({.position = position + row, .scores = scores((position + row) / trace.block_size)});
    }
    trace.steps.push_back(std::move(step));
  }
  return trace;
}

// One head run by the kernels.
class Kernels {
 public:
  explicit Kernels(const Trace& trace)
      : trace_(trace),
        slots_(trace.r + 3),
        device_(make_cpu_device(1)),
        slot_of_block_(300, -1),
        block_of_slot_(static_cast<size_t>(slots_), -1),
        last_predicted_(static_cast<size_t>(slots_)),
        pages_(static_cast<size_t>(slots_)) {
    std::iota(pages_.begin(), pages_.end(), 0);
    const Blocks order = top(trace.start.scores, trace.r);
    for (size_t rank = 0; rank < order.size(); ++rank) {
      const bool in_p = static_cast<int32_t>(rank) < trace.k;
      put(order[rank], in_p ? trace.start.last_predicted : -2 - static_cast<int32_t>(rank));
    }
    for (int32_t b = sealed_of(trace.start.position); b < open_end(trace.start.position); ++b) put(b, HeadMap::kOpen);
    sealed_ = sealed_of(trace.start.position);
  }

  StepResult step(const TraceStep& s) {
    StepResult out;
    map_ = {slot_of_block_.data(), block_of_slot_.data(), last_predicted_.data()};
    present_.assign(300, 1);
    for (int32_t b : s.absent) present_[static_cast<size_t>(b)] = 0;
    kernels::SelectItem item{.maps = &map_,
                             .page_of_slot = pages_.data(),
                             .slots = slots_,
                             .step = s.t,
                             .resident_limit = trace_.r,
                             .attend_limit = trace_.k,
                             .candidates = sealed_of(s.position),
                             .sealed_begin = sealed_,
                             .open_end = open_end(s.position),
                             .cap = trace_.exact ? trace_.k : trace_.c * s.advanced,
                             .margin_threshold = -std::numeric_limits<float>::infinity(),
                             .present = present_.data(),
                             .wait_for_absent = trace_.exact};
    if (trace_.exact) {
      Blocks t;
      for (const VerifiedRow& row : s.verified) {
        Blocks grown = t;
        for (int32_t b : top(row.scores, trace_.k)) {
          if (b < sealed_ && std::find(t.begin(), t.end(), b) == t.end()) grown.push_back(b);
        }
        if (static_cast<int32_t>(grown.size()) > trace_.r) break;
        t = grown;
        ++out.rows_fitted;
      }
      run(kernels::demand_cpu, item, t, out.demanded);
    }
    out.predicted = top(s.scores, trace_.k);
    run(kernels::select_cpu, item, out.predicted, out.admitted);
    for (int32_t i = 0; i < wanted_count_; ++i) out.wanted.push_back(wanted_[static_cast<size_t>(i)].block);
    for (int32_t b = 0; b < static_cast<int32_t>(slot_of_block_.size()); ++b) {
      const int32_t slot = slot_of_block_[static_cast<size_t>(b)];
      if (slot < 0 || last_predicted_[static_cast<size_t>(slot)] == HeadMap::kOpen) continue;
      out.residents.push_back({b, last_predicted_[static_cast<size_t>(slot)]});
    }
    for (int32_t i = 0; i < list_count_; ++i) out.list.push_back(list_[static_cast<size_t>(i)].block);
    sealed_ = item.candidates;
    return out;
  }

 private:
  int32_t sealed_of(int32_t position) const { return (position + 1) / trace_.block_size; }
  int32_t open_end(int32_t position) const {
    return (position + 2 + 2 * trace_.accepted_at_most) / trace_.block_size + 1;
  }
  void put(int32_t block, int32_t last) {
    slot_of_block_[static_cast<size_t>(block)] = used_;
    block_of_slot_[static_cast<size_t>(used_)] = block;
    last_predicted_[static_cast<size_t>(used_++)] = last;
  }

  Blocks top(const std::vector<float>& scores, int64_t k) {
    const auto n = static_cast<int32_t>(scores.size());
    Blocks blocks(static_cast<size_t>(k));
    int32_t count = 0;
    kernels::topk_cpu(device_->foreground(), {.scores = scores.data(),
                                              .score_stride = n,
                                              .candidates = &n,
                                              .items = 1,
                                              .heads = 1,
                                              .k = k,
                                              .pin_first = trace_.pin_first,
                                              .blocks = blocks.data(),
                                              .block_stride = k,
                                              .count = &count});
    blocks.resize(static_cast<size_t>(count));
    return blocks;
  }

  void run(void (*kernel)(Stream&, const kernels::SelectParams&), const kernels::SelectItem& item, const Blocks& p,
           Blocks& fetched) {
    std::vector<kernels::Fetch> fetches(100);
    wanted_.resize(100);
    list_.resize(200);
    const auto count = static_cast<int32_t>(p.size());
    int32_t fetch_count = 0;
    kernel(device_->foreground(), {.items = 1,
                                   .kv_heads = 1,
                                   .item = &item,
                                   .predicted = p.data(),
                                   .predicted_count = &count,
                                   .predicted_stride = count,
                                   .fetches = fetches.data(),
                                   .fetch_count = &fetch_count,
                                   .wanted = wanted_.data(),
                                   .wanted_count = &wanted_count_,
                                   .fetch_stride = 100,
                                   .list = list_.data(),
                                   .list_count = &list_count_,
                                   .list_stride = 200});
    for (int32_t i = 0; i < fetch_count; ++i) fetched.push_back(fetches[static_cast<size_t>(i)].block);
  }

  const Trace& trace_;
  const int32_t slots_;
  std::unique_ptr<Device> device_;
  Blocks slot_of_block_, block_of_slot_, last_predicted_, pages_;
  std::vector<uint8_t> present_;
  std::vector<kernels::Fetch> wanted_;
  std::vector<kernels::ListEntry> list_;
  int32_t wanted_count_ = 0, list_count_ = 0, used_ = 0, sealed_ = 0;
  HeadMap map_;
};

TEST(RulesSimulation, AgreesWithTheKernelsOnRandomRuns) {
  std::mt19937 random(17);
  for (int run = 0; run < 400; ++run) {
    const Trace trace = random_trace(random);
    const auto simulated = simulate(trace);
    ASSERT_TRUE(simulated.ok()) << simulated.status().message();
    Kernels kernels(trace);
    for (size_t t = 0; t < trace.steps.size(); ++t) {
      SCOPED_TRACE(
          fmt::format("run {} step {}: K {} R {} C {} exact {}", run, t, trace.k, trace.r, trace.c, trace.exact));
      const StepResult& want = simulated->steps[t];
      const StepResult got = kernels.step(trace.steps[t]);
      ASSERT_EQ(got.rows_fitted, want.rows_fitted);
      ASSERT_EQ(got.demanded, want.demanded);
      ASSERT_EQ(got.predicted, want.predicted);
      ASSERT_EQ(got.admitted, want.admitted);
      ASSERT_EQ(got.wanted, want.wanted);
      ASSERT_EQ(got.residents, want.residents);
      ASSERT_EQ(got.list, want.list);
      for (int32_t block : want.victims) {
        EXPECT_TRUE(
            std::none_of(got.residents.begin(), got.residents.end(), [&](auto& r) { return r.block == block; }));
      }
    }
  }
}

// K = R = 2, C = 1, blocks of 4, worked out by hand.
TEST(RulesSimulation, FollowsAHandWorkedRun) {
  Trace trace{.k = 2, .r = 2, .c = 1, .pin_first = false, .block_size = 4};
  trace.start = {.position = 14, .scores = {1, 5, 3}};  // blocks 0, 1, 2 sealed; block 3 open, positions 12 .. 14
  trace.steps = {
      {.t = 0, .position = 15, .scores = {9, 5, 8, 0}},                 // seals block 3; P = 0, 2
      {.t = 1, .position = 16, .scores = {9, 7, 8, 0}},                 // P = 0, 2: nothing to do
      {.t = 2, .position = 17, .scores = {9, 7, 8, 9}, .absent = {3}},  // P = 0, 3, and 3 is absent
  };
  const auto result = simulate(trace);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->start.predicted, (Blocks{1, 2}));
  EXPECT_EQ(result->start.list, (Blocks{1, 2, 3, 4}));
  EXPECT_EQ(result->steps[0].admitted, Blocks{0});
  EXPECT_EQ(result->steps[0].victims, (Blocks{1, 3}));  // -1 goes before the block sealed at 0
  EXPECT_EQ(result->steps[0].list, (Blocks{0, 2, 4}));
  EXPECT_EQ(result->steps[1].admitted, Blocks{});
  EXPECT_EQ(result->steps[2].wanted, Blocks{3});
  EXPECT_EQ(result->steps[2].residents, (std::vector<Resident>{{0, 2}, {2, 1}}));
  EXPECT_EQ(result->steps[2].list, (Blocks{0, 2, 4}));  // 2 fills
}

TEST(RulesSimulation, SaysWhereATraceContradictsItself) {
  Trace trace{.k = 2, .r = 2, .c = 1};
  trace.start = {.position = 40, .scores = {1, 2}};
  trace.steps = {{.t = 0, .position = 42, .scores = {1, 2}}};
  EXPECT_EQ(simulate(trace).status().message(), "step 0: position 42 after 40 and 1 tokens");
  trace.steps[0].position = 41;
  EXPECT_TRUE(simulate(trace).ok());
  trace.steps[0].scores = {1};
  EXPECT_EQ(simulate(trace).status().message(), "step 0: 1 scores for 2 candidates");
}

}  // namespace
}  // namespace oasis::rules
