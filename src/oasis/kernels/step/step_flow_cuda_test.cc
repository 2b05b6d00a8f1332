// What passes a step's border: tables, counters, and the transfer between two streams.
#include <chrono>
#include <thread>

#include "oasis/kernels/step/step_cuda_test_util.h"

namespace oasis::kernels {
namespace {

using namespace step_testing;

TEST_F(StepCuda, PrologueTakesInNewBlocksAndMakesSelectsItems) {
  Tables in;
  std::byte* home = in.pool.device();  // any address
  in.items.host[0].seal_block = 5, in.items.host[0].seal_summary = 33, in.items.host[0].seal_home = home;
  in.items.host[0].sealed_begin = 5, in.items.host[0].open_end = 8, in.items.host[0].cap = 2;
  in.items.host[3].dense_block = 4, in.items.host[3].dense_page = 21;
  in.upload();
  step_prologue(foreground(), in.tables(), in.flags.device());
  step_prologue(foreground(), in.tables(), nullptr);  // a dense step has no transfer: it does not count
  EXPECT_EQ(in.flags.download()[0].step, 1);
  EXPECT_EQ(in.summary_pages.download()[5], 33);
  EXPECT_EQ(in.homes.download()[5], home);
  EXPECT_EQ(in.page_of_slot.download()[3 * kMaxBlocks + 4], 21);
  const auto lists = in.lists.download();
  const auto counts = in.list_count.download();
  const auto select = in.select_items.download();
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t s = 0; s < kSequences; ++s) {
      const SelectItem& item = select[static_cast<size_t>(layer * kSequences + s)];
      const bool sparse = s == 0 || s == 2;
      EXPECT_EQ(item.maps, sparse ? in.maps.device() + (layer * kSequences + s) * kHeads : nullptr);
      for (int32_t h = 0; h < kHeads; ++h) {
        const auto at = static_cast<size_t>((layer * kSequences + s) * kHeads + h);
        EXPECT_EQ(counts[at], s == 3 ? 5 : 1);
        EXPECT_EQ(lists[at * kMaxBlocks + 4].block, s == 3 ? 4 : -5);
        EXPECT_EQ(lists[at * kMaxBlocks + 4].page, s == 3 ? 21 : -5);
      }
    }
    const SelectItem& item = select[static_cast<size_t>(layer * kSequences)];
    EXPECT_EQ(item.page_of_slot, in.page_of_slot.device());
    EXPECT_EQ(item.slots, kSlots);
    EXPECT_EQ(item.step, 4);
    EXPECT_EQ(item.resident_limit, 3);
    EXPECT_EQ(item.attend_limit, 2);
    EXPECT_EQ(item.candidates, 2);
    EXPECT_EQ(item.sealed_begin, 5);
    EXPECT_EQ(item.open_end, 8);
    EXPECT_EQ(item.cap, 2);
  }
}

TEST_F(StepCuda, ClampCutsTheRankingOfSparseSequencesToK) {
  Tables in;
  const Both<int32_t> counts(std::vector<int32_t>{3, 1, 3, 3, 2, 3, 3, 3});
  step_clamp(foreground(), in.tables(), counts.device());
  EXPECT_EQ(counts.download(), (std::vector<int32_t>{2, 1, 3, 3, 2, 2, 3, 3}));
}

