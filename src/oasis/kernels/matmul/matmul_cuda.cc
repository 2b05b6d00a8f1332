// y = x W^T by cuBLASLt: bf16 weights times activations rounded to bf16, summed in fp32; fp32 weights in fp32.
#include "oasis/kernels/matmul/matmul_cuda.h"

#include <cublasLt.h>

#include <map>
#include <tuple>
#include <vector>

#include "oasis/device/cuda/staging.h"
#include "oasis/kernels/matmul/matmul.h"

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
  bool tuned = false;
};

// y^T [n, rows] = W [n, k] x^T [k, rows] in column-major words: W lies there as [k, n], transposed.
Plan describe(const Shape& s) {
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
  return plan;
}

// The algorithms that cuBLASLt would try, the likeliest first.
std::vector<cublasLtMatmulAlgo_t> algorithms(cublasLtHandle_t blas, const Plan& plan, const Shape& s, int most) {
  cublasLtMatmulPreference_t preference = nullptr;
  OASIS_BLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  OASIS_BLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                        &kBlasWorkspace, sizeof kBlasWorkspace));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  OASIS_BLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(blas, plan.operation, plan.w, plan.x, plan.y, plan.y, preference,
                                                  most, results.data(), &found));
  OASIS_CHECK(found >= 1, "cuBLASLt knows no way to multiply {} rows by [{}, {}]", s.rows, s.n, s.k);
  cublasLtMatmulPreferenceDestroy(preference);
  std::vector<cublasLtMatmulAlgo_t> out;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& r = results[static_cast<size_t>(i)];
    if (r.state == CUBLAS_STATUS_SUCCESS) out.push_back(r.algo);
  }
  OASIS_CHECK(!out.empty(), "cuBLASLt cannot multiply {} rows by [{}, {}] here", s.rows, s.n, s.k);
  return out;
}

void multiply(cuda::CudaStream& s, const Plan& plan, bool accumulate, const void* x, const void* w, float* y,
              std::byte* workspace) {
  const float one = 1, beta = accumulate ? 1.0f : 0.0f;
  OASIS_BLAS_CHECK(cublasLtMatmul(s.blas(), plan.operation, &one, w, plan.w, x, plan.x, &beta, y, plan.y, y, plan.y,
                                  &plan.algorithm, workspace, kBlasWorkspace, s.handle()));
}

// The fastest of a few algorithms, by trying: each with weights that no cache holds. Synchronises, allocates.
void tune(cuda::CudaStream& s, Plan& plan, const Shape& shape, const void* x, const void* w, std::byte* workspace) {
  constexpr int kTried = 8, kRuns = 5;
  constexpr size_t kCacheBytes = size_t{128} << 20;  // more than any L2
  std::byte *cache = nullptr, *y = nullptr;
  const auto y_bytes = static_cast<size_t>((shape.rows - 1) * shape.y_stride + shape.n) * sizeof(float);
  if (cudaMalloc(&cache, kCacheBytes) != cudaSuccess || cudaMalloc(&y, y_bytes) != cudaSuccess) {
    cudaGetLastError();  // no room to try: the likeliest it is
    cudaFree(cache);
    return;
  }
  OASIS_CUDA_CHECK(cudaMemsetAsync(y, 0, y_bytes, s.handle()));
  OASIS_CUDA_CHECK(cudaDeviceSynchronize());  // alone: what other streams run beside it would decide
  cudaEvent_t begin = nullptr, end = nullptr;
  OASIS_CUDA_CHECK(cudaEventCreate(&begin));
  OASIS_CUDA_CHECK(cudaEventCreate(&end));
  float best = 0;
  Plan tried = plan;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms(s.blas(), plan, shape, kTried)) {
    tried.algorithm = algorithm;
    float fastest = 0;
    for (int run = 0; run < kRuns; ++run) {
      OASIS_CUDA_CHECK(cudaMemsetAsync(cache, run, kCacheBytes, s.handle()));
      OASIS_CUDA_CHECK(cudaEventRecord(begin, s.handle()));
      multiply(s, tried, shape.accumulate, x, w, reinterpret_cast<float*>(y), workspace);
      OASIS_CUDA_CHECK(cudaEventRecord(end, s.handle()));
      OASIS_CUDA_CHECK(cudaEventSynchronize(end));
      float ms = 0;
      OASIS_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (run > 0 && (fastest == 0 || ms < fastest)) fastest = ms;
    }
    if (best == 0 || fastest < best) {
      best = fastest;
      plan.algorithm = algorithm;
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaFree(cache);
  cudaFree(y);
}

// Of each shape one plan. `x` and `w`: operands to try with, or null: the likeliest algorithm is taken.
const Plan& plan_for(cuda::CudaStream& s, const Shape& shape, const void* x, const void* w, std::byte* workspace) {
  thread_local std::map<std::pair<cublasLtHandle_t, Shape>, Plan> plans;
  const auto key = std::pair(s.blas(), shape);
  auto it = plans.find(key);
  if (it == plans.end()) {
    it = plans.emplace(key, describe(shape)).first;
    it->second.algorithm = algorithms(s.blas(), it->second, shape, 1)[0];
  }
  Plan& plan = it->second;
  if (x && !plan.tuned && !s.capturing()) {
    tune(s, plan, shape, x, w, workspace);
    plan.tuned = true;
  }
  return plan;
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
  std::byte* workspace = s.workspace(kBlasWorkspace);
  multiply(s, plan_for(s, shape, x, w, workspace), accumulate, x, w, y, workspace);
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
    round_rows(s, x, p.x_stride, p.rows, p.cols, rounded);
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
    multiply(s, plan_for(s, shape, nullptr, nullptr, workspace), p.accumulate, input, w, y, workspace);
  }
}

}  // namespace oasis::kernels
