// Internal: the rules of residency for one (item, head), by the threads of one CTA. The head's slots lie in shared
// memory; the admission of misses, which is sequential by nature, is done by one warp over 32 ranks at a time.
#pragma once

#include <cmath>

#include "oasis/kernels/cuda/sort.cuh"
#include "oasis/kernels/select/select.h"
#include "oasis/kernels/select/select_work.cuh"

namespace oasis::kernels::select_head {

// The work on one (item, head). Every thread of the CTA, kThreads of them, holds one, with the same values.
template <int kThreads>
class Head {
 public:
  __device__ Head(const Args& args, const SelectItem& item, const HeadMap& map, int64_t at, int32_t count,
                  const Work& work, Counts& n)
      : p_(args.p),
        item_(item),
        map_(map),
        at_(at),
        predicted_(args.p.predicted + at * args.p.predicted_stride),
        count_(count),
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
    if (warp_ == 0) admit();
    if (warp_ >= kFinders) find_others();
    __syncthreads();
    if (n_.hits + n_.misses != count_ && thread_ == 0)
      broken("an open block is predicted", n_.hits + n_.misses, count_);
    make_room(min(item_.attend_limit, item_.candidates));
    place();
    open();
    write_list();
    store();
  }

  __device__ void demand() {
    load();
    __syncthreads();
    touch();
    __syncthreads();
    if (warp_ == 0) admit_all();
    if (warp_ >= kFinders) find_others();
    __syncthreads();
    make_room(0);
    place();
    __syncthreads();
    store();
  }

 private:
  static constexpr int kFinders = kThreads > 32 ? 1 : 0;  // first of the warps that look for others while one admits

