// What the lookahead core is told once, when it is made.
#pragma once

#include <cstdint>
#include <functional>

#include "oasis/base/status.h"
#include "oasis/kv/shape.h"

namespace oasis::lookahead {

enum class FetchMode : uint8_t { kBounded, kExact, kAdaptive };
enum class BlockScore : uint8_t { kShrunk, kMinMax };

class KvCore;

// exact: how a verified row has ranked its blocks, for studies that would rank them otherwise.
struct RowRanking {
  const KvCore& core;
  int32_t layer, sequence;
  const float* q;         // [heads, head_dim], after RoPE
  int32_t candidates;     // blocks 0 .. candidates-1
  int32_t* blocks;        // [kv_heads, stride], in rank order
  const int32_t* counts;  // [kv_heads]
  int64_t stride;         // K
};

// The places where a test can hold a stage up. Called on the thread that runs the stage.
enum class Stage : uint8_t { kAppend, kPredict, kSelect, kTransfer, kAttention, kWriteThrough };

struct TestHooks {
  std::function<void(Stage stage, int32_t layer, int64_t step)> delay;  // null: none
  bool poison = false;  // fill a slot with NaN before its new block-head is copied in, and pages when they are taken
  // Replaces the prediction: called per layer with the item's predicted blocks [kv_heads, stride] and counts, to be
  // overwritten.
  std::function<void(int32_t layer, int64_t step, int32_t sequence, int32_t* blocks, int32_t* counts, int64_t stride)>
      predict;
  // exact: may overwrite a row's blocks, not their number. Null: none.
  std::function<void(const RowRanking&)> rank;
};

struct CoreConfig {
  kv::KvShape shape;
  int32_t q_per_kv = 1;
  int32_t max_sequences = 1;
  int32_t max_blocks = 0;       // logical blocks of the longest sequence, open ones included
  int32_t max_draft_rows = 1;   // draft rows a sequence and step: 1 in lookahead mode, draft tokens + 1 in accept mode
  int32_t attend_blocks = 128;  // K
  int32_t resident_blocks = 128;  // R >= K
  double fetch_ratio = 0.05;      // C = ceil(ratio * K)
  FetchMode fetch = FetchMode::kBounded;
  BlockScore score = BlockScore::kShrunk;
  float beta = 0.5f;            // of the shrunk box; minmax means 1
  int32_t dense_blocks = 0;     // the most blocks a dense sequence may own, open ones included (0: no dense sequences)
  int32_t pages = 0;            // of the KV pool
  int32_t summary_pages = 0;    // of the summary pool
  bool serial = false;          // every transfer is joined where it is published: the reference for the pipeline
  int32_t agreement_every = 8;  // agreement of predicted and true top-K is measured in every n-th step (0: never)
  // Benches on a device: predict runs in full, then P is rewritten so that exactly so many of each head's predicted
  // blocks are absent from its residents, and cross the link. Negative: P is left as it is.
  int32_t forced_misses = -1;
  bool timeline = false;  // a device stamps the parts of its steps (lookahead/timeline.h)
  TestHooks hooks;

  int32_t cap() const;                                            // C
  int32_t slots() const { return resident_blocks + kOpenSlots; }  // a sparse sequence's slots a head
  static constexpr int32_t kOpenSlots =
      3;  // enough for blocks p+1 .. p+2+2n, block size >= 16, n <= 8 (design section 4)
};

// Names the value and the range.
Status validate(const CoreConfig& config);

}  // namespace oasis::lookahead
