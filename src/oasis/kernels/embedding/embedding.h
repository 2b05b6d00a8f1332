#pragma once

#include <cstdint>

#include "oasis/base/dtype.h"
#include "oasis/device/device.h"

namespace oasis::kernels {

// out[r] = table[ids[r]], unpacked to fp32.
struct EmbeddingParams {
  WeightView table;              // [vocab, hidden]
  const int32_t* ids = nullptr;  // [rows], each in [0, vocab)
  int64_t rows = 0;
  float* out = nullptr;  // [rows, hidden]
};

void embedding_cpu(Stream& stream, const EmbeddingParams& params);
void embedding_cuda(Stream& stream, const EmbeddingParams& params);

}  // namespace oasis::kernels
