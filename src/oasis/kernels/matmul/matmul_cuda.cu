// y = x W^T by cuBLASLt: bf16 weights times activations rounded to bf16, summed in fp32; fp32 weights in fp32.
#include <cublasLt.h>

#include <map>
#include <tuple>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/matmul/matmul.h"
#include "oasis/kernels/matmul/matmul_cuda.h"

namespace oasis::kernels {
namespace {

#define OASIS_BLAS_CHECK(call)                                                                               \
  do {                                                                                                       \
    const cublasStatus_t oasis_status = (call);                                                              \
    OASIS_CHECK(oasis_status == CUBLAS_STATUS_SUCCESS, "{}: {}", #call, cublasGetStatusName_(oasis_status)); \
  } while (false)

const char* cublasGetStatusName_(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "not initialised";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "out of memory";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "invalid value";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "not for this GPU";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "execution failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "not supported";
    default:
      return "failed";
  }
}

constexpr size_t kBlasWorkspace = size_t{32} << 20;

struct Shape {
  int64_t rows, n, k, x_stride, y_stride;
  cudaDataType_t type;
  bool accumulate;
  int sms;
  auto operator<=>(const Shape&) const = default;
};

// What cuBLASLt is told of one product, and the algorithm that it chose for it.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

// y^T [n, rows] = W [n, k] x^T [k, rows] in column-major words: W lies there as [k, n], transposed.
Plan make_plan(cublasLtHandle_t blas, const Shape& s) {
  Plan plan;
  OASIS_BLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  OASIS_BLAS_CHECK(
      cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  const int32_t sms = s.sms;
  OASIS_BLAS_CHECK(
      cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof sms));
  const auto n = static_cast<uint64_t>(s.n), k = static_cast<uint64_t>(s.k), rows = static_cast<uint64_t>(s.rows);
  OASIS_BLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.w, s.type, k, n, s.k));
  OASIS_BLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.x, s.type, k, rows, s.x_stride));
  OASIS_BLAS_CHECK(cublasLtMatrixLayoutCreate(&plan.y, CUDA_R_32F, n, rows, s.y_stride));
  cublasLtMatmulPreference_t preference = nullptr;
  OASIS_BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  OASIS_BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &kBlasWorkspace, sizeof kBlasWorkspace));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  OASIS_BLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(blas, plan.operation, plan.w, plan.x, plan.y, plan.y, preference, 1,
                                                  &best, &found));
  OASIS_CHECK(found == 1, "cuBLASLt knows no way to multiply {} rows by [{}, {}]", s.rows, s.n, s.k);
  plan.algorithm = best.algo;
  cublasLtMatmulPreferenceDestroy(preference);
  return plan;
}

const Plan& plan_for(cublasLtHandle_t blas, const Shape& shape) {
  thread_local std::map<std::pair<cublasLtHandle_t, Shape>, Plan> plans;
  const auto key = std::pair(blas, shape);
  auto it = plans.find(key);
  if (it == plans.end()) it = plans.emplace(key, make_plan(blas, shape)).first;
  return it->second;
}

// Four elements a thread where `wide`, which wants x and its stride aligned to 16 bytes.
template <bool wide>
__global__ void to_bf16_kernel(const float* x, int64_t x_stride, int64_t rows, int64_t cols, uint16_t* out) {
  const int64_t quads = cols / 4, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * quads) return;
  const int64_t r = i / quads, c = i % quads * 4;
  const float* from = x + r * x_stride + c;
  const float4 v = wide ? *reinterpret_cast<const float4*>(from) : float4{from[0], from[1], from[2], from[3]};
  ushort4 y = {float_to_bf16_bits(v.x), float_to_bf16_bits(v.y), float_to_bf16_bits(v.z), float_to_bf16_bits(v.w)};
  *reinterpret_cast<ushort4*>(out + r * cols + c) = y;
}

void multiply(cuda::CudaStream& s, const Shape& shape, const void* x, const void* w, float* y, std::byte* workspace) {
  const Plan& plan = plan_for(s.blas(), shape);
  const float one = 1, beta = shape.accumulate ? 1.0f : 0.0f;
  OASIS_BLAS_CHECK(cublasLtMatmul(s.blas(), plan.operation, &one, w, plan.w, x, plan.x, &beta, y, plan.y, y, plan.y,
                                  &plan.algorithm, workspace, kBlasWorkspace, s.handle()));
}

}  // namespace

void gemm_bf16(cuda::CudaStream& s, const uint16_t* x, int64_t rows, int64_t k, const void* w, int64_t n, float* y,
               int64_t y_stride, bool accumulate) {
  const Shape shape{.rows = rows,
                    .n = n,
                    .k = k,
                    .x_stride = k,
                    .y_stride = y_stride,
                    .type = CUDA_R_16BF,
                    .accumulate = accumulate,
                    .sms = s.sms()};
  multiply(s, shape, x, w, y, s.workspace(kBlasWorkspace));
}

void matmul_cuda(Stream& stream, const MatmulParams& p) {
  if (p.rows == 0 || p.parts.empty()) return;
  auto& s = cuda::as_cuda(stream);
  cuda::Staging staging(s);
  const DType type = p.parts[0].w.type;
  OASIS_CHECK(type == DType::kBF16 || type == DType::kF32, "the GPU multiplies bf16 or fp32 weights, not {}",
              info(type).name);
  OASIS_CHECK(p.cols % 8 == 0, "a product over {} columns: the GPU takes multiples of 8", p.cols);
  const float* x = staging.in(p.x, static_cast<size_t>((p.rows - 1) * p.x_stride + p.cols));
  std::byte* workspace = s.workspace(kBlasWorkspace + static_cast<size_t>(p.rows * p.cols) * 2);
  const void* input = x;
  int64_t input_stride = p.x_stride;
  if (type == DType::kBF16) {
    auto* rounded = reinterpret_cast<uint16_t*>(workspace + kBlasWorkspace);
    const bool wide = p.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    auto* kernel = wide ? to_bf16_kernel<true> : to_bf16_kernel<false>;
    const auto blocks = static_cast<unsigned>((p.rows * p.cols / 4 + 255) / 256);
    kernel<<<blocks, 256, 0, s.handle()>>>(x, p.x_stride, p.rows, p.cols, rounded);
    OASIS_CUDA_CHECK(cudaGetLastError());
    input = rounded;
    input_stride = p.cols;
  }
  for (const MatmulPart& part : p.parts) {
    OASIS_CHECK(part.w.type == type, "the parts of one product have one type");
    const auto* w =
        staging.in(static_cast<const std::byte*>(part.w.data), static_cast<size_t>(part.w.rows * part.w.row_bytes()));
    float* y = staging.inout(part.y, static_cast<size_t>((p.rows - 1) * part.y_stride + part.w.rows));
    const Shape shape{.rows = p.rows,
                      .n = part.w.rows,
                      .k = p.cols,
                      .x_stride = input_stride,
                      .y_stride = part.y_stride,
                      .type = type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F,
                      .accumulate = p.accumulate,
                      .sms = s.sms()};
    multiply(s, shape, input, w, y, workspace);
  }
}

}  // namespace oasis::kernels
