// The KV core: which block-heads are where, what a step reads, what is fetched for the next. It knows no model,
// scheduler or server; an engine drives it by two calls a layer, after QKV and around attention. Read kv_core.cc's
// `after_qkv` and `attention` along with section 3 of the design.
//
// One thread (the engine's) calls everything here. The only other thread is the transfer's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "oasis/kernels/kernels.h"
#include "oasis/kv/home_store.h"
#include "oasis/kv/page_pool.h"
#include "oasis/lookahead/config.h"
#include "oasis/lookahead/head_trace.h"
#include "oasis/lookahead/policy.h"
#include "oasis/lookahead/sequence.h"
#include "oasis/lookahead/stats.h"
#include "oasis/lookahead/transfer.h"

namespace oasis::lookahead {

// One layer's keys and values of a prompt, in the engine's workspace: [kv_head, token, head_dim] each.
struct PrefillKv {
  bf16* k = nullptr;
  bf16* v = nullptr;
  int64_t kv_head_stride = 0;  // elements
};

// Everything a preempted sequence needs besides its homes.
struct SavedSequence {
  Sequence state;  // without pages
  // [layer, kv_head] each: block_of_slot, last_predicted, the next step's listed blocks, P.
  std::vector<std::vector<int32_t>> block_of_slot, last_predicted, list, predicted;
  std::vector<float> spread;           // [layer, kv_head]
  std::vector<std::byte> open_blocks;  // block-heads of blocks sealed .. open_end-1: [block, layer, kv_head]
  int32_t open_end = 0;
};

// Keeps the state of running sequences on a device, so that their steps need no host in between. What the core's own
// arrays hold of a sequence is stale while it is away.
class Mirror {
 public:
  virtual ~Mirror() = default;
  virtual bool away(int32_t sequence) const = 0;
  // Brings the sequence's maps, lists and predictions back into the core's arrays; its transfers are done then.
  virtual void bring_home(int32_t sequence) = 0;
  // The block's home and summary page are others now.
  virtual void moved(int32_t sequence, int32_t block) = 0;
  // The sequence leaves: what is kept of it is void.
  virtual void forget(int32_t sequence) = 0;
  // Returns when nothing is in flight any more.
  virtual void drain() = 0;
};

class KvCore {
 public:
  // Bytes of the maps and lists of all sequences: part of the fast tier.
  static int64_t map_bytes(const CoreConfig& config);
  // The pools are made here, from config.pages and config.summary_pages; `homes` is borrowed and must outlive the core.
  static Result<std::unique_ptr<KvCore>> create(Device& device, CoreConfig config, kv::HomeStore& homes);
  ~KvCore();

  const CoreConfig& config() const { return config_; }
  kv::HomeStore& homes() const { return homes_; }
  const Sequence& sequence(int32_t index) const { return sequences_[static_cast<size_t>(index)]; }

  // --- Memory, for the scheduler ---
  int32_t free_pages() const { return pages_.allocator().available(); }
  int32_t free_summary_pages() const { return summaries_.allocator().available(); }
  // Pages that a sequence of `blocks` blocks (open ones included) holds: all of them dense, R + 3 sparse.
  int32_t pages_for(int32_t blocks, bool sparse) const { return sparse ? config_.slots() : blocks; }
  // What the sequence will take in its next step: blocks that it begins (dense) and seals, the switch to sparse.
  struct Wanted {
    int32_t pages = 0, summary_pages = 0;
  };
  Wanted wanted(const StepSequence& step) const;
  int64_t fast_bytes() const;       // of pools and maps, all of them
  int64_t fast_bytes_peak() const;  // in use at most so far

  // --- Life of a sequence ---
  // `reserved_homes` of the home store's reservation pass to the sequence. `max_blocks` includes open blocks.
  Status attach(int32_t sequence, int32_t max_blocks, int32_t reserved_homes);
  // Takes effect at the step border; memory comes back when the step's transfers are done.
  void detach(int32_t sequence);
  // Ends all transfers and gives deferred memory back. For idle engines and tests.
  void settle();

  // --- Prefill: layer by layer ---
  // Takes pages for what stays resident, homes and summaries for the sealed blocks. `prefix`: homes of the first
  // blocks, one reference each, which pass to the sequence. Fails without side effects if pages or homes are short.
  Status begin_prefill(int32_t sequence, int32_t tokens, bool sparse, std::span<const kv::HomeId> prefix);
  // The sealed block's home gives way to another that holds the same block (HomeStore::publish), referenced for the
  // sequence.
  void rehome(int32_t sequence, int32_t block, kv::HomeId home);
  // Copies the prefix's K and V of a layer from its homes into the workspace.
  Status load_prefix(int32_t sequence, int32_t layer, const PrefillKv& kv);
  // The layer's K and V of all tokens are in the workspace: seals and writes home every whole block, ranks the blocks
  // by the last prompt token's query rotated one position on (q_next [heads * head_dim]) and leaves the first resident
  // set in the slots.
  Status finish_layer(int32_t sequence, int32_t layer, const PrefillKv& kv, const float* q_next);
  // After the last layer: the sequence may take part in steps.
  void finish_prefill(int32_t sequence);

