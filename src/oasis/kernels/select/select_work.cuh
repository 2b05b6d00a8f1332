// Internal: what select holds in shared memory for one (item, head).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "oasis/kernels/select/select.h"

namespace oasis::kernels::select_head {

constexpr int kOwn = 8;  // others a lane can hold, to find a bound on them without sorting
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
  int32_t* page_of_slot;
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
  Other victims_end, fillers_begin;
};

constexpr int32_t kMiss = -1, kOpenRank = -2;

// A broken invariant of our own: says which and ends the kernel.
__device__ __noinline__ void broken(const char* what, int32_t value, int32_t limit) {
  printf("select: %s (%d, %d)\n", what, value, limit);
  __trap();
}

inline size_t work_bytes(int32_t slots, int32_t words) {
  const size_t power = std::bit_ceil(static_cast<uint32_t>(slots));
  return power * sizeof(Other) +
         (6 * static_cast<size_t>(slots) + 6 * (static_cast<size_t>(slots) / 32) + 2 * static_cast<size_t>(words)) * 4;
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
  w.page_of_slot = take(slots);
  w.slot_of_rank = take(slots);
  w.admitted = take(slots);
  w.free_slots = take(slots);
  w.predicted = take_bits(slots / 32);
  w.free = take_bits(slots / 32);
  w.victims = take_bits(slots / 32);
  w.chosen = take_bits(words);
  return w;
}

}  // namespace oasis::kernels::select_head
