// The body of swiglu, compiled once an instruction set.
#pragma once

#include <cstdint>

#include "oasis/kernels/vec8.h"

namespace oasis::kernels {
namespace {

inline F8 silu8(const F8& x) { return x / (exp2_8(x * splat8(-1.44269504f)) + 1.0f); }

inline void swiglu_range(const float* gate, const float* up, float* y, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) store8(y + i, silu8(load8(gate + i)) * load8(up + i));
  if (i == count) return;
  float g[8] = {}, u[8] = {}, out[8];
  for (int64_t j = i; j < count; ++j) g[j - i] = gate[j], u[j - i] = up[j];
  store8(out, silu8(load8(g)) * load8(u));
  for (int64_t j = i; j < count; ++j) y[j] = out[j - i];
}

}  // namespace
}  // namespace oasis::kernels
