// Stands in for the CUDA kernels in builds without them.
#include "oasis/kernels/kernels.h"

namespace oasis::kernels {

const Kernels* cuda_kernels() { return nullptr; }

}  // namespace oasis::kernels
