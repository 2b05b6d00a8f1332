// AVX2: fp32 throughout.
#include "oasis/kernels/matmul/matmul_f32.h"

namespace oasis::kernels::matmul {

const Level& avx2_level() {
  static constexpr Level kLevel{
      .quantize_row = nullptr, .round_row = nullptr, .direct = direct_f32, .tile = tile_f32<6, 2>, .tile_features = 32};
  return kLevel;
}

}  // namespace oasis::kernels::matmul
