// What a decode step that is captured as a CUDA graph needs beside the ops: kernels that find what is theirs in tables
// on the device, so that a graph's parameters never change. Item i of a step is the sequence with index i; an item has
// `rows` rows side by side, of which those past StepItem::rows are masked.
#pragma once

#include <cstdint>

#include "oasis/device/cuda/cuda_device.h"
#include "oasis/kernels/append/append.h"
#include "oasis/kernels/gather/gather.h"
#include "oasis/kernels/select/select.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// One sequence's part in one step, written by the host before it.
struct StepItem {
  int32_t rows = 0;        // x_t and its drafts; 0: not in this step
  int32_t position = 0;    // of x_t
  int32_t step = 0;        // t, the sequence's own
  int32_t sparse = 0;      // else dense: slot = block
  int32_t candidates = 0;  // sealed blocks to be scored for the next step; 0: none
  int32_t sealed_begin = 0;
  int32_t open_end = 0;
  int32_t cap = 0;
  float margin_threshold = 0;
  int32_t score_begin = 0;    // first of its rows among those that score
  int32_t seal_block = -1;    // the block that x_t seals
  int32_t seal_summary = -1;  // its summary page
  int32_t dense_block = -1;   // dense: a block that got its page now
  int32_t dense_page = -1;
  std::byte* seal_home = nullptr;  // its home: part of layer 0, and the summaries of all layers
  std::byte* seal_meta = nullptr;
};

// Where everything is. All pointers are device memory except homes' targets, which are pinned host memory.
struct StepTables {
  int32_t sequences = 0, layers = 0, kv_heads = 0, q_per_kv = 0, head_dim = 0, block_size = 0;
  int32_t batch = 0, rows = 0;      // items of this graph, rows an item
  const StepItem* items = nullptr;  // [batch]
  HeadMap* maps = nullptr;          // [layers, sequences, kv_heads]
  int32_t* page_of_slot = nullptr;  // [sequences, slot_stride]
  int32_t slot_stride = 0;
  int32_t slots = 0;                   // of a sparse sequence
  int32_t resident = 0, attended = 0;  // R, K
  int32_t* summary_pages = nullptr;    // [sequences, max_blocks]
  std::byte** homes = nullptr;         // [sequences, max_blocks]: part of layer 0
  int32_t max_blocks = 0;
  int64_t home_layer_stride = 0;  // bytes
  int64_t block_head_bytes = 0;   // of a home
  ListEntry* lists = nullptr;     // [layers, sequences, kv_heads, list_stride]
  int32_t* list_count = nullptr;  // [layers, sequences, kv_heads]
  int64_t list_stride = 0;
  SelectItem* select_items = nullptr;  // [layers, sequences]
  Fetch* fetches = nullptr;            // [layers, sequences, kv_heads, fetch_stride]
  int32_t* fetch_count = nullptr;      // [layers, sequences, kv_heads]
  int64_t fetch_stride = 0;
  int32_t* select_stats = nullptr;  // [layers, sequences, kv_heads, 4]
  SummaryView summaries;            // of layer 0
  int64_t summary_layer_stride = 0;
  PoolView pool;  // of layer 0
  int64_t pool_layer_stride = 0;
};

// The border between steps and between streams. One in device memory.
struct StepFlags {
  static constexpr int kMaxLayers = 256;
  int64_t step = 0;                     // of the graph that runs or ran last
  int64_t planned[kMaxLayers] = {};     // last step whose plan of the layer is published
  int64_t done[kMaxLayers] = {};        // last step whose plan is in the slots
  int32_t plan_count[kMaxLayers] = {};  // copies of the published plan
  int32_t plan_fill[kMaxLayers] = {};   // of the plan under way
  uint32_t plan_ticket[kMaxLayers] = {}, done_ticket[kMaxLayers] = {};
  // Read by the host after a step.
  int64_t waited_ns = 0;    // by the foreground for transfers, all steps
  int64_t transfer_ns = 0;  // from a plan's first copy to its last, all steps
  int64_t copied = 0;       // block-heads, counted where they were copied
  int64_t totals[4] = {};   // hits, misses, refused by cap, refused by absence, all steps
  int32_t timed_out = 0;    // layer + 1 of the first wait that gave up
  // Of measured steps, per layer: shares of the true top-K that were predicted and attended, and how many were added
  // up.
  double agreement[kMaxLayers] = {}, cover[kMaxLayers] = {};
  int64_t measured[kMaxLayers] = {};
};

