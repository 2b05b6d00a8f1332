#pragma once

#include "oasis/kernels/rope/rope.h"

namespace oasis::kernels {

void rope_table_ref(const RopeTableParams& params);
// `x` and `y` must not overlap.
void rope_ref(const RopeParams& params);

}  // namespace oasis::kernels
