#pragma once

#include "oasis/kernels/attention/attention.h"

namespace oasis::kernels {

// Attention by its definition, in fp64, one (row, head) at a time.
void attention_ref(const AttentionParams& params);

}  // namespace oasis::kernels
