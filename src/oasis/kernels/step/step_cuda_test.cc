// The pieces of a captured step against the ops that they stand for, and the transfer over a real border between
// streams.
#include "oasis/kernels/step/step_cuda.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/norm/norm_ref.h"
#include "oasis/kernels/swiglu/swiglu_ref.h"

namespace oasis::kernels {
namespace {

Device& gpu() { return test_device(Backend::kCuda); }
cuda::CudaStream& foreground() { return cuda::as_cuda(gpu().foreground()); }
Stream& cpu() { return test_device(Backend::kCpu).foreground(); }

// A vector and its copy on the GPU.
template <typename T>
class Both {
 public:
  Both() = default;
  explicit Both(std::vector<T> values) : host(std::move(values)) {
    auto buffer = gpu().allocate(host.size() * sizeof(T));
    OASIS_CHECK(buffer.ok(), "{}", buffer.status().message());
    memory_ = std::move(*buffer);
    upload();
  }
  T* device() const { return memory_.as<T>(); }
  void upload() { foreground().copy(device(), host.data(), host.size() * sizeof(T)); }
  std::vector<T> download() const {
    std::vector<T> out(host.size());
    foreground().copy(out.data(), device(), out.size() * sizeof(T));
    return out;
  }

  std::vector<T> host;

