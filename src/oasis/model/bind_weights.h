// From named tensors to the weights of a model: every shape is checked, nothing is copied that can be used where it
// lies.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/model/checkpoint.h"

namespace oasis::model {

// Sorted by name; the infos stay with their files.
using TensorTable = std::map<std::string, const TensorInfo*, std::less<>>;

enum class TensorNaming { kHuggingFace, kGguf };

// `source` names the checkpoint in errors. What must be copied (norms as floats, misaligned tensors) goes to `owned`.
Result<ModelWeights> bind_weights(const ModelConfig& config, const TensorTable& tensors, TensorNaming naming,
                                  const std::string& source, std::vector<std::vector<std::byte>>& owned);

}  // namespace oasis::model
