// The rules of residency on the GPU: one CTA a (item, head), its slots in shared memory. What is sequential by nature,
// the admission of misses in rank order, is done by one warp over 32 ranks at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <vector>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/sort.cuh"
#include "oasis/kernels/select/select.h"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;

constexpr int kThreads = 128;
constexpr int kSlotBits = 13, kBlockBits = 19;
constexpr int kMostSlots = 1 << kSlotBits, kMostBlocks = 1 << kBlockBits;
constexpr uint32_t kAll = 0xffffffffu;

// A resident outside P: last_predicted, block and slot in one number. Residents go in ascending order of it and fill
// the list in descending order.
using Other = unsigned long long;

__device__ Other other(int32_t last_predicted, int32_t block, int32_t slot) {
  return static_cast<Other>(static_cast<uint32_t>(last_predicted) ^ 0x80000000u) << 32 |
         static_cast<Other>(block) << kSlotBits | static_cast<Other>(slot);
}
__device__ int32_t slot_of(Other o) { return static_cast<int32_t>(o & (kMostSlots - 1)); }
__device__ int32_t block_of(Other o) { return static_cast<int32_t>((o & 0xffffffffu) >> kSlotBits); }

struct Args {
  SelectParams p;  // every pointer on the device
  int32_t slots;   // no item has more; a multiple of 64
  int32_t words;   // of 32 blocks: no item has more candidates
};

// A set of small numbers with a rank for each member.
struct Bits {
  uint32_t* words;   // [n]
  uint32_t* before;  // [n]: members in lower words, once ranked

  __device__ void insert(int i) { atomicOr(&words[i / 32], 1u << (i % 32)); }
  __device__ bool contains(int i) const { return words[i / 32] >> (i % 32) & 1; }
  __device__ int rank(int i) const {
    return static_cast<int>(before[i / 32]) + __popc(words[i / 32] & ((1u << (i % 32)) - 1));
  }
  // By one whole warp; returns the number of members.
  __device__ int count_up(int n) {
    uint32_t total = 0;
    for (int base = 0; base < n; base += 32) {
      const int lane = threadIdx.x % 32, at = base + lane;
      const uint32_t own = at < n ? __popc(words[at]) : 0;
      uint32_t upto = own;
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t lower = __shfl_up_sync(kAll, upto, step);
        if (lane >= step) upto += lower;
      }
      if (at < n) before[at] = total + upto - own;
      total += __shfl_sync(kAll, upto, 31);
    }
    return static_cast<int>(total);
  }
};

// The state of one (item, head) in shared memory; sizes in elements of args.slots unless said otherwise.
struct Work {
  Other* others;  // a power of two of them
  int32_t* block_of_slot;
  int32_t* last_predicted;
  int32_t* slot_of_rank;  // of the predicted blocks; kMiss, kOpenRank
  int32_t* admitted;      // blocks, in rank order
  int32_t* free_slots;    // in the order in which they are given out
  Bits predicted;         // slots that hold a block of P
  Bits free;
  Bits victims;
  Bits chosen;  // [args.words]: blocks listed for the next step
};

struct Counts {
  int32_t hits, misses, admitted, wanted, refused, absent, others, free, victims, chosen;
};

constexpr int32_t kMiss = -1, kOpenRank = -2;

// A broken invariant of our own: says which and ends the kernel.
__device__ __noinline__ void broken(const char* what, int32_t value, int32_t limit) {
  printf("select: %s (%d, %d)\n", what, value, limit);
  __trap();
}

size_t work_bytes(int32_t slots, int32_t words) {
  const size_t power = std::bit_ceil(static_cast<uint32_t>(slots));
  return power * sizeof(Other) +
         (5 * static_cast<size_t>(slots) + 6 * (static_cast<size_t>(slots) / 32) + 2 * static_cast<size_t>(words)) * 4;
}