TEST_F(StepCuda, AgreementCountsWhatOfTheTrueTopWasPredictedAndListed) {
  Tables in;
  constexpr int32_t kAll = kSequences * kHeads, kStride = 4;
  const int32_t layer = 1;
  const Both<int32_t> candidates(std::vector<int32_t>{5, 0, 7, 0});
  // Of K = 2: head by head; what lies past the counts, and past K in P, must not matter.
  Both<int32_t> top(std::vector<int32_t>(kAll * kStride, 8)), predicted(std::vector<int32_t>(kAll * kStride, 8));
  Both<int32_t> top_count(std::vector<int32_t>(kAll, 2)), predicted_count(std::vector<int32_t>(kAll, 2));
  const auto set = [&](int32_t head, std::vector<int32_t> best, std::vector<int32_t> p, std::vector<int32_t> list) {
    std::copy(best.begin(), best.end(), top.host.begin() + head * kStride);
    std::copy(p.begin(), p.end(), predicted.host.begin() + head * kStride);
    predicted_count.host[static_cast<size_t>(head)] = static_cast<int32_t>(p.size());
    const auto at = static_cast<size_t>(layer * kAll + head);
    for (size_t i = 0; i < list.size(); ++i) in.lists.host[at * kMaxBlocks + i] = {list[i], 99};
    in.list_count.host[at] = static_cast<int32_t>(list.size());
  };
  set(0, {3, 1}, {3, 4}, {1, 3, 5});  // 1 of 2 predicted, 2 of 2 listed
  set(1, {0, 2}, {4, 3, 2}, {4});     // none: block 2 is past K
  set(2, {0, 2}, {0, 2}, {0, 2});     // sequence 1 is not measured
  set(4, {6, 0}, {0, 6}, {0});        // 2 of 2, 1 of 2
  set(5, {}, {}, {});                 // nothing was predicted: nothing was missed
  top_count.host[5] = 0;
  top.upload(), top_count.upload(), predicted.upload(), predicted_count.upload();
  in.lists.upload(), in.list_count.upload();
  for (int round = 0; round < 2; ++round) {  // it is added up
    step_agreement(foreground(), in.tables(), layer,
                   {.candidates = candidates.device(),
                    .top = top.device(),
                    .top_count = top_count.device(),
                    .top_stride = kStride,
                    .predicted = predicted.device(),
                    .predicted_count = predicted_count.device(),
                    .predicted_stride = kStride},
                   in.flags.device());
  }
  const StepFlags flags = in.flags.download()[0];
  EXPECT_DOUBLE_EQ(flags.agreement[layer], 2 * (.5 + 0 + 1 + 1));
  EXPECT_DOUBLE_EQ(flags.cover[layer], 2 * (1 + 0 + .5 + 1));
  EXPECT_EQ(flags.measured[layer], 2 * 4);
  EXPECT_EQ(flags.measured[0] + flags.measured[2], 0);
}

void sleep_on(cuda::CudaStream& stream, int64_t* microseconds) {
  OASIS_CUDA_CHECK(cudaLaunchHostFunc(
      stream.handle(),
      [](void* us) { std::this_thread::sleep_for(std::chrono::microseconds(*static_cast<int64_t*>(us))); },
      microseconds));
}

