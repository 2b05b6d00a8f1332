// Eight floats at a time through the compiler's vector extension: two SSE registers where nothing better may be
// assumed, one where the including file is compiled for AVX2. Everything has internal linkage, because files compiled
// for different instruction sets include it and must not share code.
#pragma once

#include <cstdint>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"  // no such value crosses a border between files, and arguments are references

namespace oasis::kernels {
namespace {

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

#define OASIS_VEC8 [[gnu::always_inline]] inline

OASIS_VEC8 F8 load8(const float* p) {
  F8 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

OASIS_VEC8 void store8(float* p, const F8& x) { std::memcpy(p, &x, sizeof(x)); }

// Eight bf16 at p.
OASIS_VEC8 F8 load8_bf16(const void* p) {
  typedef uint16_t U16x8 __attribute__((vector_size(16)));
  typedef uint32_t U8 __attribute__((vector_size(32)));
  U16x8 x;
  std::memcpy(&x, p, sizeof(x));
  return (F8)(__builtin_convertvector(x, U8) << 16);
}

// Eight E4M3 numbers at p that are not NaN.
OASIS_VEC8 F8 load8_fp8(const void* p) {
  typedef uint8_t B8 __attribute__((vector_size(8)));
  B8 x;
  std::memcpy(&x, p, sizeof(x));
  const I8 bits = __builtin_convertvector(x, I8), magnitude = bits & 0x7f;
  const F8 subnormal = __builtin_convertvector(magnitude, F8) * 0x1p-9f;
  const I8 is_subnormal = magnitude < 8;
  const I8 finite = (is_subnormal & (I8)subnormal) | (~is_subnormal & ((magnitude << 20) + (120 << 23)));
  return (F8)((bits & 0x80) << 24 | finite);
}

OASIS_VEC8 F8 splat8(float x) { return F8{x, x, x, x, x, x, x, x}; }

// mask ? a : b, mask lanes all ones or all zeros.
OASIS_VEC8 F8 select8(const I8& mask, const F8& a, const F8& b) { return (F8)((mask & (I8)a) | (~mask & (I8)b)); }

OASIS_VEC8 F8 max8(const F8& a, const F8& b) { return select8(a > b, a, b); }

OASIS_VEC8 float sum8(const F8& x) {
  const F8 a = x + __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  const F8 b = a + __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5);
  return b[0] + b[1];
}

OASIS_VEC8 float max8(const F8& x) {
  const F8 a = max8(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
  const F8 b = max8(a, __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5));
  return b[0] > b[1] ? b[0] : b[1];
}

// Lane i of the result is the sum over x[i]'s lanes.
OASIS_VEC8 F8 sum8_each(const F8 (&x)[8]) {
  F8 a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    a[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(x[2 * i], x[2 * i + 1], 1, 3, 9, 11, 5, 7, 13, 15);
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a[2 * i], a[2 * i + 1], 1, 3, 9, 11, 5, 7, 13, 15);
  }
  return __builtin_shufflevector(b[0], b[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         __builtin_shufflevector(b[0], b[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// x[i][j] becomes x[j][i].
OASIS_VEC8 void transpose8(F8 (&x)[8]) {
  F8 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    a[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      b[i + j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      b[i + j + 2] = __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int j = 0; j < 4; ++j) {
    x[j] = __builtin_shufflevector(b[j], b[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[j + 4] = __builtin_shufflevector(b[j], b[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// 2^x, relative error below 2e-7 for -125 < x < 128; 0 at and below -125, saturates at 2^127.9 above; NaN stays NaN.
OASIS_VEC8 F8 exp2_8(const F8& x) {
  const F8 low = splat8(-125.0f), high = splat8(127.9f), shift = splat8(0x1.8p23f);
  const F8 y = select8(x > high, high, select8(x < low, low, x));
  const F8 t = y + shift;  // rounds to nearest; the integer sits in the low bits of t
  const F8 f = y - (t - shift);
  // Minimax in relative error on [-1/2, 1/2] with p(0) = 1: 9.2e-8.
  F8 p = splat8(1.326472731e-3f);
  p = p * f + 9.671512991e-3f;
  p = p * f + 5.550733581e-2f;
  p = p * f + 2.402224243e-1f;
  p = p * f + 6.931470037e-1f;
  p = p * f + 1.0f;
  const F8 r = (F8)((I8)p + ((I8)t << 23));
  return select8(x <= low, splat8(0.0f), r);
}

OASIS_VEC8 int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

OASIS_VEC8 void fill(float* begin, float* end, float value) {
  for (; begin < end; ++begin) *begin = value;
}

#undef OASIS_VEC8

}  // namespace
}  // namespace oasis::kernels
