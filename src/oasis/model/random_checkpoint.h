// A model of random weights in memory, for tests and benches that need no file.
#pragma once

#include <cstdint>

#include "oasis/model/checkpoint.h"

namespace oasis::model {

// bf16 weights drawn so that activations keep a size near 1 at every depth; the same for the same config and seed.
// Aborts on a config that validate() refuses. Has no tokenizer.
// With `placeholders` matrices are made on the device that they are uploaded to (DeviceWeights, a GPU), where large
// ones take no host memory and no time; their views have addresses that nothing may read.
Checkpoint make_random(const ModelConfig& config, uint64_t seed, bool placeholders = false);

}  // namespace oasis::model
