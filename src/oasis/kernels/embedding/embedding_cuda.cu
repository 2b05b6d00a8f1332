#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/embedding/embedding.h"

namespace oasis::kernels {
namespace {

template <typename T>
__device__ float to_float_of(T x);
template <>
__device__ float to_float_of(float x) {
  return x;
}
template <>
__device__ float to_float_of(uint16_t x) {
  return bf16_bits_to_float(x);
}

// One block of threads a row. An id outside the table gives NaN, which the sampler reports.
template <typename T>
__global__ void embedding_kernel(const T* table, int64_t vocab, int64_t cols, const int32_t* ids, float* out) {
  const int64_t r = blockIdx.x;
  const int32_t id = ids[r];
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
    out[r * cols + i] = id >= 0 && id < vocab ? to_float_of(table[id * cols + i]) : NAN;
  }
}

}  // namespace

void embedding_cuda(Stream& stream, const EmbeddingParams& params) {
  if (params.rows == 0) return;
  const WeightView& table = params.table;
  OASIS_CHECK(table.type == DType::kBF16 || table.type == DType::kF32, "the GPU's embedding is bf16 or fp32, not {}",
              info(table.type).name);
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  const auto* data =
      staging.in(static_cast<const std::byte*>(table.data), static_cast<size_t>(table.rows * table.row_bytes()));
  const int32_t* ids = staging.in(params.ids, static_cast<size_t>(params.rows));
  float* out = staging.inout(params.out, static_cast<size_t>(params.rows * table.cols));
  const auto rows = static_cast<unsigned>(params.rows);
  if (table.type == DType::kBF16) {
    embedding_kernel<<<rows, 256, 0, s.handle()>>>(reinterpret_cast<const uint16_t*>(data), table.rows, table.cols, ids,
                                                   out);
  } else {
    embedding_kernel<<<rows, 256, 0, s.handle()>>>(reinterpret_cast<const float*>(data), table.rows, table.cols, ids,
                                                   out);
  }
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
