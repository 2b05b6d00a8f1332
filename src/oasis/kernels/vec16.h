// Sixteen floats at a time: what the AVX-512 kernels share. Internal linkage, as in vec8.h.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own _mm512_undefined_epi32 (PR 105593)
#endif

#include <immintrin.h>

#include <cstdint>

namespace oasis::kernels {
namespace {

#define OASIS_VEC16 [[gnu::always_inline]] inline

// 2^x as exp2_8: relative error below 2e-7; 0 for x <= -150; NaN stays NaN.
OASIS_VEC16 __m512 exp2_16(__m512 x) {
  const __m512 y = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // in this order NaN passes
  const __m512 n = _mm512_roundscale_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(y, n);
  __m512 p = _mm512_set1_ps(1.326472731e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.671512991e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550733581e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402224243e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931470037e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// 32 E4M3 bytes of a row with the scale byte `scale` (fp8_row.h) as bf16, exactly. Integers only: a byte's exponent and
// fraction move to where bf16 has them, and the difference of the biases and the scale are added to the exponent.
OASIS_VEC16 __m512i fp8_to_bf16(__m256i bytes, uint8_t scale) {
  const __m512i x = _mm512_cvtepu8_epi16(bytes), magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7f));
  const __m512i normal =
      _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(static_cast<int16_t>((scale - 7) * 128)));
  // Subnormals: bf16 of 0 .. 7 times 2^-9.
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __m512i looked_up = _mm512_permutexvar_epi16(magnitude, table);
  const __m512i subnormal = _mm512_mask_add_epi16(looked_up, _mm512_test_epi16_mask(magnitude, magnitude), looked_up,
                                                  _mm512_set1_epi16(static_cast<int16_t>((scale - 127) * 128)));
  const __mmask32 is_subnormal = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8));
  const __m512i finite = _mm512_mask_mov_epi16(normal, is_subnormal, subnormal);
  const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x80)), 8);
  const __m512i nan = _mm512_set1_epi16(scale == 255 ? 0x7fc0 : 0);
  return _mm512_ternarylogic_epi32(finite, sign, nan, 0xfe);  // or
}

// x[i] lane j becomes x[j] lane i, of 32-bit lanes.
OASIS_VEC16 void transpose16(__m512i (&x)[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // x[4 q + c] holds, in 128-bit lane l, column 4 l + c of rows 4 q .. 4 q + 3.
  for (int c = 0; c < 4; ++c) {
    a[c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);           // lanes 0, 2 of rows 0..3, then of rows 4..7
    a[4 + c] = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);       // lanes 1, 3
    a[8 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);  // the same of rows 8..15
    a[12 + c] = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    x[c] = _mm512_shuffle_i32x4(a[c], a[8 + c], 0x88);
    x[8 + c] = _mm512_shuffle_i32x4(a[c], a[8 + c], 0xdd);
    x[4 + c] = _mm512_shuffle_i32x4(a[4 + c], a[12 + c], 0x88);
    x[12 + c] = _mm512_shuffle_i32x4(a[4 + c], a[12 + c], 0xdd);
  }
}

#undef OASIS_VEC16

}  // namespace
}  // namespace oasis::kernels