  // Benches: the state that a prefill of `tokens` tokens would leave, without the prefill: residents are drawn at
  // random and all KV is noise (fill_with_noise). The sequence gets `homes` for its first blocks, one reference each,
  // and makes those that are missing; summaries and slots are always its own. Fails like begin_prefill.
  Status synthesize(int32_t sequence, int32_t tokens, bool sparse, std::span<const kv::HomeId> homes);
  void fill_with_noise();

  // --- One decode step ---
  // `steps` in ascending order of sequence. Pages must be there (wanted).
  void begin_step(std::span<const StepSequence> steps);
  // Positions of the step's rows, [rows].
  std::span<const int32_t> positions() const { return positions_; }
  // Append, seal, predict, wait, select. q, q_next [rows, heads * d]: after RoPE at the row's own and at the next
  // position; k, v [rows, kv_heads * d].
  void after_qkv(int32_t layer, const float* q, const float* q_next, const float* k, const float* v);
  // All rows over their lists, then the layer's plan goes to the transfer. out [rows, heads * d].
  void attention(int32_t layer, const float* q, float* out);
  // Rows of the sequence that may count after all (exact: those whose blocks fitted).
  int32_t verified(int32_t sequence) const;
  // `outcomes` in the order of begin_step's sequences. `seconds`: what the step took, for policies that adapt.
  void end_step(std::span<const StepOutcome> outcomes, double seconds);

  // --- Preemption, at a step border ---
  // Saves the sequence and frees its pages and summaries; homes stay referenced (by the saved state).
  SavedSequence save(int32_t sequence);
  // Takes pages and summaries and brings the working set back. Fails without side effects if they are short.
  Status restore(int32_t sequence, SavedSequence& saved);
  // Gives up a saved sequence for good.
  void discard(SavedSequence& saved);

  // Borrowed; null: none. It is called at step borders.
  void set_mirror(Mirror* mirror) { mirror_ = mirror; }

  const CoreStats& stats() const { return stats_; }
  // The prediction of the sequence's last step for a layer and head, in rank order.
  std::span<const int32_t> predicted(int32_t sequence, int32_t layer, int32_t head) const;
  // Residents and lists as they will be in the next step, for tests: (block, last_predicted) ascending, listed blocks
  // ascending.
  std::vector<std::pair<int32_t, int32_t>> residents(int32_t sequence, int32_t layer, int32_t head) const;
  std::vector<int32_t> listed(int32_t sequence, int32_t layer, int32_t head) const;
  // Of the last step, or of prefill if none came after it. Kept if asked.
  void keep_traces(bool keep) { keep_traces_ = keep; }
  const HeadTrace& trace(int32_t sequence, int32_t layer, int32_t head) const {
    return traces_[at(layer, sequence, head)];
  }

  // Every page, home and slot belongs to whom it says. Between steps, transfers settled.
  Status check_integrity() const;

 private:
  friend class DeviceCore;  // lookahead/cuda: the same state on a GPU
  KvCore(Device& device, CoreConfig config, kv::HomeStore& homes, kv::PagePool pages, kv::SummaryPool summaries);
  static int64_t list_stride(const CoreConfig& config);
  struct MapSection {
    int64_t offset;  // in map_memory_
    int64_t bytes;   // of one (layer, sequence)
  };
  static std::vector<MapSection> map_sections(const CoreConfig& config);
  void allocate_state();

  // Index of (layer, sequence, head) in the arrays below.
  size_t at(int32_t layer, int32_t sequence, int32_t head) const {
    return (static_cast<size_t>(layer) * static_cast<size_t>(config_.max_sequences) + static_cast<size_t>(sequence)) *
               static_cast<size_t>(config_.shape.kv_heads) +
           static_cast<size_t>(head);
  }
  Sequence& seq(int32_t index) { return sequences_[static_cast<size_t>(index)]; }
  int32_t open_end(int32_t position, int32_t max_blocks) const;
  // The sequence is dense and turns sparse at the end of its next step.
  bool switches(const Sequence& s) const;
  int32_t block_of(int32_t position) const { return position / config_.shape.block_size; }

