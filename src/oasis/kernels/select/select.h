// The rules of residency (design section 5): which predicted blocks are brought in, which residents go, what the next
// step attends.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// The map of one (sequence, layer, KV head): which logical block each slot holds, and the inverse. `slots` slots; a
// slot is free (block_of_slot -1), holds an open block (last_predicted kOpen), or a resident (sealed) block.
struct HeadMap {
  int32_t* slot_of_block = nullptr;  // [max_blocks]: slot, or -1
  int32_t* block_of_slot = nullptr;  // [slots]: logical block, or -1
  int32_t* last_predicted =
      nullptr;  // [slots]: step in which the block was last in P; kOpen for open blocks; undefined if free
  static constexpr int32_t kOpen = INT32_MIN;
};

// One block-head to bring in: from the home of `block` into slot `slot` (which no list of this step holds any more).
struct Fetch {
  int32_t block;
  int32_t slot;
};

// What one sequence asks of select in this step, for all KV heads of the layer.
struct SelectItem {
  const HeadMap* maps = nullptr;  // [kv_heads]; null: the item is skipped, none of its outputs is written
  const int32_t* page_of_slot =
      nullptr;  // [slots]: the sequence's page table (slot -> page), the same for all layers and heads
  int32_t slots = 0;
  int32_t step = 0;            // t, the sequence's own step number
  int32_t resident_limit = 0;  // R
  int32_t attend_limit = 0;    // K
  int32_t candidates = 0;      // sealed blocks at the end of this step: 0 .. candidates-1
  int32_t sealed_begin = 0;  // blocks sealed_begin .. candidates-1 were sealed in this step (open in the map until now)
  int32_t open_end = 0;      // blocks candidates .. open_end-1 must own a slot for the next step's rows
  int32_t cap = 0;  // bounded: block-heads admitted a head, C x tokens advanced; exact and adaptive: an upper limit
  // adaptive: misses whose margin is below are refused, beyond the head's first; -inf: no threshold. The margin of a
  // block = (its score - the last predicted score) / the head's spread.
  float margin_threshold = 0;
  const uint8_t* present =
      nullptr;  // [max_blocks]: 0 = the part of that block for this layer is not in the addressable tier; null: all
                // are. Bytes are read atomically (relaxed): a part never becomes absent while a step runs.
  bool wait_for_absent = false;  // exact: an absent part is admitted all the same (the transfer waits for it)
};

struct SelectParams {
  int64_t items = 0;
  int64_t kv_heads = 0;
  const SelectItem* item = nullptr;  // [items]
  // CUDA, where `item` lies on the device: no item has more slots, nor more candidates (they size the scratch).
  int32_t max_slots = 0;
  int32_t max_blocks = 0;

  const int32_t* predicted = nullptr;       // [items, kv_heads, predicted_stride]: P in rank order
  const float* predicted_scores = nullptr;  // [items, kv_heads, predicted_stride]; needed where margin_threshold > -inf
  const int32_t* predicted_count = nullptr;  // [items, kv_heads]
  int64_t predicted_stride = 0;
  // [items, kv_heads] adaptive: the head's running spread of scores, updated here before it is used; or null (this
  // step's spread alone). A step's spread is the interquartile range of P's scores: score[n / 4] - score[3 n / 4] by
  // rank. The first positive one initialises (0: none yet), later ones enter with kSpreadWeight.
  float* spread = nullptr;
  static constexpr float kSpreadWeight = 1.0f / 16;
  // adaptive: block-heads left in this step, shared by all items and layers (atomic), taken one by one as blocks are
  // admitted; a head's first may overdraw it. Which heads get the last ones depends on the threads. Null: no budget.
  int64_t* budget = nullptr;

  Fetch* fetches = nullptr;        // [items, kv_heads, fetch_stride]: the plan, admitted misses in rank order
  int32_t* fetch_count = nullptr;  // [items, kv_heads]
  // [items, kv_heads, fetch_stride]: absent parts among the first `cap` misses (slot = -1), in rank order; under
  // adaptive only those that reach the threshold, and the first miss; or null.
  Fetch* wanted = nullptr;
  int32_t* wanted_count = nullptr;  // [items, kv_heads]
  int64_t fetch_stride = 0;

  ListEntry* list =
      nullptr;  // [items, kv_heads, list_stride]: what the next step attends: K selected and all open blocks
  int32_t* list_count = nullptr;  // [items, kv_heads]
  int64_t list_stride = 0;

  int32_t* stats =
      nullptr;  // [items, kv_heads, 4]: hits, misses, refused by cap (or margin or budget), refused by absence; or null
};

// Applies, for every item and head: (1) blocks sealed now (below `candidates` and open in the map; at least those from
// sealed_begin on) become residents with last_predicted = step; (2) residents in
// P get last_predicted = step; (3) misses are admitted in rank order up to the cap and get step; (4) while residents
// exceed R, the non-P resident with the smallest last_predicted goes, ties: lower block. Free slots are used before
// those of victims. Then blocks candidates .. open_end-1 that own no slot get a free one, and the list is written in
// ascending block order: residents in P; if fewer than min(K, candidates), the others with the largest last_predicted,
// ties: higher block, until K; then the open blocks.
void select_cpu(Stream& stream, const SelectParams& params);
void select_cuda(Stream& stream, const SelectParams& params);

// The demand of `exact`: makes every block of `predicted` (here T) resident by rule (4) with T in the place of P,
// without a cap, giving them last_predicted = item.step; writes the fetches, no list. Open blocks are left as they are,
// those sealed in this step included, whether T names them or not: this step's rows read them, so they must not be
// victims yet, and they count neither for T nor for R. They join by rule (1) in select_cpu, which runs afterwards for
// the prefetch. Both want |P|, |T| <= R.
void demand_cpu(Stream& stream, const SelectParams& params);
void demand_cuda(Stream& stream, const SelectParams& params);

}  // namespace oasis::kernels
