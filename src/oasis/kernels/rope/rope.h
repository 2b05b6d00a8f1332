// Rotary position embedding, half-split: (x_i, x_{i+d/2}) turns by position * frequency_i.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"

namespace oasis::kernels {

// cos and sin of every row's angles, once a step for all layers. Angles are computed in fp64.
struct RopeTableParams {
  const double* frequencies = nullptr;  // [d/2], radians a position (scaling already applied: model/rope.h)
  float scale = 1;                      // multiplies cos and sin (YaRN's attention factor)
  const int32_t* positions = nullptr;   // [rows]; negative: the row is masked, treated as position 0
  int64_t rows = 0;
  int64_t head_dim = 0;
  float* cos_sin = nullptr;  // [rows, 2, d/2]: cos then sin
};

// Rotates heads of every row, reading x and writing y (may be the same memory unless `interleaved`).
// interleaved: the input is in the pair order of GGUF's llama checkpoints (x_{2i}, x_{2i+1}); the output is half-split
// all the same.
struct RopeParams {
  const float* x = nullptr;        // [rows, x_stride], heads * head_dim used
  int64_t x_stride = 0;            // elements
  const float* cos_sin = nullptr;  // [rows, 2, d/2]
  bool interleaved = false;
  float* y = nullptr;    // [rows, y_stride]
  int64_t y_stride = 0;  // elements
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
};

void rope_table_cpu(Stream& stream, const RopeTableParams& params);
void rope_table_cuda(Stream& stream, const RopeTableParams& params);
void rope_cpu(Stream& stream, const RopeParams& params);
void rope_cuda(Stream& stream, const RopeParams& params);

}  // namespace oasis::kernels
