// Select and demand on the GPU: one CTA a (item, head) (select_head.cuh). Items in host memory travel with all that
// they point to.
#include <algorithm>
#include <vector>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/select/select_head.cuh"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;
using namespace select_head;

constexpr int kFewSlots = 512, kFewThreads = 64, kManyThreads = 256;

// Grid: [items * kv_heads].
template <bool kDemand, int kThreads>
__global__ void __launch_bounds__(kThreads) run_head(const Args args) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ Counts counts;
  const unsigned at = blockIdx.x, kv_heads = static_cast<unsigned>(args.p.kv_heads);
  const int32_t count = args.p.predicted_count[at];
  const SelectItem item = args.p.item[at / kv_heads];
  if (!item.maps) return;
  const HeadMap map = item.maps[at % kv_heads];
  Head<kThreads> head(args, item, map, at, count, carve(memory, args.slots, args.words), counts);
  if constexpr (kDemand) {
    head.demand();
  } else {
    head.select();
  }
}

// Copies of the items and maps with addresses on the device, while they travel.
struct Staged {
  std::vector<SelectItem> items;
  std::vector<HeadMap> maps;
};

// The items and all that they point to. Their arrays of blocks are as long as the rules may reach.
const SelectItem* stage_items(const SelectParams& p, Staging& staging, Staged& staged) {
  staged.items.assign(p.item, p.item + p.items);
  staged.maps.reserve(p.items * p.kv_heads);
  for (SelectItem& item : staged.items) {
    if (!item.maps) continue;
    const int64_t blocks = std::max(item.candidates, item.open_end);
    item.page_of_slot = staging.in(item.page_of_slot, item.slots);
    item.present = staging.in(item.present, blocks);
    if (Staging::passes(item.maps, 1)) continue;
    HeadMap* first = staged.maps.data() + staged.maps.size();
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const HeadMap& map = item.maps[head];
      staged.maps.push_back({.slot_of_block = staging.inout(map.slot_of_block, blocks),
                             .block_of_slot = staging.inout(map.block_of_slot, item.slots),
                             .last_predicted = staging.inout(map.last_predicted, item.slots)});
    }
    item.maps = staging.in(static_cast<const HeadMap*>(first), p.kv_heads);
  }
  return staging.in(static_cast<const SelectItem*>(staged.items.data()), staged.items.size());
}

template <bool kDemand>
void launch(Stream& stream, const SelectParams& params) {
  if (params.items == 0 || params.kv_heads == 0) return;
  CudaStream& s = as_cuda(stream);
  Staging staging(s);
  Staged staged;
  SelectParams p = params;
  int64_t slots = p.max_slots, blocks = p.max_blocks;
  if (device_accessible(p.item)) {
    OASIS_CHECK(slots > 0, "max_slots and max_blocks must be given where the items lie on the device");
  } else {
    slots = blocks = 0;
    for (int64_t i = 0; i < p.items; ++i) {
      slots = std::max<int64_t>(slots, p.item[i].slots);
      blocks = std::max<int64_t>(blocks, p.item[i].candidates);
    }
    p.item = stage_items(p, staging, staged);
  }
  OASIS_CHECK(slots <= kMostSlots && blocks <= kMostBlocks, "{} slots and {} blocks a head, the limits are {} and {}",
              slots, blocks, kMostSlots, kMostBlocks);
  const int64_t heads = p.items * p.kv_heads;
  p.predicted = staging.in(p.predicted, heads * p.predicted_stride);
  p.predicted_scores = staging.in(p.predicted_scores, heads * p.predicted_stride);
  p.predicted_count = staging.in(p.predicted_count, heads);
  p.spread = staging.inout(p.spread, heads);
  p.budget = staging.inout(p.budget, 1);
  p.fetches = staging.inout(p.fetches, heads * p.fetch_stride);
  p.fetch_count = staging.inout(p.fetch_count, heads);
  p.wanted = staging.inout(p.wanted, heads * p.fetch_stride);
  p.wanted_count = staging.inout(p.wanted_count, heads);
  p.list = staging.inout(p.list, heads * p.list_stride);
  p.list_count = staging.inout(p.list_count, heads);
  p.stats = staging.inout(p.stats, heads * 4);
  const Args args{p, static_cast<int32_t>((std::max<int64_t>(slots, 1) + 63) / 64 * 64),
                  static_cast<int32_t>((blocks + 31) / 32)};
  const int bytes = static_cast<int>(work_bytes(args.slots, args.words));
  // Few slots: the steps are short, and barriers of few warps are cheap.
  const int threads = args.slots <= kFewSlots ? kFewThreads : kManyThreads;
  const auto kernel = args.slots <= kFewSlots ? run_head<kDemand, kFewThreads> : run_head<kDemand, kManyThreads>;
  OASIS_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(heads), threads, bytes, s.handle()>>>(args);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void select_cuda(Stream& stream, const SelectParams& params) { launch<false>(stream, params); }

void demand_cuda(Stream& stream, const SelectParams& params) { launch<true>(stream, params); }

}  // namespace oasis::kernels
