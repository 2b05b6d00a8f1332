// An EAGLE-3 head: one decoder layer over [embedding of the next token, fused feature of the target], chained on its
// own hidden state to propose several tokens.
#pragma once

#include <memory>
#include <string>

#include "oasis/draft/drafter.h"
#include "oasis/model/checkpoint.h"

namespace oasis::draft {

constexpr int32_t kWindowTokens = 2048;  // how far back a head sees, in whole blocks

// Reads the head in `folder` ("random:SEED": a head of random weights, for benches) (config.json, *.safetensors) and
// checks it against the target, whose embeddings it borrows. Device and target must outlive the drafter.
Result<std::unique_ptr<Drafter>> make_eagle3(Device& device, const std::string& folder, const model::Checkpoint& target,
                                             const DrafterOptions& options, int32_t window_tokens = kWindowTokens);

// What make_eagle3 would take, without taking it.
Result<DrafterPlan> plan_eagle3(const std::string& folder, const model::Checkpoint& target,
                                const DrafterOptions& options);

}  // namespace oasis::draft
