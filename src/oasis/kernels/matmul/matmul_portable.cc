// Without intrinsics everything goes through fp32, which compilers vectorise for whatever the machine has.
#include "oasis/kernels/matmul/matmul_f32.h"

namespace oasis::kernels::matmul {

const Level& portable_level() {
  static constexpr Level kLevel{
      .quantize_row = nullptr, .round_row = nullptr, .direct = direct_f32, .tile = tile_f32<4, 1>, .tile_features = 32};
  return kLevel;
}

}  // namespace oasis::kernels::matmul