  // All that lies in global memory is asked for here, so that the rest waits for it once.
  __device__ void load() {
    const int block = item_.candidates + thread_;
    if (warp_ == 0 && block < item_.open_end) open_slot_ = map_.slot_of_block[block];
#pragma unroll 4
    for (int rank = thread_; rank < count_; rank += kThreads)
      w_.slot_of_rank[rank] = map_.slot_of_block[predicted_[rank]];
#pragma unroll 4
    for (int s = thread_; s < item_.slots; s += kThreads) {
      w_.block_of_slot[s] = map_.block_of_slot[s];
      w_.last_predicted[s] = map_.last_predicted[s];
      w_.page_of_slot[s] = item_.page_of_slot ? item_.page_of_slot[s] : 0;
    }
    for (int i = thread_; i < (item_.slots + 31) / 32; i += kThreads)
      w_.predicted.words[i] = w_.free.words[i] = w_.victims.words[i] = 0;
    for (int i = thread_; i < words(); i += kThreads) w_.chosen.words[i] = 0;
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
      if (reached == misses && missing == 0) {  // the usual case, without a loop over the misses
        const int all = __popc(misses), taken = min(all, limit - admitted);
        const int nth = __popc(misses & ((1u << lane_) - 1));
        if (write && miss && nth < taken) w_.admitted[admitted + nth] = block;
        const int looked_at = limit < item_.cap ? all : taken;
        admitted += taken;
        seen += looked_at;
        refused += looked_at - taken;
        continue;
      }
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

  // By all warps but the first, or by the only one. A warp's slots are those of one word.
  __device__ void find_others() {
    for (int base = (warp_ - kFinders) * 32; base < item_.slots; base += kThreads - 32 * kFinders) {
      const int s = base + lane_;
      const bool there = s < item_.slots;
      const int32_t block = there ? w_.block_of_slot[s] : 0, last = there ? w_.last_predicted[s] : HeadMap::kOpen;
      const uint32_t free = __ballot_sync(kAll, there && block < 0);
      const bool is_other = block >= 0 && last != HeadMap::kOpen && !w_.predicted.contains(s);
      const uint32_t others = __ballot_sync(kAll, is_other);
      int first = 0;
      if (lane_ == 0) {
        w_.free.words[base / 32] = free;
        first = atomicAdd(&n_.others, __popc(others));
      }
      first = __shfl_sync(kAll, first, 0);
      if (is_other) w_.others[first + __popc(others & ((1u << lane_) - 1))] = other(last, block, s);
    }
  }

  // By one whole warp: a number that exactly `n` of the others are below. There are at most 32 * kOwn.
  __device__ Other bound(int n, int others) const {
    if (n <= 0) return 0;
    if (n >= others) return ~Other{0};
    Other own[kOwn];
    uint32_t and_low = ~0u, and_high = ~0u, or_low = 0, or_high = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool there = i * 32 + lane_ < others;
      own[i] = there ? w_.others[i * 32 + lane_] : ~Other{0};
      const auto low = static_cast<uint32_t>(own[i]), high = static_cast<uint32_t>(own[i] >> 32);
      and_low &= low, and_high &= high;
      if (there) or_low |= low, or_high |= high;
    }
    and_low = __reduce_and_sync(kAll, and_low), and_high = __reduce_and_sync(kAll, and_high);
    or_low = __reduce_or_sync(kAll, or_low), or_high = __reduce_or_sync(kAll, or_high);
    // The bits of the n-th are found from the highest; where it and the next one part, n are below.
    Other prefix = static_cast<Other>(and_high) << 32 | and_low;
    Other differing = prefix ^ (static_cast<Other>(or_high) << 32 | or_low);
    while (differing != 0) {
      const Other bit = Other{1} << (63 - __clzll(static_cast<long long>(differing)));
      differing ^= bit;
      const Other upper = prefix | bit;
      int below = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) below += own[i] < upper ? 1 : 0;
      below = __reduce_add_sync(kAll, below);
      if (below == n) return upper;
      if (below < n) prefix = upper;
    }
    return ~Other{0};  // never: no two are equal
  }

  // Bounds on the others: the first `victims` are below n_.victims_end, the last `fillers` not below n_.fillers_begin.
  __device__ void find_bounds(int victims, int fillers, int others) {
    if (victims == 0 && fillers == 0) {
      if (thread_ == 0) n_.victims_end = 0, n_.fillers_begin = ~Other{0};
    } else if (others <= 32 * kOwn) {
      if (warp_ == 0) {
        const Other end = bound(victims, others);
        if (lane_ == 0) n_.victims_end = end;
      }
      if (warp_ == kFinders) {
        const Other begin = bound(others - fillers, others);
        if (lane_ == 0) n_.fillers_begin = begin;
      }
    } else {
      int size = 64;
      while (size < others) size *= 2;
      for (int i = others + thread_; i < size; i += kThreads) w_.others[i] = ~Other{0};
      __syncthreads();
      sort_ascending(w_.others, size);
      if (thread_ == 0) {
        n_.victims_end = victims < others ? w_.others[victims] : ~Other{0};
        n_.fillers_begin = fillers > 0 ? w_.others[others - fillers] : ~Other{0};
      }
    }
    __syncthreads();
  }

  // (4) Unmaps the residents that go; free_slots: those free before, then those of the victims, each in ascending
  // order. The others from n_.fillers_begin on are those that fill a list of `listed` blocks.
  __device__ void make_room(int listed) {
    const int others = n_.others, admitted = n_.admitted;
    const int victims = max(0, n_.hits + admitted + others - item_.resident_limit);
    if (thread_ == 0) {
      if (victims > others) broken("more residents must go than may", victims, others);
      if (admitted > p_.fetch_stride) broken("too many fetches of one head", admitted, p_.fetch_stride);
    }
    const int fillers = max(0, min(listed - n_.hits - admitted, others - victims));
    find_bounds(victims, fillers, others);
    if (victims > 0) {
      const Other end = n_.victims_end;
      for (int i = thread_; i < others; i += kThreads) {
        const Other o = w_.others[i];
        if (o >= end) continue;
        map_.slot_of_block[block_of(o)] = -1;
        w_.block_of_slot[slot_of(o)] = -1;
        w_.victims.insert(slot_of(o));
      }
    }
    __syncthreads();
    const int slot_words = (item_.slots + 31) / 32;
    if (warp_ == 0) {
      const int free = w_.free.count_up(slot_words);
      if (lane_ == 0) n_.free = free;
    }
    if (warp_ == kFinders) {
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
      const bool loaded = base == item_.candidates;
      int32_t slot = loaded || block >= item_.open_end ? open_slot_ : map_.slot_of_block[block];
      const bool without = block < item_.open_end && slot < 0;
      const uint32_t all = __ballot_sync(kAll, without);
      if (without) slot = put(given + __popc(all & ((1u << lane_) - 1)), block, HeadMap::kOpen);
      if (loaded) open_slot_ = slot;
      given += __popc(all);
    }
  }

  __device__ int words() const { return (item_.candidates + 31) / 32; }

  __device__ void write_list() {
    for (int rank = thread_; rank < count_; rank += kThreads)
      if (w_.slot_of_rank[rank] >= 0) w_.chosen.insert(predicted_[rank]);
    for (int i = thread_; i < n_.admitted; i += kThreads) w_.chosen.insert(w_.admitted[i]);
    const Other fillers_begin = n_.fillers_begin;
    for (int i = thread_; i < n_.others; i += kThreads)
      if (w_.others[i] >= fillers_begin) w_.chosen.insert(block_of(w_.others[i]));
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
      list[w_.chosen.rank(block)] = {block, w_.page_of_slot[slot]};
    };
    for (int rank = thread_; rank < count_; rank += kThreads)
      if (w_.slot_of_rank[rank] >= 0) emit(predicted_[rank], w_.slot_of_rank[rank]);
    for (int i = thread_; i < n_.admitted; i += kThreads) emit(w_.admitted[i], w_.free_slots[i]);
    for (int i = thread_; i < n_.others; i += kThreads) {
      const Other o = w_.others[i];
      if (o >= fillers_begin) emit(block_of(o), slot_of(o));
    }
    if (warp_ == 0) {
      for (int block = item_.candidates + lane_; block < item_.open_end; block += 32) {
        const int32_t slot = block < item_.candidates + 32 ? open_slot_ : map_.slot_of_block[block];
        list[n_.chosen + block - item_.candidates] = {block, w_.page_of_slot[slot]};
      }
    }
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
  int32_t open_slot_ = 0;  // warp 0: of block candidates + lane, below open_end
};

}  // namespace oasis::kernels::select_head
