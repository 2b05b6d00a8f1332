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