// A block of sequence 0 is written, sealed and planned to be copied from its home into another slot, in one step after
// the other; what one step planned, the next waits for and reads. Now the foreground is held up before the write, now
// the transfer before its start. case 1
TEST_F(StepCuda, WhatIsSealedIsHomeAndWhatIsPlannedIsInItsSlotInEveryRound) {
  constexpr int64_t kRounds = 150;
  constexpr int32_t kSource = 2, kTo = 4;  // blocks whose slots are read and written
  Tables in;
  const PinnedHomes homes(2);  // by parity
  auto pinned = [](size_t bytes) { return std::move(gpu().allocate_pinned(bytes)).value(); };
  const Buffer pattern = pinned(kLayers * kPage), seen = pinned(kLayers * kPage);
  const Both<Copy> copies(std::vector<Copy>(kLayers * kSequences * kHeads * 2));
  cuda::CudaStream background(0, true, 4);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t h = 0; h < kHeads; ++h) {
      const auto at = static_cast<size_t>(layer * kSequences * kHeads + h);
      in.fetch_count.host[at] = 1;
      in.fetches.host[at * 2] = {kSource, in.slot_of_block.host[at * kMaxBlocks + kTo]};
    }
  }
  in.items.host[2].rows = in.items.host[3].rows = 0;
  in.items.host[0].seal_block = kSource, in.items.host[0].seal_summary = 3;
  in.stats.host.assign(in.stats.host.size(), 2);
  in.stats.upload();
  // The pattern of a round: no two of its vectors alike, none of another round's.
  const auto value = [](int64_t round, int64_t i) {
    return static_cast<uint16_t>((round * 977 + i / 8 * 31) & 0x3fff);
  };
  const auto slots = [&](int32_t block, bool write) {  // the slots of all heads from the pattern, or into `seen`
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t h = 0; h < kHeads; ++h) {
        std::byte* slot = in.pool_view(in.pool.device(), layer).k(in.page(layer, 0, h, block), h, 0);
        const int64_t at = layer * kPage + h * kBlockHead;
        OASIS_CUDA_CHECK(cudaMemcpyAsync(write ? slot : seen.data() + at, write ? pattern.data() + at : slot,
                                         kBlockHead, cudaMemcpyDefault, foreground().handle()));
      }
    }
  };
  int64_t wrong_homes = 0, wrong_slots = 0;
  std::vector<int64_t> hold(kRounds + 1);  // microseconds; read when the stream comes to it
  std::mt19937 random(8);
  for (int64_t round = 0; round <= kRounds; ++round) {
    // Round 0 launches every kernel for the first time, with nothing beside it that waits for it.
    int64_t& held = hold[static_cast<size_t>(round)];
    held = static_cast<int64_t>(random() % 1500);
    auto* bits = pattern.as<uint16_t>();
    for (int64_t i = 0; i < kLayers * kPage / 2; ++i) bits[i] = value(round, i);
    in.items.host[0].seal_home = homes.part(round % 2), in.items.host[0].seal_meta = homes.meta(round % 2);
    in.upload();
    const StepTables t = in.tables();
    const auto transfer = [&] {
      if (round % 3 == 2) sleep_on(background, &held);
      step_transfer(background, round + 1, kLayers, copies.device(), kSequences * kHeads * 2, kBlockHead, 4,
                    in.flags.device());
    };
    if (round > 0) transfer();
    step_prologue(foreground(), t, in.flags.device());
    for (int32_t layer = 0; layer < kLayers; ++layer) step_wait(foreground(), layer, in.flags.device());
    slots(kTo, false);
    if (round % 3 == 1) sleep_on(foreground(), &held);
    slots(kSource, true);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      step_seal(foreground(), t, layer, .5f);
      step_seal_home(foreground(), t, layer);
      step_publish(foreground(), t, layer, copies.device() + layer * kSequences * kHeads * 2, in.flags.device());
    }
    step_epilogue(foreground(), t, in.flags.device());
    if (round == 0) transfer();
    foreground().synchronize();
    for (int64_t i = 0; i < kLayers * kPage / 2; ++i) {
      const int64_t layer = i / (kPage / 2), in_part = i % (kPage / 2);
      uint16_t home;
      std::memcpy(&home, homes.part(round % 2) + layer * PinnedHomes::kPartStride + in_part * 2, 2);
      wrong_homes += home != value(round, i);
      if (round > 0) wrong_slots += seen.as<uint16_t>()[i] != value(round - 1, i);
    }
    ASSERT_EQ(wrong_homes, 0) << "round " << round;
    ASSERT_EQ(wrong_slots, 0) << "round " << round;
  }
  background.synchronize();
  const StepFlags flags = in.flags.download()[0];
  EXPECT_EQ(flags.timed_out, 0);
  EXPECT_EQ(flags.step, kRounds + 1);
  EXPECT_EQ(flags.copied, (kRounds + 1) * kLayers * kHeads);
  EXPECT_GT(flags.waited_ns, 0);
  for (const int64_t total : flags.totals) EXPECT_EQ(total, (kRounds + 1) * kLayers * kHeads * 2);
  for (int32_t layer = 0; layer < kLayers; ++layer) EXPECT_EQ(flags.done[layer], kRounds + 1);
}

}  // namespace
}  // namespace oasis::kernels