__device__ Work carve(std::byte* memory, int32_t slots, int32_t words) {
  int32_t power = 64;
  while (power < slots) power *= 2;
  Work w;
  w.others = reinterpret_cast<Other*>(memory);
  int32_t* next = reinterpret_cast<int32_t*>(w.others + power);
  const auto take = [&next](int n) {
    int32_t* taken = next;
    next += n;
    return taken;
  };
  const auto take_bits = [&](int n) {
    return Bits{reinterpret_cast<uint32_t*>(take(n)), reinterpret_cast<uint32_t*>(take(n))};
  };
  w.block_of_slot = take(slots);
  w.last_predicted = take(slots);
  w.slot_of_rank = take(slots);
  w.admitted = take(slots);
  w.free_slots = take(slots);
  w.predicted = take_bits(slots / 32);
  w.free = take_bits(slots / 32);
  w.victims = take_bits(slots / 32);
  w.chosen = take_bits(words);
  return w;
}

// The work on one (item, head). Every thread of the CTA holds one, with the same values.
class Head {
 public:
  __device__ Head(const Args& args, const SelectItem& item, const HeadMap& map, int64_t at, const Work& work, Counts& n)
      : p_(args.p),
        item_(item),
        map_(map),
        at_(at),
        predicted_(args.p.predicted + at * args.p.predicted_stride),
        count_(args.p.predicted_count[at]),
        w_(work),
        n_(n),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32) {
    if (thread_ == 0) {
      if (count_ > item_.resident_limit)
        broken("more blocks predicted than may be resident", count_, item_.resident_limit);
      if (item_.slots > args.slots) broken("more slots than max_slots", item_.slots, args.slots);
      if (item_.candidates > args.words * 32)
        broken("more candidates than max_blocks", item_.candidates, args.words * 32);
    }
  }

  __device__ void select() {
    load();
    seal();
    __syncthreads();
    touch();
    __syncthreads();
    if (warp_ == 0) {
      admit();
    } else {
      find_others();
    }
    __syncthreads();
    if (n_.hits + n_.misses != count_ && thread_ == 0)
      broken("an open block is predicted", n_.hits + n_.misses, count_);
    const int fillers = make_room(min(item_.attend_limit, item_.candidates));
    place();
    open();
    write_list(fillers);
    store();
  }

  __device__ void demand() {
    load();
    __syncthreads();
    touch();
    __syncthreads();
    if (warp_ == 0) {
      admit_all();
    } else {
      find_others();
    }
    __syncthreads();
    make_room(0);
    place();
    __syncthreads();
    store();
  }

 private:
  __device__ void load() {
    for (int s = thread_; s < item_.slots; s += kThreads) {
      w_.block_of_slot[s] = map_.block_of_slot[s];
      w_.last_predicted[s] = map_.last_predicted[s];
    }
    for (int i = thread_; i < (item_.slots + 31) / 32; i += kThreads)
      w_.predicted.words[i] = w_.free.words[i] = w_.victims.words[i] = 0;
    for (int i = thread_; i < words(); i += kThreads) w_.chosen.words[i] = 0;
    for (int rank = thread_; rank < count_; rank += kThreads)
      w_.slot_of_rank[rank] = map_.slot_of_block[predicted_[rank]];
    if (thread_ == 0) n_ = {};
  }

  // (1) Open blocks below `candidates` were sealed in this step: they turn into residents where they are. Each thread
  // looks at the slots that it loaded.
  __device__ void seal() {
    for (int s = thread_; s < item_.slots; s += kThreads) {
      if (w_.block_of_slot[s] >= 0 && w_.block_of_slot[s] < item_.candidates && w_.last_predicted[s] == HeadMap::kOpen)
        w_.last_predicted[s] = item_.step;
    }
    for (int block = item_.sealed_begin + thread_; block < item_.candidates; block += kThreads) {
      if (map_.slot_of_block[block] < 0) broken("a block is sealed but was not open", block, item_.sealed_begin);
    }
  }

  // (2) Residents in P; what is left of P are the misses.
  __device__ void touch() {
    int hits = 0, misses = 0;
    for (int rank = thread_; rank < count_; rank += kThreads) {
      const int32_t slot = w_.slot_of_rank[rank];
      if (slot < 0) {
        ++misses;
        w_.slot_of_rank[rank] = kMiss;
        if (predicted_[rank] >= item_.candidates)
          broken("a block is predicted but not sealed", predicted_[rank], item_.candidates);
      } else if (w_.last_predicted[slot] == HeadMap::kOpen) {  // demand may name open blocks
        w_.slot_of_rank[rank] = kOpenRank;
      } else {
        ++hits;
        w_.predicted.insert(slot);
        w_.last_predicted[slot] = item_.step;
      }
    }
    hits = __reduce_add_sync(kAll, hits), misses = __reduce_add_sync(kAll, misses);
    if (lane_ == 0) atomicAdd(&n_.hits, hits), atomicAdd(&n_.misses, misses);
  }

  // Margins of the predicted blocks over the K-th, in units of the head's running spread, as on the CPU.
  struct Margins {
    const float* scores;
    float threshold, kth, spread;

    __device__ bool reached_by(int rank) const {
      if (threshold == -INFINITY) return true;
      const float above = scores[rank] - kth;
      return (spread > 0 ? above / spread : above) >= threshold;
    }
  };
  __device__ Margins margins() const {
    Margins m{p_.predicted_scores ? p_.predicted_scores + at_ * p_.predicted_stride : nullptr, item_.margin_threshold,
              0, 0};
    if (count_ == 0 || !m.scores) return m;
    m.kth = m.scores[count_ - 1];
    m.spread = m.scores[count_ / 4] - m.scores[int64_t{3} * count_ / 4];
    if (!p_.spread) return m;
    float running = p_.spread[at_];
    if (m.spread > 0) {
      running = running > 0 ? running + SelectParams::kSpreadWeight * (m.spread - running) : m.spread;
      __syncwarp();
      if (lane_ == 0) p_.spread[at_] = running;
    }
    m.spread = running;
    return m;
  }

  // (3) Goes through the misses in rank order and admits up to `limit`; with `write` it also counts and writes.
  // Returns the number of admitted. The misses that the cap refuses are not looked at, those that an empty budget
  // refuses are.
  __device__ int walk(const Margins& margins, int limit, bool write) {
    int admitted = 0, wanted = 0, refused = 0, absent = 0, seen = 0;
    for (int base = 0; base < count_ && admitted < item_.cap; base += 32) {
      const int rank = base + lane_;
      const bool miss = rank < count_ && w_.slot_of_rank[rank] == kMiss;
      const int32_t block = miss ? predicted_[rank] : 0;
      uint32_t misses = __ballot_sync(kAll, miss);
      const uint32_t reached = __ballot_sync(kAll, miss && margins.reached_by(rank));
      const uint32_t missing = __ballot_sync(kAll, miss && !item_.wait_for_absent && !is_present(block));
      for (; misses != 0 && admitted < item_.cap; misses &= misses - 1, ++seen) {
        const int bit = __ffs(static_cast<int>(misses)) - 1;
        const int32_t at = __shfl_sync(kAll, block, bit);
        const bool first = admitted == 0, far = reached >> bit & 1;
        if (!far && !first) {
          ++refused;
        } else if (missing >> bit & 1) {
          ++absent;
          if (seen < item_.cap && (far || seen == 0) && p_.wanted) {
            if (write && lane_ == 0) {
              if (wanted >= p_.fetch_stride) broken("too many absent blocks of one head", wanted, p_.fetch_stride);
              p_.wanted[at_ * p_.fetch_stride + wanted] = {at, -1};
            }
            ++wanted;
          }
        } else if (admitted >= limit) {
          ++refused;
        } else {
          if (write && lane_ == 0) w_.admitted[admitted] = at;
          ++admitted;
        }
      }
    }
    if (write && lane_ == 0) {
      n_.admitted = admitted;
      n_.wanted = wanted;
      n_.refused = refused + n_.misses - seen;
      n_.absent = absent;
    }
    return admitted;
  }

  __device__ bool is_present(int32_t block) const {
    return !item_.present || *const_cast<const volatile uint8_t*>(item_.present + block) != 0;
  }

  // Takes up to `blocks` of the step's budget, one even if none is left.
  __device__ int take(int blocks) {
    int taken = 0;
    if (lane_ == 0) {
      auto* budget = reinterpret_cast<unsigned long long*>(p_.budget);
      unsigned long long before = *const_cast<volatile unsigned long long*>(budget), assumed;
      do {
        assumed = before;
        const auto left = static_cast<long long>(assumed);
        taken = static_cast<int>(max(1ll, min(static_cast<long long>(blocks), left)));
        before = atomicCAS(budget, assumed, assumed - static_cast<unsigned long long>(taken));
      } while (before != assumed);
    }
    return __shfl_sync(kAll, taken, 0);
  }

  __device__ void admit() {
    const Margins m = margins();
    int limit = item_.cap;
    if (p_.budget) {
      limit = walk(m, limit, false);
      if (limit > 0) limit = take(limit);
    }
    walk(m, limit, true);
  }

  __device__ void admit_all() {
    int admitted = 0;
    for (int base = 0; base < count_; base += 32) {
      const int rank = base + lane_;
      const bool miss = rank < count_ && w_.slot_of_rank[rank] == kMiss;
      const uint32_t misses = __ballot_sync(kAll, miss);
      if (miss) w_.admitted[admitted + __popc(misses & ((1u << lane_) - 1))] = predicted_[rank];
      admitted += __popc(misses);
    }
    if (lane_ == 0) n_.admitted = admitted;
  }

  // By all warps but the first.
  __device__ void find_others() {
    for (int s = thread_ - 32; s < item_.slots; s += kThreads - 32) {
      const int32_t block = w_.block_of_slot[s], last = w_.last_predicted[s];
      if (block < 0) {
        w_.free.insert(s);
      } else if (last != HeadMap::kOpen && !w_.predicted.contains(s)) {
        w_.others[atomicAdd(&n_.others, 1)] = other(last, block, s);
      }
    }
  }

  // (4) Unmaps the residents that go; free_slots: those free before, then those of the victims, each in ascending
  // order. Returns how many of the residents that stay, the last in `others`, fill a list of `listed` blocks.
  __device__ int make_room(int listed) {
    const int others = n_.others, admitted = n_.admitted;
    const int victims = max(0, n_.hits + admitted + others - item_.resident_limit);
    if (thread_ == 0) {
      if (victims > others) broken("more residents must go than may", victims, others);
      if (admitted > p_.fetch_stride) broken("too many fetches of one head", admitted, p_.fetch_stride);
    }
    const int fillers = max(0, min(listed - n_.hits - admitted, others - victims));
    if (victims > 0 || fillers > 0) {
      int size = 64;
      while (size < others) size *= 2;
      for (int i = others + thread_; i < size; i += kThreads) w_.others[i] = ~Other{0};
      __syncthreads();
      sort_ascending(w_.others, size);
    }
    for (int i = thread_; i < victims; i += kThreads) {
      const Other o = w_.others[i];
      map_.slot_of_block[block_of(o)] = -1;
      w_.block_of_slot[slot_of(o)] = -1;
      w_.victims.insert(slot_of(o));
    }
    __syncthreads();
    const int slot_words = (item_.slots + 31) / 32;
    if (warp_ == 0) {
      const int free = w_.free.count_up(slot_words);
      if (lane_ == 0) n_.free = free;
    } else if (warp_ == 1) {
      w_.victims.count_up(slot_words);
      if (lane_ == 0) n_.victims = victims;
    }
    __syncthreads();
    for (int s = thread_; s < item_.slots; s += kThreads) {
      if (w_.free.contains(s)) {
        w_.free_slots[w_.free.rank(s)] = s;
      } else if (w_.victims.contains(s)) {
        w_.free_slots[n_.free + w_.victims.rank(s)] = s;
      }
    }
    __syncthreads();
    return fillers;
  }

  __device__ int32_t put(int nth, int32_t block, int32_t last_predicted) {
    if (nth >= n_.free + n_.victims) broken("no slot left for a block; slots", block, item_.slots);
    const int32_t slot = w_.free_slots[nth];
    map_.slot_of_block[block] = slot;
    w_.block_of_slot[slot] = block;
    w_.last_predicted[slot] = last_predicted;
    return slot;
  }

  __device__ void place() {
    for (int i = thread_; i < n_.admitted; i += kThreads) {
      const int32_t block = w_.admitted[i];
      p_.fetches[at_ * p_.fetch_stride + i] = {block, put(i, block, item_.step)};
    }
  }

  // Slots for the blocks that the next step's rows can reach, and their entries of the list, which follow `chosen`.
  __device__ void open() {
    if (warp_ != 0) return;
    int given = n_.admitted;
    for (int base = item_.candidates; base < item_.open_end; base += 32) {
      const int32_t block = base + lane_;
      const bool without = block < item_.open_end && map_.slot_of_block[block] < 0;
      const uint32_t all = __ballot_sync(kAll, without);
      if (without) put(given + __popc(all & ((1u << lane_) - 1)), block, HeadMap::kOpen);
      given += __popc(all);
    }
  }

  __device__ int words() const { return (item_.candidates + 31) / 32; }

  __device__ void write_list(int fillers) {
    for (int rank = thread_; rank < count_; rank += kThreads)
      if (w_.slot_of_rank[rank] >= 0) w_.chosen.insert(predicted_[rank]);
    for (int i = thread_; i < n_.admitted; i += kThreads) w_.chosen.insert(w_.admitted[i]);
    for (int i = thread_; i < fillers; i += kThreads) w_.chosen.insert(block_of(w_.others[n_.others - 1 - i]));
    __syncthreads();
    if (warp_ == 0) {
      const int chosen = w_.chosen.count_up(words());
      if (lane_ == 0) n_.chosen = chosen;
    }
    __syncthreads();
    const int length = n_.chosen + max(0, item_.open_end - item_.candidates);
    if (length > p_.list_stride) {
      if (thread_ == 0) broken("a list longer than list_stride", length, static_cast<int32_t>(p_.list_stride));
      return;
    }
    ListEntry* list = p_.list + at_ * p_.list_stride;
    const auto emit = [&](int32_t block, int32_t slot) {
      list[w_.chosen.rank(block)] = {block, item_.page_of_slot[slot]};
    };
    for (int rank = thread_; rank < count_; rank += kThreads)
      if (w_.slot_of_rank[rank] >= 0) emit(predicted_[rank], w_.slot_of_rank[rank]);
    for (int i = thread_; i < n_.admitted; i += kThreads) emit(w_.admitted[i], w_.free_slots[i]);
    for (int i = thread_; i < fillers; i += kThreads) {
      const Other o = w_.others[n_.others - 1 - i];
      emit(block_of(o), slot_of(o));
    }
    for (int block = item_.candidates + thread_; block < item_.open_end; block += kThreads)
      list[n_.chosen + block - item_.candidates] = {block, item_.page_of_slot[map_.slot_of_block[block]]};
    if (thread_ == 0) p_.list_count[at_] = length;
  }

  // What of the map was changed in shared memory, and the counts.
  __device__ void store() {
    for (int s = thread_; s < item_.slots; s += kThreads) {
      map_.block_of_slot[s] = w_.block_of_slot[s];
      map_.last_predicted[s] = w_.last_predicted[s];
    }
    if (thread_ != 0) return;
    p_.fetch_count[at_] = n_.admitted;
    if (p_.wanted) p_.wanted_count[at_] = n_.wanted;
    if (!p_.stats) return;
    int32_t* stats = p_.stats + at_ * 4;
    stats[0] = n_.hits, stats[1] = n_.misses, stats[2] = n_.refused, stats[3] = n_.absent;
  }

  const SelectParams& p_;
  const SelectItem& item_;
  const HeadMap& map_;
  const int64_t at_;  // item * kv_heads + head
  const int32_t* const predicted_;
  const int32_t count_;
  Work w_;
  Counts& n_;  // in shared memory
  const int thread_, lane_, warp_;
};

// Grid: [items * kv_heads].
template <bool kDemand>
__global__ void __launch_bounds__(kThreads) run_head(const Args args) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ Counts counts;
  const int64_t at = blockIdx.x;
  const SelectItem item = args.p.item[at / args.p.kv_heads];
  if (!item.maps) return;
  const HeadMap map = item.maps[at % args.p.kv_heads];
  Head head(args, item, map, at, carve(memory, args.slots, args.words), counts);
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

void launch(Stream& stream, const SelectParams& params, void (*kernel)(Args)) {
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
  OASIS_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(heads), kThreads, bytes, s.handle()>>>(args);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void select_cuda(Stream& stream, const SelectParams& params) { launch(stream, params, run_head<false>); }

void demand_cuda(Stream& stream, const SelectParams& params) { launch(stream, params, run_head<true>); }

}  // namespace oasis::kernels
