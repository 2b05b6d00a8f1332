// Speed of the kernels of the lookahead half. One iteration is one decode step of one sequence over all layers.
//   OASIS_CPU=portable|avx2|avx512 pins the instruction set, OASIS_THREADS the threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/gather/gather.h"
#include "oasis/kernels/score/score.h"
#include "oasis/kernels/seal/seal.h"
#include "oasis/kernels/select/select.h"
#include "oasis/kernels/topk/topk.h"

namespace oasis::kernels {
namespace {

// OASIS_THREADS, else 2.
int threads() {
  const char* text = std::getenv("OASIS_THREADS");
  return text ? std::max(1, std::atoi(text)) : 2;
}

struct Shape {
  int64_t layers, heads, group, d, blocks, k;
};
constexpr Shape kSmol{30, 3, 3, 64, 470, 128};    // SmolLM2-135M at 7.5K tokens
constexpr Shape kLong{36, 8, 4, 128, 8192, 128};  // Qwen3-8B at 128K tokens
constexpr Shape kLongWide{36, 8, 4, 128, 8192, 1024};
const Shape& shape_of(int64_t index) { return index == 0 ? kSmol : index == 1 ? kLong : kLongWide; }

std::vector<float> normal(size_t n, float mean, float deviation) {
  std::mt19937 random(1);
  std::normal_distribution<float> draw(mean, deviation);
  std::vector<float> out(n);
  for (float& x : out) x = draw(random);
  return out;
}

void score(benchmark::State& state) {
  const Shape& s = shape_of(state.range(0));
  const KvType type = state.range(1) ? KvType::kFp8E4M3 : KvType::kBf16;
  const int64_t bytes = type == KvType::kBf16 ? 4 * s.d : 8 + 2 * s.d, layers = std::min<int64_t>(s.layers, 8);
  auto device = make_cpu_device(threads());
  std::vector<std::byte> memory(static_cast<size_t>(layers * s.blocks * s.heads * bytes), std::byte{0x3c});
  std::vector<int32_t> pages(static_cast<size_t>(s.blocks));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
  const auto q = normal(static_cast<size_t>(s.heads * s.group * s.d), 0, 1);
  std::vector<float> scores(static_cast<size_t>(s.heads * s.blocks));
  const int32_t rows[] = {0, 1}, candidates = static_cast<int32_t>(s.blocks);
  const int32_t* tables[] = {pages.data()};
  for (auto _ : state) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      std::byte* base = memory.data() + layer % layers * s.blocks * s.heads * bytes;
      score_cpu(device->foreground(), {.summaries = {base, s.heads * bytes, bytes, type},
                                       .head_dim = s.d,
                                       .kv_heads = s.heads,
                                       .q_per_kv = s.group,
                                       .items = 1,
                                       .row_begin = rows,
                                       .candidates = &candidates,
                                       .summary_pages = tables,
                                       .q = q.data(),
                                       .q_stride = static_cast<int64_t>(q.size()),
                                       .scores = scores.data(),
                                       .score_stride = s.blocks});
    }
  }
  state.SetBytesProcessed(state.iterations() * s.layers * s.blocks * s.heads * bytes);
}
BENCHMARK(score)
    ->ArgNames({"shape", "fp8"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

void topk(benchmark::State& state) {
  const Shape& s = shape_of(state.range(0));
  auto device = make_cpu_device(threads());
  const auto scores = normal(static_cast<size_t>(s.layers * s.heads * s.blocks), 60, 20);
  std::vector<int32_t> blocks(static_cast<size_t>(s.heads * s.k)), count(static_cast<size_t>(s.heads));
  const int32_t candidates = static_cast<int32_t>(s.blocks);
  for (auto _ : state) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      topk_cpu(device->foreground(), {.scores = scores.data() + layer * s.heads * s.blocks,
                                      .score_stride = s.blocks,
                                      .candidates = &candidates,
                                      .items = 1,
                                      .heads = s.heads,
                                      .k = s.k,
                                      .pin_first = true,
                                      .blocks = blocks.data(),
                                      .block_stride = s.k,
                                      .count = count.data()});
    }
  }
}
BENCHMARK(topk)->ArgName("shape")->DenseRange(0, 2)->Unit(benchmark::kMicrosecond)->UseRealTime();

