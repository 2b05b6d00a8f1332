// What the tests of a captured step's pieces share: tables of four sequences on the GPU, homes in pinned memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/step/step_cuda.h"

namespace oasis::kernels::step_testing {

inline Device& gpu() { return test_device(Backend::kCuda); }
inline cuda::CudaStream& foreground() { return cuda::as_cuda(gpu().foreground()); }
inline Stream& cpu() { return test_device(Backend::kCpu).foreground(); }

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

inline std::vector<float> normal_floats(int64_t n, uint32_t seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

constexpr int32_t kLayers = 3, kSequences = 4, kHeads = 2, kGroup = 3, kDim = 64, kBlock = 16, kRows = 2;
constexpr int32_t kSlots = 6, kMaxBlocks = 9, kPages = kSequences * kMaxBlocks + 3;
constexpr int64_t kBlockHead = int64_t{2} * kBlock * kDim * 2, kPage = kHeads * kBlockHead;
constexpr int64_t kPool = kLayers * kPages * kPage, kSummary = kHeads * int64_t{4} * kDim, kLayerSummaries = 40;

// A core's tables for four sequences, slots as large as bf16 needs: 0 sparse with two rows, 1 not in the step, 2 sparse
// with one, 3 dense with two.
struct Tables {
  KvType type;
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

  explicit Tables(KvType kv_type = KvType::kBf16) : type(kv_type) {
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
  int64_t row_bytes() const { return type == KvType::kBf16 ? 2 * kDim : kDim; }
  // Of a home: kBlockHead or, in FP8, about half of it.
  int64_t block_head_bytes() const { return 2 * kBlock * (row_bytes() + (type == KvType::kBf16 ? 0 : 1)); }
  PoolView pool_view(std::byte* base, int32_t layer) const {
    return {.base = base + layer * kPages * kPage,
            .page_stride = kPage,
            .head_stride = kBlockHead,
            .token_stride = row_bytes(),
            .v_offset = kBlock * row_bytes(),
            .scale_offset = 2 * kBlock * row_bytes(),
            .type = type};
  }
  StepTables tables() const {
    StepTables t;
    t.sequences = t.batch = kSequences, t.layers = kLayers, t.kv_heads = kHeads, t.q_per_kv = kGroup;
    t.head_dim = kDim, t.block_size = kBlock, t.rows = kRows;
    t.items = items.device(), t.maps = maps.device(), t.page_of_slot = page_of_slot.device();
    t.slot_stride = kMaxBlocks, t.slots = kSlots, t.resident = 3, t.attended = 2;
    t.summary_pages = summary_pages.device(), t.homes = homes.device(), t.max_blocks = kMaxBlocks;
    t.home_layer_stride = kPage + 64, t.block_head_bytes = block_head_bytes();
    t.lists = lists.device(), t.list_count = list_count.device(), t.list_stride = kMaxBlocks;
    t.select_items = select_items.device(), t.fetches = fetches.device(), t.fetch_count = fetch_count.device();
    t.fetch_stride = 2, t.select_stats = stats.device();
    t.summaries = {.base = summaries.device(), .page_stride = kSummary, .head_stride = kSummary / kHeads};
    t.summary_layer_stride = kLayerSummaries * kSummary;
    t.pool = pool_view(pool.device(), 0), t.pool_layer_stride = kPages * kPage;
    return t;
  }
};

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

class StepCuda : public testing::Test {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(Backend::kCuda); }
};

}  // namespace oasis::kernels::step_testing
