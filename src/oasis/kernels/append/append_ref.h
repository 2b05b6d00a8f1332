#pragma once

#include "oasis/kernels/append/append.h"

namespace oasis::kernels {

void append_ref(const AppendParams& params);

}  // namespace oasis::kernels
