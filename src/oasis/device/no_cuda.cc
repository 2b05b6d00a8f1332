// Stands in for device/cuda in builds without it.
#include "oasis/device/device.h"

namespace oasis {

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  return unsupported("GPU {}: this build has no CUDA; build with `cmake --preset cuda` (needs the CUDA toolkit)",
                     index);
}

}  // namespace oasis
