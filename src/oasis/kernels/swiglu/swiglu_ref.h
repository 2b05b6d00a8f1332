#pragma once

#include "oasis/kernels/swiglu/swiglu.h"

namespace oasis::kernels {

void swiglu_ref(const SwigluParams& params);

}  // namespace oasis::kernels