  // kv_core.cc: the stages of a layer
  void append(int32_t layer, const float* k, const float* v);
  void seal(int32_t layer);
  void measure_agreement(int32_t layer, const float* q);
  void predict(int32_t layer, const float* q, const float* q_next);
  void select(int32_t layer);
  void publish(int32_t layer);
  // kv_core_exact.cc
  void rank_verified_rows(int32_t layer, const float* q);
  void fetch_demand(int32_t layer);
  void write_row_lists(int32_t layer);
  void attend_row_lists(int32_t layer, const float* q, float* out);
  // kv_core_trace.cc
  void trace_rows(int32_t layer);
  void trace_scores(std::vector<float>& to, const float* from, int32_t count);
  void trace_select(int32_t layer);
  // kv_core_sequence.cc
  Status start_prompt(Sequence& s, int32_t tokens, bool sparse, int32_t summaries);
  int32_t take_page();
  int32_t take_summary_page(kv::HomeId home);
  void start_map(int32_t layer, int32_t sequence, int32_t head, std::span<const int32_t> ranking,
                 int32_t predicted_step);
  Status seal_prompt(Sequence& s, int32_t layer, const kernels::PoolView& workspace);
  void rank_prompt(int32_t sequence, int32_t layer, const float* q_next);
  void fill_slots(int32_t sequence, int32_t layer, const kernels::PoolView& workspace);
  // Queries that score, gathered side by side: begin_scoring, add_scoring a row, then q_scoring() once.
  void begin_scoring() { scoring_rows_.clear(); }
  int32_t scoring_rows() const { return static_cast<int32_t>(scoring_rows_.size()); }
  void add_scoring(const float* row);
  const float* q_scoring();
  void set_list(int32_t layer, int32_t sequence, int32_t head, std::span<const int32_t> blocks);
  void become_sparse(int32_t sequence);
  // kv_core_preempt.cc
  void restore_map(size_t i, const SavedSequence& saved, size_t j);
  Status check_maps(int32_t sequence) const;
  void extend_dense_lists(int32_t sequence, int32_t first_block);
  void free_pages_of(Sequence& s);
  bool away(int32_t sequence) const { return mirror_ && mirror_->away(sequence); }
  void bring_home(int32_t sequence) const {
    if (away(sequence)) mirror_->bring_home(sequence);
  }
  std::vector<TransferItem> fetch_items(int32_t layer, const kernels::Fetch* fetches, const int32_t* counts) const;
  void fill_present(int32_t layer);
  void take_errors();

  CoreConfig config_;
  kv::HomeStore& homes_;
  const kernels::Kernels& kernels_;
  Stream& stream_;
  // Head maps, lists and plans are host memory here: the ops that follow the rules run on the CPU for any device.
  std::unique_ptr<Device> rules_device_;  // null: the device itself is the CPU
  const kernels::Kernels& rules_;
  Stream& rules_stream_;
  kv::PagePool pages_;
  kv::SummaryPool summaries_;
  std::unique_ptr<FetchPolicy> policy_;
  std::unique_ptr<Transfer> transfer_;
  std::vector<Sequence> sequences_;            // [max_sequences]
  std::vector<int32_t> summary_page_of_home_;  // [homes]: the live summary page of a home, or -1
  Buffer map_memory_;
  CoreStats stats_;
  Mirror* mirror_ = nullptr;
  bool keep_traces_ = false;

  // State of all sequences, indexed by at(): persistent between steps, in map_memory_.
  std::vector<kernels::HeadMap> maps_;
  int32_t* predicted_ = nullptr;  // [.., R]: P in rank order
  int32_t* predicted_count_ = nullptr;
  kernels::ListEntry* list_ = nullptr;  // [.., list_stride]: what the next step attends
  int32_t* list_count_ = nullptr;
  float* spread_ = nullptr;
  std::vector<HeadTrace> traces_;  // indexed by at()
  int64_t list_stride_ = 0;

  // The current step.
  int64_t step_ = -1;  // global number; transfers and deferred frees go by it
  std::vector<StepSequence> steps_;
  std::vector<int32_t> positions_, row_table_, row_block_, row_begin_, first_row_;
  std::vector<int32_t> candidates_, switching_;               // [max_sequences]
  std::vector<std::pair<int32_t, int32_t>> sealing_;          // (sequence, block)
  std::vector<int32_t> verified_;                             // [max_sequences]
  double step_wait_ = 0, busy_before_ = 0, mirror_busy_ = 0;  // mirror_*: by a mirror's transfers in this step
  int64_t moved_before_ = 0, refused_before_ = 0, mirror_moved_ = 0;
  bool any_sparse_ = false, any_switching_ = false, agreement_step_ = false;

  // Scratch of one layer, [max_sequences, kv_heads, ..] unless said otherwise.
  std::vector<kernels::BlockTable> tables_;
  std::vector<int32_t> row_pages_, seal_pages_;
  Buffer scores_, q_scoring_;  // on the device: [max_sequences, kv_heads, max_blocks]; rows of the step
  std::vector<kernels::Copy> scoring_rows_;
  std::vector<float> predicted_scores_;
  std::vector<int32_t> top_, top_count_;  // agreement and exact rows
  std::vector<kernels::SelectItem> items_;
  std::vector<kernels::Fetch> fetches_, wanted_;
  std::vector<int32_t> fetch_count_, wanted_count_, select_stats_;
  std::vector<kernels::ListEntry> next_list_;
  std::vector<int32_t> next_list_count_;
  std::vector<uint8_t> present_;  // [max_sequences, max_blocks]
  // exact: one group a verified row
  Buffer row_scores_;  // on the device: [groups, kv_heads, max_blocks]
  std::vector<int32_t> group_row_begin_, group_sequence_, row_top_, row_top_count_, demand_, demand_count_;
  std::vector<kernels::ListEntry> row_list_;  // [groups, kv_heads, list_stride]
  std::vector<int32_t> row_list_count_;
};

}  // namespace oasis::lookahead