 private:
  Buffer memory_;
};

std::vector<float> normal_floats(int64_t n, uint32_t seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

float bf16_at(const std::byte* p, int64_t i) {
  bf16 x;
  std::memcpy(&x, p + 2 * i, 2);
  return to_float(x);
}

constexpr int32_t kLayers = 3, kSequences = 4, kHeads = 2, kGroup = 3, kDim = 64, kBlock = 16, kRows = 2;
constexpr int32_t kSlots = 6, kMaxBlocks = 9, kPages = kSequences * kMaxBlocks + 3;
constexpr int64_t kBlockHead = int64_t{2} * kBlock * kDim * 2, kPage = kHeads * kBlockHead;
constexpr int64_t kPool = kLayers * kPages * kPage, kSummary = kHeads * int64_t{4} * kDim, kLayerSummaries = 40;

// A core's tables for four sequences: 0 sparse with two rows, 1 not in the step, 2 sparse with one, 3 dense with two.
struct Tables {
  Both<StepItem> items{std::vector<StepItem>(kSequences)};
  Both<int32_t> slot_of_block{std::vector<int32_t>(kLayers * kSequences * kHeads * kMaxBlocks, -1)};
  Both<int32_t> page_of_slot{std::vector<int32_t>(kSequences * kMaxBlocks)};
  Both<int32_t> summary_pages{std::vector<int32_t>(kSequences * kMaxBlocks, -1)};
  Both<std::byte*> homes{std::vector<std::byte*>(kSequences * kMaxBlocks)};
  Both<SelectItem> select_items{std::vector<SelectItem>(kLayers * kSequences)};
  Both<ListEntry> lists{std::vector<ListEntry>(kLayers * kSequences * kHeads * kMaxBlocks, ListEntry{-5, -5})};
  Both<int32_t> list_count{std::vector<int32_t>(kLayers * kSequences * kHeads, 1)};
  Both<Fetch> fetches{std::vector<Fetch>(kLayers * kSequences * kHeads * 2, Fetch{-1, -1})};
  Both<int32_t> fetch_count{std::vector<int32_t>(kLayers * kSequences * kHeads)};
  Both<int32_t> stats{std::vector<int32_t>(kLayers * kSequences * kHeads * 4)};
  Both<std::byte> pool{std::vector<std::byte>(kPool, std::byte{0xee})};
  Both<std::byte> summaries{std::vector<std::byte>(kLayers * kLayerSummaries * kSummary, std::byte{0xee})};
  Both<HeadMap> maps;
  Both<StepFlags> flags{std::vector<StepFlags>(1)};

  Tables() {
    items.host[0] = {.rows = 2, .position = 31, .step = 4, .sparse = 1, .candidates = 2};
    items.host[2] = {.rows = 1, .position = 70, .step = 9, .sparse = 1, .candidates = 4, .score_begin = 1};
    items.host[3] = {.rows = 2, .position = 15, .step = 1, .sparse = 0};
    std::vector<HeadMap> heads(kLayers * kSequences * kHeads);
    for (size_t i = 0; i < heads.size(); ++i) {
      heads[i].slot_of_block = slot_of_block.device() + static_cast<int64_t>(i) * kMaxBlocks;
      for (int32_t b = 0; b < kSlots; ++b) {  // every head has an order of its own
        slot_of_block.host[i * kMaxBlocks + static_cast<size_t>(b)] = (b * 5 + static_cast<int32_t>(i)) % kSlots;
      }
    }
    maps = Both<HeadMap>(heads);
    for (int32_t i = 0; i < kSequences * kMaxBlocks; ++i) page_of_slot.host[static_cast<size_t>(i)] = i * 7 % kPages;
    upload();
  }
  void upload() {
    items.upload(), slot_of_block.upload(), page_of_slot.upload(), fetches.upload(), fetch_count.upload();
  }

  int32_t page(int32_t layer, int32_t s, int32_t h, int32_t block) const {
    int32_t slot = block;
    if (items.host[static_cast<size_t>(s)].sparse) {
      slot = slot_of_block.host[static_cast<size_t>(((layer * kSequences + s) * kHeads + h) * kMaxBlocks + block)];
    }
    return slot < 0 ? -1 : page_of_slot.host[static_cast<size_t>(s * kMaxBlocks + slot)];
  }
  static PoolView pool_view(std::byte* base, int32_t layer) {
    return {.base = base + layer * kPages * kPage,
            .page_stride = kPage,
            .head_stride = kBlockHead,
            .token_stride = kDim * 2,
            .v_offset = kBlock * kDim * 2};
  }
  StepTables tables() const {
    StepTables t;
    t.sequences = t.batch = kSequences, t.layers = kLayers, t.kv_heads = kHeads, t.q_per_kv = kGroup;
    t.head_dim = kDim, t.block_size = kBlock, t.rows = kRows;
    t.items = items.device(), t.maps = maps.device(), t.page_of_slot = page_of_slot.device();
    t.slot_stride = kMaxBlocks, t.slots = kSlots, t.resident = 3, t.attended = 2;
    t.summary_pages = summary_pages.device(), t.homes = homes.device(), t.max_blocks = kMaxBlocks;
    t.home_layer_stride = kPage + 64;
    t.lists = lists.device(), t.list_count = list_count.device(), t.list_stride = kMaxBlocks;
    t.select_items = select_items.device(), t.fetches = fetches.device(), t.fetch_count = fetch_count.device();
    t.fetch_stride = 2, t.select_stats = stats.device();
    t.summaries = {.base = summaries.device(), .page_stride = kSummary, .head_stride = kSummary / kHeads};
    t.summary_layer_stride = kLayerSummaries * kSummary;
    t.pool = pool_view(pool.device(), 0), t.pool_layer_stride = kPages * kPage;
    return t;
  }
};

class StepCuda : public testing::Test {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(Backend::kCuda); }
};

// What step_qkv stands for, by the CPU's ops: q/k norm, RoPE at two positions, append.
struct Separate {
  std::vector<float> q, q_next;  // [batch * rows, heads * d]
  std::vector<std::byte> pool;
};

Separate separate_ops(const Tables& in, int32_t layer, const std::vector<float>& qkv, const std::vector<float>& q_norm,
                      const std::vector<float>& k_norm, bool interleaved, const std::vector<float>& rope,
                      const std::vector<float>& rope_next) {
  constexpr int64_t kAll = kSequences * kRows, kQ = kHeads * kGroup * kDim, kKv = kHeads * kDim, kWidth = kQ + 2 * kKv;
  const Kernels& ops = kernels_for(Backend::kCpu);
  std::vector<float> x = qkv, k(kAll * kKv), next(kAll * kDim);
  Separate out{std::vector<float>(kAll * kQ), std::vector<float>(kAll * kQ), in.pool.host};
  const auto norm = [&](const std::vector<float>& weight, int64_t first, int64_t heads) {
    for (int64_t r = 0; r < kAll && !weight.empty(); ++r) {
      float* at = x.data() + r * kWidth + first;
      ops.rms_norm(cpu(), {.x = at,
                           .x_stride = kDim,
                           .weight = weight.data(),
                           .eps = 1e-5f,
                           .y = at,
                           .y_stride = kDim,
                           .rows = heads,
                           .cols = kDim});
    }
  };
  norm(q_norm, 0, kHeads * kGroup);
  norm(k_norm, kQ, kHeads);
  for (int64_t r = 0; r < kAll; ++r) {
    std::copy_n(rope_next.begin() + r / kRows * kDim, kDim, next.begin() + r * kDim);
  }
  const auto turn = [&](int64_t first, int64_t heads, const std::vector<float>& table, std::vector<float>& y) {
    ops.rope(cpu(), {.x = x.data() + first,
                     .x_stride = kWidth,
                     .cos_sin = table.data(),
                     .interleaved = interleaved,
                     .y = y.data(),
                     .y_stride = heads * kDim,
                     .rows = kAll,
                     .heads = heads,
                     .head_dim = kDim});
  };
  turn(0, kHeads * kGroup, rope, out.q);
  turn(0, kHeads * kGroup, next, out.q_next);
  turn(kQ, kHeads, rope, k);
  std::vector<int32_t> positions, pages;
  for (int32_t s = 0; s < kSequences; ++s) {
    const StepItem& item = in.items.host[static_cast<size_t>(s)];
    for (int32_t j = 0; j < kRows; ++j) {
      positions.push_back(j < item.rows ? item.position + j : -1);
      for (int32_t h = 0; h < kHeads; ++h) {
        pages.push_back(j < item.rows ? in.page(layer, s, h, (item.position + j) / kBlock) : -1);
      }
    }
  }
  ops.append(cpu(), {.pool = Tables::pool_view(out.pool.data(), layer),
                     .block_size = kBlock,
                     .head_dim = kDim,
                     .kv_heads = kHeads,
                     .rows = kAll,
                     .positions = positions.data(),
                     .pages = pages.data(),
                     .k = k.data(),
                     .k_stride = kKv,
                     .v = x.data() + kQ + kKv,
                     .v_stride = kWidth});
  return out;
}

void expect_near_bytes(const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i += 2) {
    if (std::memcmp(&got[i], &want[i], 2) == 0) continue;
    const float a = bf16_at(&got[i], 0), b = bf16_at(&want[i], 0);
    ASSERT_NEAR(a, b, std::abs(b) / 128 + 1e-6) << "element " << i / 2;  // a unit in the last place
  }
}

TEST_F(StepCuda, QkvEqualsNormRopeAndAppendOnTheirOwn) {
  constexpr int64_t kAll = kSequences * kRows, kQ = kHeads * kGroup * kDim, kWidth = kQ + 2 * kHeads * kDim;
  for (const bool interleaved : {false, true}) {
    for (const bool normed : {false, true}) {
      SCOPED_TRACE(testing::Message() << "interleaved " << interleaved << " normed " << normed);
      Tables in;
      const int32_t layer = 1;
      const Both<float> qkv(normal_floats(kAll * kWidth, 1)), weights(normal_floats(2 * kDim, 2));
      const std::vector<float> q_norm(weights.host.begin(), weights.host.begin() + kDim);
      const std::vector<float> k_norm(weights.host.begin() + kDim, weights.host.end());
      // Any cosines and sines will do.
      const Both<float> rope(normal_floats(kAll * kDim, 3)), rope_next(normal_floats(kSequences * kDim, 4));
      const Both<float> q(std::vector<float>(kAll * kQ, 77)), q_scoring(std::vector<float>(4 * kQ, 77));
      step_qkv(foreground(), in.tables(), layer,
               {.qkv = qkv.device(),
                .q_norm = normed ? weights.device() : nullptr,
                .k_norm = normed ? weights.device() + kDim : nullptr,
                .eps = 1e-5f,
                .interleaved = interleaved,
                .rope = rope.device(),
                .rope_next = rope_next.device(),
                .q = q.device(),
                .q_scoring = q_scoring.device()});
      const Separate want =
          separate_ops(in, layer, qkv.host, normed ? q_norm : std::vector<float>(),
                       normed ? k_norm : std::vector<float>(), interleaved, rope.host, rope_next.host);
      expect_near_bytes(in.pool.download(), want.pool);
      const std::vector<float> got = q.download(), scoring = q_scoring.download();
      for (int64_t r = 0; r < kAll; ++r) {
        const bool runs = r % kRows < in.items.host[static_cast<size_t>(r / kRows)].rows;
        for (int64_t i = 0; i < kQ; ++i) {
          const float x = runs ? want.q[static_cast<size_t>(r * kQ + i)] : 77;
          ASSERT_NEAR(got[static_cast<size_t>(r * kQ + i)], x, 2e-5) << "row " << r << " element " << i;
        }
      }
      // Scored: the draft row of sequence 0, the rotated x_t of sequence 2; nothing of the others.
      for (int64_t i = 0; i < kQ; ++i) {
        ASSERT_NEAR(scoring[static_cast<size_t>(i)], want.q[static_cast<size_t>(kQ + i)], 2e-5);
        ASSERT_NEAR(scoring[static_cast<size_t>(kQ + i)], want.q_next[static_cast<size_t>(2 * kRows * kQ + i)], 2e-5);
        ASSERT_EQ(scoring[static_cast<size_t>(2 * kQ + i)], 77);
      }
    }
  }
}

TEST_F(StepCuda, QkvWritesNothingForABlockWithoutASlot) {
  Tables in;
  std::fill(in.slot_of_block.host.begin(), in.slot_of_block.host.end(), -1);
  in.items.host[3].rows = 0;  // the dense one needs no map
  in.upload();
  constexpr int64_t kAll = kSequences * kRows, kQ = kHeads * kGroup * kDim, kWidth = kQ + 2 * kHeads * kDim;
  const Both<float> qkv(normal_floats(kAll * kWidth, 1)), rope(normal_floats(kAll * kDim, 3));
  const Both<float> q(std::vector<float>(kAll * kQ));
  step_qkv(foreground(), in.tables(), 0,
           {.qkv = qkv.device(), .rope = rope.device(), .rope_next = rope.device(), .q = q.device()});
  EXPECT_TRUE(in.pool.download() == in.pool.host);
}

// Homes of one sequence's blocks in pinned memory, parts at an uneven distance, and their summaries.
struct PinnedHomes {
  static constexpr int64_t kPartStride = kPage + 64, kHome = kLayers * kPartStride, kMeta = kLayers * kSummary;
  explicit PinnedHomes(int64_t homes) {
    auto buffer = gpu().allocate_pinned(static_cast<size_t>(homes * (kHome + kMeta)));
    OASIS_CHECK(buffer.ok(), "{}", buffer.status().message());
    memory = std::move(*buffer);
    std::memset(memory.data(), 0xee, memory.bytes());
  }
  std::byte* part(int64_t home) const { return memory.data() + home * (kHome + kMeta); }
  std::byte* meta(int64_t home) const { return part(home) + kHome; }
  Buffer memory;
};

TEST_F(StepCuda, SealEqualsTheOpAndWritesTheHomeRecord) {
  for (const float beta : {.5f, 1.0f}) {
    Tables in;
    const PinnedHomes homes(3);
    std::mt19937 random(6);
    std::normal_distribution<float> normal(0, 3);
    for (size_t i = 0; i < in.pool.host.size(); i += 2) {
      const bf16 x = oasis::to_bf16(normal(random));
      std::memcpy(&in.pool.host[i], &x, 2);
    }
    in.pool.upload();
    const auto seals = [&](size_t s, int32_t block, int32_t summary, int64_t home) {
      StepItem& item = in.items.host[s];
      item.seal_block = block, item.seal_summary = summary;
      if (home >= 0) item.seal_home = homes.part(home), item.seal_meta = homes.meta(home);
    };
    seals(0, 1, 11, 1);
    seals(1, 1, 12, 0);  // takes no part in the step
    seals(2, 3, 7, -1);  // writing home has failed
    seals(3, 0, 30, 2);
    in.upload();
    const int32_t layer = 2;
    step_seal(foreground(), in.tables(), layer, beta);
    const std::vector<std::byte> got = in.summaries.download();

    std::vector<std::byte> want = in.summaries.host;
    const std::pair<size_t, int64_t> sealed[] = {{0, 1}, {2, -1}, {3, 2}};
    for (const auto& [s, home] : sealed) {
      const StepItem& item = in.items.host[s];
      std::vector<std::byte> part(kPage, std::byte{0xee});
      std::byte* to = part.data();
      int32_t pages[kHeads];
      for (int32_t h = 0; h < kHeads; ++h) pages[h] = in.page(layer, static_cast<int32_t>(s), h, item.seal_block);
      kernels_for(Backend::kCpu)
          .seal(cpu(), {.pool = Tables::pool_view(in.pool.host.data(), layer),
                        .block_size = kBlock,
                        .head_dim = kDim,
                        .kv_heads = kHeads,
                        .beta = beta,
                        .entries = 1,
                        .pages = pages,
                        .summaries = {.base = want.data() + layer * kLayerSummaries * kSummary,
                                      .page_stride = kSummary,
                                      .head_stride = kSummary / kHeads},
                        .summary_pages = &item.seal_summary,
                        .homes = &to,
                        .home_head_stride = kBlockHead});
      if (home < 0) continue;
      for (int32_t l = 0; l < kLayers; ++l) {
        const std::byte* at = homes.part(home) + l * PinnedHomes::kPartStride;
        const std::vector<std::byte> expected = l == layer ? part : std::vector<std::byte>(kPage, std::byte{0xee});
        EXPECT_EQ(std::memcmp(at, expected.data(), kPage), 0) << "sequence " << s << " layer " << l;
        EXPECT_EQ(at[kPage], std::byte{0xee});
      }
      const std::byte* rows = got.data() + (layer * kLayerSummaries + item.seal_summary) * kSummary;
      EXPECT_EQ(std::memcmp(homes.meta(home) + layer * kSummary, rows, kSummary), 0) << "sequence " << s;
      EXPECT_EQ(homes.meta(home)[0], std::byte{0xee});
    }
    expect_near_bytes(got, want);
    for (int64_t i = 0; i < PinnedHomes::kHome; ++i) ASSERT_EQ(homes.part(0)[i], std::byte{0xee});
  }
}

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
        std::byte* slot = Tables::pool_view(in.pool.device(), layer).k(in.page(layer, 0, h, block), h, 0);
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

TEST_F(StepCuda, NormToBf16IsTheNormOfTheChosenRows) {
  for (const int64_t cols : {64, 576, 2048, 4096}) {
    constexpr int64_t kItems = 3, kPerItem = 2, kRowsAnItem = 5, kCount = kItems * kPerItem;
    const Both<float> x(normal_floats(kItems * kRowsAnItem * cols, 1, 3)), weight(normal_floats(cols, 2));
    const Both<uint16_t> out(std::vector<uint16_t>(static_cast<size_t>((kCount + 1) * cols), 0x7777));
    norm_to_bf16(foreground(), x.device(), weight.device(), 1e-5f, cols, kCount, kPerItem, kRowsAnItem, out.device());
    std::vector<float> want(x.host.size());
    rms_norm_ref({.x = x.host.data(),
                  .x_stride = cols,
                  .weight = weight.host.data(),
                  .eps = 1e-5f,
                  .y = want.data(),
                  .y_stride = cols,
                  .rows = kItems * kRowsAnItem,
                  .cols = cols});
    const auto got = out.download();
    for (int64_t i = 0; i < kCount * cols; ++i) {
      const int64_t row = i / cols / kPerItem * kRowsAnItem + i / cols % kPerItem;
      const float w = want[static_cast<size_t>(row * cols + i % cols)];
      ASSERT_NEAR(to_float(bf16{got[static_cast<size_t>(i)]}), w, std::abs(w) / 256 * 1.01) << i;
    }
    EXPECT_EQ(got.back(), 0x7777);
  }
}

TEST_F(StepCuda, SwigluToBf16IsSwiglu) {
  for (const int64_t inner : {8, 128, 1536}) {
    constexpr int64_t kR = 3;
    const Both<float> gate_up(normal_floats(kR * 2 * inner, 1, 6));
    const Both<uint16_t> out(std::vector<uint16_t>(static_cast<size_t>(kR * inner + 4), 0x7777));
    swiglu_to_bf16(foreground(), gate_up.device(), kR, inner, out.device());
    const auto got = out.download();
    for (int64_t r = 0; r < kR; ++r) {
      std::vector<float> want(static_cast<size_t>(inner));
      const float* gate = gate_up.host.data() + r * 2 * inner;
      swiglu_ref({.gate = gate, .up = gate + inner, .y = want.data(), .count = inner});
      for (int64_t i = 0; i < inner; ++i) {
        const float w = want[static_cast<size_t>(i)];
        ASSERT_NEAR(to_float(bf16{got[static_cast<size_t>(r * inner + i)]}), w, std::abs(w) / 256 * 1.01) << i;
      }
    }
    EXPECT_EQ(got.back(), 0x7777);
  }
}

TEST_F(StepCuda, ToBf16RoundsToNearestEven) {
  const Both<float> x(std::vector<float>{0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 0x1.010002p0f, 1e-41f, INFINITY, -0.0f, 3});
  const Both<uint16_t> out(std::vector<uint16_t>(8));
  to_bf16(foreground(), x.device(), 8, out.device());
  const auto got = out.download();
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(got[i], oasis::to_bf16(x.host[i]).bits) << x.host[i];
}

TEST_F(StepCuda, ArgmaxTakesTheLowestOfTheLargestAndNeverANan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t cols : {1, 31, 300, 1024, 1025, 49152}) {
    std::vector<float> x = normal_floats(8 * cols, 1);
    std::vector<int32_t> want;
    const auto row = [&](int64_t r) { return x.begin() + r * cols; };
    std::fill(row(1), row(2), kNan);       // none is a number
    std::fill(row(2), row(3), -INFINITY);  // ties of the smallest value
    std::fill(row(3), row(4), 0.0f);       // ties
    *row(3) = -0.0f;                       // equal to zero
    std::fill(row(4), row(5), kNan);
    *(row(5) - 1) = -3;                               // the only number
    *row(5) = kNan;                                   // before the best
    *(row(7) - 1) = 100, *(row(6) + cols / 2) = 100;  // two of the best
    *row(7) = INFINITY;
    for (int64_t r = 0; r < 8; ++r) {
      int32_t best = -1;
      for (int64_t i = 0; i < cols; ++i) {
        const float v = *(row(r) + i);
        if (!std::isnan(v) && (best < 0 || v > *(row(r) + best))) best = static_cast<int32_t>(i);
      }
      want.push_back(best);
    }
    const Both<float> values(x);
    const Both<int32_t> best(std::vector<int32_t>(8, 99));
    argmax(foreground(), values.device(), 8, cols, best.device());
    EXPECT_EQ(best.download(), want) << cols;
  }
}

}  // namespace
}  // namespace oasis::kernels
