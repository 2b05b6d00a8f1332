#pragma once

#include "oasis/kernels/norm/norm.h"

namespace oasis::kernels {

void rms_norm_ref(const RmsNormParams& params);

}  // namespace oasis::kernels