// When the parts of a step ended, by the device's clock in nanoseconds, of the last kSteps steps. Null: nobody asks.
struct StepStamps {
  static constexpr int kSteps = 4;
  int64_t* step = nullptr;  // [kSteps, marks]
  int64_t marks = 0;
  int64_t* transfer = nullptr;  // [kSteps, layers, 2]: before the first copy of a layer, after its last
};
// The time at which the stream comes here, as mark `mark` of the step that flags say.
void step_stamp(cuda::CudaStream&, const StepStamps&, int64_t mark, const StepFlags* flags);

// Once a step, first: the tables take in what the host wrote; select's items are made.
void step_prologue(cuda::CudaStream&, const StepTables&, StepFlags* flags);

// After the QKV product, one layer: q/k norm, RoPE, K and V into their slots, the rows that score gathered.
struct QkvParams {
  const float* qkv = nullptr;     // [batch * rows, (heads + 2 kv_heads) * head_dim]
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 0;
  bool interleaved = false;          // as in RopeParams
  const float* rope = nullptr;       // [batch * rows, 2, head_dim / 2]
  const float* rope_next = nullptr;  // [batch, 2, head_dim / 2]: of the position after x_t's
  float* q = nullptr;                // [batch * rows, heads * head_dim]
  float* q_scoring = nullptr;        // [scoring rows, heads * head_dim]; null: nothing is scored
};
void step_qkv(cuda::CudaStream&, const StepTables&, int layer, const QkvParams&);

// Blocks that x_t completes: their summary into its page; then, before the layer's plan is published (a victim must be
// home), block-heads and summary into the home record.
void step_seal(cuda::CudaStream&, const StepTables&, int layer, float beta);
void step_seal_home(cuda::CudaStream&, const StepTables&, int layer);

// counts [batch, kv_heads] of ranked blocks: those of sparse sequences are cut to K, where others are ranked up to R.
void step_clamp(cuda::CudaStream&, const StepTables&, int32_t* counts);

// How much of the P of the step before, and of this step's lists, is in the true top-K of x_t's own query: `top`
// [batch, kv_heads, top_stride] with `top_count`, for sequences with top_candidates [batch] > 0. Added to flags.
struct AgreementParams {
  const int32_t* candidates = nullptr;  // [batch]
  const int32_t* top = nullptr;
  const int32_t* top_count = nullptr;
  int64_t top_stride = 0;
  const int32_t* predicted = nullptr;        // [batch, kv_heads, predicted_stride], of the layer
  const int32_t* predicted_count = nullptr;  // [batch, kv_heads]
  int64_t predicted_stride = 0;
};
void step_agreement(cuda::CudaStream&, const StepTables&, int layer, const AgreementParams&, StepFlags* flags);

// Benches: rewrites the P of sparse sequences, predicted [batch, kv_heads, stride] with `counts`, so that exactly
// `misses` of its blocks are no residents; which ones varies from step to step.
void step_force_misses(cuda::CudaStream&, const StepTables&, int layer, int misses, int32_t* predicted, int32_t stride,
                       const int32_t* counts);

// Foreground: returns (on the stream) when the plan of the step before is in the slots of this layer.
void step_wait(cuda::CudaStream&, int layer, StepFlags* flags);
// Foreground, after attention and select: hands the layer's plan to the transfer. `copies` [sequences * kv_heads *
// fetch_stride] of the layer.
void step_publish(cuda::CudaStream&, const StepTables&, int layer, Copy* copies, StepFlags* flags);
// Background: takes the layers of step `step` as their plans are published. `copies` [layers, copy_stride].
void step_transfer(cuda::CudaStream&, int64_t step, int layers, const Copy* copies, int64_t copy_stride, int64_t bytes,
                   int ctas, StepFlags* flags, const StepStamps& stamps = {});

// Last: adds select's counters up.
void step_epilogue(cuda::CudaStream&, const StepTables&, StepFlags* flags);

// --- Pieces of the model with bf16 between products ---
// out[i] = norm of row (i / per_item) * rows + i % per_item of x [.., cols], as bf16; i < count.
void norm_to_bf16(cuda::CudaStream&, const float* x, const float* weight, float eps, int64_t cols, int64_t count,
                  int32_t per_item, int32_t rows, uint16_t* out);
// gate_up [rows, 2 * inner]: silu(gate) * up as bf16.
void swiglu_to_bf16(cuda::CudaStream&, const float* gate_up, int64_t rows, int64_t inner, uint16_t* out);

}  // namespace oasis::kernels
