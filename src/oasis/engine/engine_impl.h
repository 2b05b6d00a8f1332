// The engine's insides. engine.cc: making it and the API; scheduler.cc: who runs when; report.cc: what is told of it.
#pragma once

#include <deque>
#include <map>
#include <unordered_map>

#include "oasis/engine/decode_step.h"
#include "oasis/engine/prefill.h"
#include "oasis/engine/sequence.h"

namespace oasis::engine {

using SequencePtr = std::unique_ptr<EngineSequence>;

struct Engine::Impl {
  Impl(Device& device, const model::Checkpoint& checkpoint, const text::Tokenizer* tokenizer, EngineConfig config)
      : device(device), checkpoint(checkpoint), tokenizer(tokenizer), config(std::move(config)) {}
  Status init();

  // --- scheduler.cc, on the engine's thread ---
  bool step();
  bool work_by_share();
  void take_submissions();
  void drop_cancelled();
  bool resume_one();
  bool admit_one();
  bool prefill_item();
  bool start_over(EngineSequence& s);
  Status synthesize_prompt(EngineSequence& s, bool sparse, std::span<const kv::HomeId> homes);
  void finish_prefill();
  void leave(EngineSequence& s);
  bool decode();
  void make_room(std::vector<EngineSequence*>& batch);
  void preempt(EngineSequence& s);
  void publish_blocks(EngineSequence& s, int32_t taken);
  bool nobody_runs() const;
  bool has_work() const;
  int32_t take_index();
  bool starts_sparse(int32_t prompt_tokens) const;

  // --- report.cc, on the engine's thread ---
  void deliver(EngineSequence& s, std::vector<Sampled> tokens);
  void finish(EngineSequence& s, FinishReason reason, Status error = {});
  void snapshot();
  SequenceInfo info(const EngineSequence& s) const;

  Device& device;
  const model::Checkpoint& checkpoint;
  const text::Tokenizer* tokenizer;
  const EngineConfig config;
  MemoryPlan plan;
  std::unique_ptr<draft::Drafter> drafter;
  std::unique_ptr<model::Transformer> transformer;
  std::unique_ptr<kv::HomeStore> homes;
  std::unique_ptr<lookahead::KvCore> core;
  PrefillWorkspace workspace;
  std::unique_ptr<DecodeStep> decode_step;
  kv::PrefixKey prefix_root;
  std::vector<kv::HomeId> synthetic_homes;  // of the first synthetic prompt, one reference each

  // Engine's thread only.
  std::vector<EngineSequence*> by_index;  // [max_sequences]
  std::deque<EngineSequence*> waiting, preempted;
  EngineSequence* prefilling = nullptr;
  std::unique_ptr<Prefill> prefill;
  double prefill_ahead = 0;  // seconds that the prompt has had more than its share, at decode's rate
  int64_t admissions = 0;
  EngineMetrics totals;

  // Shared with callers.
  mutable std::mutex mutex;
  std::condition_variable wake;
  std::unordered_map<RequestId, SequencePtr> sequences;
  std::deque<EngineSequence*> submitted;
  std::unordered_map<RequestId, RequestStats> ended;
  std::atomic<bool> cancel_requested{false};
  RequestId next_id = 1;
  EngineMetrics published;
  bool stopping = false;
  std::thread thread;
};

}  // namespace oasis::engine
