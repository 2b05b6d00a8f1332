// The core's steady state on a GPU: maps, lists, predictions and plans live there, a step is a fixed chain of kernels
// that may be captured as a graph, and one transfer kernel a step runs beside the next step's head (design section 4).
// KvCore stays the owner of sequences, pages and homes; a sequence's arrays are uploaded before its first step here and
// come home when the host needs them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "oasis/kernels/step/step_cuda.h"
#include "oasis/lookahead/kv_core.h"
#include "oasis/lookahead/timeline.h"

namespace oasis::lookahead {

// What a chain of kernels is made for. Steps of one kind can share a graph.
struct StepKind {
  int32_t batch = 0;       // items: sequences 0 .. batch-1
  int32_t rows = 0;        // rows an item
  bool sparse = true;      // some sequence is: predict, select, transfer
  bool measures = false;   // agreement of predicted and true top-K
  bool ranks_all = false;  // a sequence turns sparse at the end of the step: the R best are ranked, not K
  auto operator<=>(const StepKind&) const = default;
};

class DeviceCore : public Mirror {
 public:
  // Borrows both. `transfer_ctas`: multiprocessors given to the transfer. Fails where the core's policy or tier needs
  // the host inside a step (exact fetching, a staged tier, hooks) or memory is short.
  static Result<std::unique_ptr<DeviceCore>> create(Device& device, KvCore& core, int transfer_ctas);
  ~DeviceCore() override;

  // --- A step, after KvCore::begin_step ---
  // Of the step that has begun, run with `batch` items of `rows` rows.
  StepKind kind_of(int32_t batch, int32_t rows) const;
  // Uploads what the chain reads, on `stream`.
  void begin(cuda::CudaStream& stream, std::span<const StepSequence> steps, const StepKind& kind);
  // Starts the background's part; before the chain is enqueued.
  void start_transfer(const StepKind& kind);
  // The chain, in this order, on `stream` (which may be capturing): prologue; per layer after_qkv, attention, finish;
  // epilogue.
  void prologue(cuda::CudaStream& stream, const StepKind& kind);
  // Append, seal, predict. `qkv` as in QkvParams; q receives the rotated queries.
  void after_qkv(cuda::CudaStream& stream, const StepKind& kind, int layer, kernels::QkvParams qkv);
  void attention(cuda::CudaStream& stream, const StepKind& kind, int layer, const float* q, float* out);
  void finish_layer(cuda::CudaStream& stream, const StepKind& kind, int layer);
  void epilogue(cuda::CudaStream& stream, const StepKind& kind);
  // Positions of the chain's rows and of the tokens after x_t's, on the device: [batch * rows], [batch].
  const int32_t* positions() const { return positions_; }
  const int32_t* next_positions() const { return next_positions_; }
  // Ends a part of the chain by that name, for the timeline; the first of a step only begins one. Does nothing where no
  // timeline is asked for.
  void mark(cuda::CudaStream& stream, const StepKind& kind, const char* name, int layer = -1);
  // Of the last two steps.
  std::vector<TimelineSpan> timeline();
  // After the chain has run (the stream is synchronised): counters, errors. Before KvCore::end_step.
  void end();

  // --- Mirror ---
  bool away(int32_t sequence) const override { return away_[static_cast<size_t>(sequence)] != 0; }
  void bring_home(int32_t sequence) override;
  void moved(int32_t sequence, int32_t block) override;
  void forget(int32_t sequence) override;
  void drain() override;

  int64_t copied() const { return last_.copied; }  // block-heads, all steps
  double transfer_seconds() const { return static_cast<double>(last_.transfer_ns) * 1e-9; }

