// What of a model its results, and so its KV cache, depend on.
#pragma once

#include <cstdint>

#include "oasis/model/checkpoint.h"

namespace oasis::model {

// Hash of the configuration's numbers and of every weight's type, shape and sampled bytes.
uint64_t fingerprint_of(const ModelConfig& config, const ModelWeights& weights);

// Bytes of all weights, a head that is the embedding counted once.
uint64_t bytes_of(const ModelWeights& weights);

}  // namespace oasis::model
