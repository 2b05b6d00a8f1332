// The forward pass of a decode step as one piece of work for the device, where the backend has such: no host between
// its layers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "oasis/draft/drafter.h"
#include "oasis/engine/config.h"
#include "oasis/lookahead/kv_core.h"
#include "oasis/lookahead/timeline.h"
#include "oasis/model/transformer.h"

namespace oasis::engine {

class GraphStep {
 public:
  virtual ~GraphStep() = default;
  // Between KvCore::begin_step and end_step. `tokens`: x_t and drafts of each sequence, one after another. Logits are
  // computed of the first `verified` rows of each. Returns when the results are there.
  virtual void run(std::span<const lookahead::StepSequence> steps, std::span<const int32_t> tokens) = 0;
  // Of a row of a sequence of the last step: the token with the largest logit (ties: lower id; -1: no logit is a
  // number), and all logits [vocab], copied to the host, valid until the next call.
  virtual int32_t best(int32_t sequence, int32_t row) const = 0;
  virtual std::span<float> logits(int32_t sequence, int32_t row) = 0;
  // Fused features of the sequence's rows, [rows, feature_dim], where the drafter takes them.
  virtual const float* features(int32_t sequence) const = 0;
  // Of the last two sparse steps, where the configuration asks for it.
  virtual std::vector<lookahead::TimelineSpan> timeline() = 0;
};

// Null where the backend has none, or where the configuration needs the host inside a step.
Result<std::unique_ptr<GraphStep>> make_graph_step(Device& device, model::Transformer& transformer,
                                                   lookahead::KvCore& core, draft::Drafter& drafter,
                                                   const EngineConfig& config);

}  // namespace oasis::engine