// K = 128, R = 173, a cap of 7: the sets drift by some 15 blocks a step.
void select(benchmark::State& state) {
  constexpr int64_t kLayers = 30, kHeads = 3, kBlocks = 470, kK = 128, kR = 173, kSlots = kR + 3, kPlans = 16;
  auto device = make_cpu_device(threads());
  std::vector<int32_t> slot_of(kLayers * kHeads * kBlocks, -1), block_of(kLayers * kHeads * kSlots, -1),
      last(kLayers * kHeads * kSlots), pages(kSlots);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<HeadMap> maps;
  for (int64_t h = 0; h < kLayers * kHeads; ++h) {
    maps.push_back({&slot_of[static_cast<size_t>(h * kBlocks)], &block_of[static_cast<size_t>(h * kSlots)],
                    &last[static_cast<size_t>(h * kSlots)]});
    for (int32_t b = 0; b < kR; ++b) {
      maps.back().slot_of_block[b] = b;
      maps.back().block_of_slot[b] = b;
      maps.back().last_predicted[b] = -1;
    }
  }
  // Plans in a ring: the top K of scores that move on a little from plan to plan, and back.
  std::vector<int32_t> predicted(kPlans * kHeads * kK), predicted_count(kHeads, kK);
  std::mt19937 random(3);
  for (int64_t head = 0; head < kHeads; ++head) {
    auto scores = normal(kBlocks, 60, 20);
    for (int64_t plan = 0; plan < kPlans; ++plan) {
      for (float& x : scores) x += std::normal_distribution<float>(0, 4)(random);
      std::vector<int32_t> order(kBlocks - 2);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(),
                [&](int32_t a, int32_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
      std::copy_n(order.begin(), kK, predicted.begin() + (plan * kHeads + head) * kK);
    }
  }
  std::vector<Fetch> fetches(kHeads * kK);
  std::vector<ListEntry> list(kHeads * (kK + 3));
  std::vector<int32_t> fetch_count(kHeads), list_count(kHeads), stats(kHeads * 4);
  int32_t step = 0;
  int64_t fetched = 0;
  for (auto _ : state) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const SelectItem item{.maps = &maps[static_cast<size_t>(layer * kHeads)],
                            .page_of_slot = pages.data(),
                            .slots = kSlots,
                            .step = step,
                            .resident_limit = kR,
                            .attend_limit = kK,
                            .candidates = kBlocks - 2,
                            .sealed_begin = kBlocks - 2,
                            .open_end = kBlocks,
                            .cap = 7,
                            .margin_threshold = -std::numeric_limits<float>::infinity()};
      select_cpu(device->foreground(),
                 {.items = 1,
                  .kv_heads = kHeads,
                  .item = &item,
                  .predicted = &predicted[static_cast<size_t>((step + layer) % kPlans * kHeads * kK)],
                  .predicted_count = predicted_count.data(),
                  .predicted_stride = kK,
                  .fetches = fetches.data(),
                  .fetch_count = fetch_count.data(),
                  .fetch_stride = kK,
                  .list = list.data(),
                  .list_count = list_count.data(),
                  .list_stride = kK + 3,
                  .stats = stats.data()});
      for (int32_t n : fetch_count) fetched += n;
    }
    ++step;
  }
  state.counters["fetched_per_head"] =
      static_cast<double>(fetched) / static_cast<double>(state.iterations() * kLayers * kHeads);
}
BENCHMARK(select)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Scattered block-heads from a large pool into a small one, as the transfer does.
void gather(benchmark::State& state) {
  const int64_t bytes = state.range(0), count = state.range(1), pool = 512 << 20;
  auto device = make_cpu_device(threads());
  auto from = device->allocate(static_cast<size_t>(pool)), to = device->allocate(static_cast<size_t>(count * bytes));
  std::memset(from->data(), 1, from->bytes());
  std::mt19937 random(4);
  std::vector<Copy> copies(static_cast<size_t>(count));
  for (auto _ : state) {
    state.PauseTiming();
    for (int64_t i = 0; i < count; ++i) {
      copies[static_cast<size_t>(i)] = {from->data() + static_cast<int64_t>(random()) % (pool / bytes) * bytes,
                                        to->data() + i * bytes};
    }
    state.ResumeTiming();
    gather_cpu(device->foreground(), {.copies = copies.data(), .count = count, .bytes = bytes});
  }
  state.SetBytesProcessed(state.iterations() * count * bytes);
}
BENCHMARK(gather)
    ->ArgNames({"bytes", "count"})
    ->ArgsProduct({{4096, 8192}, {21, 630, 20000}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// One block of all heads of a layer, at prefill 512 of them a layer.
void seal(benchmark::State& state) {
  const Shape& s = shape_of(state.range(0));
  constexpr int64_t kEntries = 64;
  auto device = make_cpu_device(threads());
  const int64_t slot = 2 * 16 * s.d * 2, summary = state.range(1) ? 8 + 2 * s.d : 4 * s.d;
  std::vector<bf16> pool(static_cast<size_t>(kEntries * s.heads * slot / 2));
  const auto values = normal(pool.size(), 0, 1);
  std::transform(values.begin(), values.end(), pool.begin(), [](float x) { return to_bf16(x); });
  std::vector<std::byte> summaries(static_cast<size_t>(kEntries * s.heads * summary)), homes(pool.size() * 2);
  std::vector<int32_t> pages, summary_pages;
  std::vector<std::byte*> home_of;
  for (int32_t e = 0; e < kEntries; ++e) {
    summary_pages.push_back(e);
    for (int64_t h = 0; h < s.heads; ++h) {
      pages.push_back(e);
      home_of.push_back(homes.data() + (e * s.heads + h) * slot);
    }
  }
  for (auto _ : state) {
    seal_cpu(
        device->foreground(),
        {.pool = {reinterpret_cast<std::byte*>(pool.data()), s.heads * slot, slot, s.d * 2, 16 * s.d * 2},
         .head_dim = s.d,
         .kv_heads = s.heads,
         .entries = kEntries,
         .pages = pages.data(),
         .summaries = {summaries.data(), s.heads * summary, summary, state.range(1) ? KvType::kFp8E4M3 : KvType::kBf16},
         .summary_pages = summary_pages.data(),
         .homes = home_of.data()});
  }
  state.SetItemsProcessed(state.iterations() * kEntries * s.heads);
  state.SetBytesProcessed(state.iterations() * kEntries * s.heads * slot);
}
BENCHMARK(seal)
    ->ArgNames({"shape", "fp8"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace oasis::kernels

BENCHMARK_MAIN();
