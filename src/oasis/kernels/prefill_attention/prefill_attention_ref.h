#pragma once

#include "oasis/kernels/prefill_attention/prefill_attention.h"

namespace oasis::kernels {

// Causal attention by its definition, in fp64, one (row, head) at a time.
void prefill_attention_ref(const PrefillAttentionParams& params);

}  // namespace oasis::kernels
