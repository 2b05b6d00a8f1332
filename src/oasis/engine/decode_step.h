// One decode step of a batch: design section 3, from the tokens to the next drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oasis/engine/graph_step.h"
#include "oasis/engine/sequence.h"
#include "oasis/model/transformer.h"

namespace oasis::engine {

class DecodeStep {
 public:
  static Result<DecodeStep> create(Device& device, model::Transformer& transformer, lookahead::KvCore& core,
                                   draft::Drafter& drafter, const EngineConfig& config);

  // How the sequence will take part in a step: its rows, limited by its drafts and by its maximum length.
  lookahead::StepSequence shape_of(const EngineSequence& s) const;
  // Runs the step for `batch` (ascending index) and appends what came of it to each sequence's tokens; `sampled`
  // [batch] receives the new tokens. A sequence that ended for its own reasons (stop token, length) takes no more
  // tokens after the one that ended it.
  void run(std::span<EngineSequence* const> batch, std::vector<std::vector<Sampled>>& sampled);
  // The first proposals of a sequence: `features` is the last prompt row's.
  void propose_after_prefill(EngineSequence& s, const float* features);
  // Time spent by the drafter so far.
  double propose_seconds() const { return propose_seconds_; }
  // Empty where steps are not captured.
  std::vector<lookahead::TimelineSpan> timeline() {
    return graph_ ? graph_->timeline() : std::vector<lookahead::TimelineSpan>();
  }

 private:
  DecodeStep(model::Transformer& transformer, lookahead::KvCore& core, draft::Drafter& drafter,
             const EngineConfig& config)
      : transformer_(&transformer), core_(&core), drafter_(&drafter), config_(&config) {}
  void layers(int64_t rows);
  void compute_logits(std::span<EngineSequence* const> batch);
  // The token that a row gives: drawn from its logits, or the argmax that the device found.
  Sampled choose(EngineSequence& s, int32_t row, bool last, float* host_logits, bool& accepted);
  void sample(EngineSequence& s, const lookahead::StepSequence& st, float* host_logits, std::vector<Sampled>& out);
  void propose(std::span<EngineSequence* const> batch, std::span<const lookahead::StepOutcome> outcomes);

  model::Transformer* transformer_;
  lookahead::KvCore* core_;
  draft::Drafter* drafter_;
  const EngineConfig* config_;
  Stream* stream_ = nullptr;
  Buffer activations_;
  Buffer logit_memory_;  // that the host reads too
  float *x_ = nullptr, *q_ = nullptr, *q_unrotated_ = nullptr, *q_next_ = nullptr, *k_ = nullptr, *v_ = nullptr,
        *attention_ = nullptr;
  float *rope_ = nullptr, *rope_next_ = nullptr, *features_ = nullptr, *logit_rows_ = nullptr, *logits_ = nullptr;
  std::unique_ptr<GraphStep> graph_;
  std::vector<const float*> sequence_features_;  // [batch]
  std::vector<lookahead::StepSequence> steps_;
  std::vector<int32_t> tokens_, first_row_, first_logit_;
  double propose_seconds_ = 0;
};

}  // namespace oasis::engine
