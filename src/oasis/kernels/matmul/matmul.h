// y = x W^T with weights as they lie in the checkpoint.
#pragma once

#include <cstdint>
#include <span>

#include "oasis/base/dtype.h"
#include "oasis/device/device.h"

namespace oasis::kernels {

// One weight matrix applied to the shared input.
struct MatmulPart {
  WeightView w;          // [w.rows, cols], any DType but I64 / Bool
  float* y = nullptr;    // [rows, y_stride]: columns 0 .. w.rows-1 are written
  int64_t y_stride = 0;  // elements
};

// All parts read the same x, which is quantised at most once. Up to 64 rows the weights are used as they are (quantised
// dot products; a block of 32 activations shares a scale and has 16 bits each up to 16 rows, else 8; AVX2 always 8);
// above, they are unpacked to bf16 a tile at a time (fp32 ones stay fp32). A row's result does not depend on the thread
// count; it may depend on `rows` (another kernel is chosen). The portable kernels do all of it in fp32.
struct MatmulParams {
  const float* x = nullptr;  // [rows, x_stride], columns 0 .. cols-1 are read
  int64_t x_stride = 0;      // elements
  int64_t rows = 0;
  int64_t cols = 0;  // every part's w.cols
  std::span<const MatmulPart> parts;
  bool accumulate = false;  // y += instead of y =
};

void matmul_cpu(Stream& stream, const MatmulParams& params);
void matmul_cuda(Stream& stream, const MatmulParams& params);

// Unpacks `elements` weights (a multiple of the block) to fp32. Plain code, any DType but I64 / Bool.
void dequantize(DType type, const void* data, int64_t elements, float* out);

}  // namespace oasis::kernels