 private:
  static constexpr int32_t kMaxRows = 10;  // x_t, 8 drafts that may be accepted, one that may not
  DeviceCore(Device& device, KvCore& core, int transfer_ctas);
  Status allocate();
  int64_t lay_out(std::byte* base);
  Status seal_into(int32_t sequence, int32_t block, kernels::StepItem& item);
  kernels::StepTables tables(const StepKind& kind) const;
  // Of the first head's element of an array [layers, sequences, kv_heads].
  int64_t at(int64_t layer, int64_t sequence) const {
    return (layer * config_.max_sequences + sequence) * config_.shape.kv_heads;
  }
  void copy_state(int32_t sequence, bool up);
  void upload_tables(int32_t sequence);
  std::byte* first_part(kv::HomeId home) const;
  void recover(const kernels::StepFlags& now);
  // What score and topk are asked: ScoreParams' and TopKParams' fields of these names.
  struct Ranking {
    const int32_t* row_begin;
    const int32_t* candidates;
    const float* q;
    int64_t q_stride;
    int32_t k;
    int32_t* blocks;
    float* block_scores = nullptr;
    int64_t block_stride;
    int32_t* count;
  };
  void rank(cuda::CudaStream& stream, const StepKind& kind, int layer, const Ranking& ranking);
  // Floats of a row of queries.
  int64_t width() const { return int64_t{config_.shape.kv_heads} * config_.q_per_kv * config_.shape.head_dim; }
  void measure(cuda::CudaStream& stream, const StepKind& kind, int layer, const float* q);
  void fill_item(const StepSequence& st, kernels::StepItem& item);

  Device& device_;
  KvCore& core_;
  const CoreConfig& config_;
  const kernels::Kernels& kernels_;
  std::unique_ptr<cuda::CudaStream> transfer_stream_;
  std::unique_ptr<cuda::CudaStream> home_stream_;  // beside the foreground, inside the step: blocks on their way home
  std::vector<cudaEvent_t> sealed_, home_;         // [layers]
  const int transfer_ctas_;
  std::vector<uint8_t> away_;         // [sequences]
  std::vector<int32_t> pages_known_;  // [sequences]: of a dense sequence, how many page numbers the device has
  int64_t step_ = 0;                  // of transfers: those steps that have one
  bool in_flight_ = false;            // a transfer may be running
  int64_t copy_stride_ = 0;

  Buffer memory_, pinned_;
  // In memory_: a copy of the core's map memory, then what only the device needs.
  std::byte* map_memory_ = nullptr;
  kernels::StepTables fixed_;
  kernels::StepFlags* flags_ = nullptr;
  int32_t *predicted_ = nullptr, *predicted_count_ = nullptr, *top_ = nullptr, *top_count_ = nullptr;
  float *spread_ = nullptr, *scores_ = nullptr, *predicted_scores_ = nullptr, *q_scoring_ = nullptr;
  const int32_t** summary_tables_ = nullptr;  // [sequences]
  kernels::Copy* copies_ = nullptr;           // [layers, copy_stride]
  int64_t* budget_ = nullptr;
  int32_t* group_begin_ = nullptr;  // [kMaxRows + 1, sequences + 1]: row_begin of items of so many rows
  // One upload a step, from pinned_ to memory_: positions, next positions, score_begin, candidates, items.
  std::byte* staged_ = nullptr;
  int32_t *positions_ = nullptr, *next_positions_ = nullptr, *score_begin_ = nullptr, *candidates_ = nullptr;
  int32_t* measured_candidates_ = nullptr;  // of the P of the step before; 0: not measured
  int64_t upload_bytes_ = 0;
  kernels::StepFlags last_;  // as of the last end()
  // In pinned_, beside the upload's source.
  kernels::StepFlags* flags_home_ = nullptr;
  int64_t* budget_home_ = nullptr;
  std::vector<kv::PartKey> writing_;

  struct Mark {
    const char* name;
    int32_t layer;
  };
  Buffer stamp_memory_;
  kernels::StepStamps stamps_;
  std::vector<Mark> marks_;  // of a chain, in order: the same for every kind
};

}  // namespace oasis::lookahead
