// The step's model pieces: what stands between the products.
#include "oasis/kernels/cuda/convert.cuh"
#include "oasis/kernels/cuda/fp8_row.cuh"
#include "oasis/kernels/cuda/launch.cuh"
#include "oasis/kernels/seal/seal_block.cuh"
#include "oasis/kernels/step/step_cuda.h"

namespace oasis::kernels {
namespace {

// A slot's page for the block of a row, through the head map of a sparse sequence.
__device__ int32_t page_of(const StepTables& t, const StepItem& item, int layer, int s, int h, int32_t block) {
  int32_t slot = block;
  if (item.sparse) slot = t.maps[(int64_t{layer} * t.sequences + s) * t.kv_heads + h].slot_of_block[block];
  return slot < 0 ? -1 : t.page_of_slot[int64_t{s} * t.slot_stride + slot];
}

// Element threadIdx.x of a token's K or V into `slot`. `scratch` [32], of shared memory.
__device__ void write_element(const StepTables& t, std::byte* slot, int token, bool is_v, float x, uint32_t* scratch) {
  const uint16_t bits = float_to_bf16_bits(x);
  const int i = threadIdx.x;
  std::byte* row = slot + token * t.pool.token_stride + is_v * t.pool.v_offset;
  if (t.pool.type == KvType::kBf16) {
    reinterpret_cast<uint16_t*>(row)[i] = bits;
    return;
  }
  uint32_t largest = __reduce_max_sync(0xffffffffu, bf16_magnitude(bits));
  __syncthreads();
  if (i % 32 == 0) scratch[i / 32] = largest;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) largest = max(largest, scratch[w]);
  const uint32_t scale = fp8_row_scale(largest);
  row[i] = static_cast<std::byte>(fp8_row_byte(bits, scale));
  if (i == 0) slot[t.pool.scale_offset + is_v * t.block_size + token] = static_cast<std::byte>(scale);
}

// Grid [rows, heads + 2 kv_heads], head_dim threads: one head of one row.
__global__ void qkv_kernel(StepTables t, int layer, QkvParams p) {
  __shared__ float scratch[32];
  extern __shared__ float values[];  // [head_dim]
  const int row = blockIdx.x, s = row / t.rows, j = row % t.rows, i = threadIdx.x;
  const StepItem& item = t.items[s];
  start_next();
  await_previous();
  if (j >= item.rows) return;
  const int d = t.head_dim, half = d / 2, heads = t.kv_heads * t.q_per_kv, column = blockIdx.y;
  const bool is_q = column < heads, is_v = column >= heads + t.kv_heads;
  float x = p.qkv[int64_t{row} * (heads + 2 * t.kv_heads) * d + int64_t{column} * d + i];
  if (!is_v) {
    if (const float* weight = is_q ? p.q_norm : p.k_norm) {
      x *= rsqrtf(block_sum(x * x, scratch) / static_cast<float>(d) + p.eps) * weight[i];
    }
    // Half-split output (x_i, x_{i + d/2}); interleaved input comes in pairs (x_2i, x_2i+1).
    values[p.interleaved ? i % 2 * half + i / 2 : i] = x;
    __syncthreads();
  }
  const auto turned = [&](const float* table) {
    const int k = i % half;
    const float cos = table[k], sin = table[half + k];
    return i < half ? values[i] * cos - values[i + half] * sin : values[i] * cos + values[i - half] * sin;
  };
  if (is_q) {
    const float y = turned(p.rope + int64_t{row} * d);
    const int64_t width = int64_t{heads} * d, at = int64_t{column} * d + i;
    p.q[row * width + at] = y;
    if (p.q_scoring && item.candidates > 0) {
      if (j > 0) p.q_scoring[(item.score_begin + j - 1) * width + at] = y;
      if (item.rows == 1) p.q_scoring[item.score_begin * width + at] = turned(p.rope_next + int64_t{s} * d);
    }
    return;
  }
  const int h = is_v ? column - heads - t.kv_heads : column - heads;
  const int32_t position = item.position + j, page = page_of(t, item, layer, s, h, position / t.block_size);
  if (page < 0) return;
  std::byte* slot = t.pool.base + layer * t.pool_layer_stride + page * t.pool.page_stride + h * t.pool.head_stride;
  write_element(t, slot, position % t.block_size, is_v, is_v ? x : turned(p.rope + int64_t{row} * d),
                reinterpret_cast<uint32_t*>(scratch));
}

// The slot of the block that x_t seals; null: this item seals none.
__device__ const std::byte* sealed_slot(const StepTables& t, const StepItem& item, int layer, int s, int h) {
  if (item.rows == 0 || item.seal_block < 0) return nullptr;
  const int32_t page = page_of(t, item, layer, s, h, item.seal_block);
  if (page < 0) return nullptr;
  return t.pool.base + layer * t.pool_layer_stride + page * t.pool.page_stride + h * t.pool.head_stride;
}

__device__ std::byte* summary_rows(const StepTables& t, const StepItem& item, int layer, int h) {
  return t.summaries.base + layer * t.summary_layer_stride + item.seal_summary * t.summaries.page_stride +
         h * t.summaries.head_stride;
}

// Grid [items, kv_heads], head_dim threads: the sealed block's summary, and K, V and summary into its home record.
__global__ void seal_kernel(StepTables t, int layer, float beta) {
  __shared__ float scratch[32];
  const int s = blockIdx.x, h = blockIdx.y;
  const StepItem& item = t.items[s];
  const std::byte* slot = sealed_slot(t, item, layer, s, h);
  if (!slot) return;
  write_summary<1>(t.pool, slot, t.block_size, t.head_dim, beta, t.summaries.type, summary_rows(t, item, layer, h),
                   scratch);
  if (!item.seal_home) return;  // writing it has failed, the sequence ends after this step
  __syncthreads();
  write_block_head(t.pool, slot, t.block_size, t.head_dim,
                   item.seal_home + layer * t.home_layer_stride + h * t.block_head_bytes);
  const auto* rows = reinterpret_cast<const uint32_t*>(summary_rows(t, item, layer, h));
  auto* meta =
      reinterpret_cast<uint32_t*>(item.seal_meta + layer * t.summaries.page_stride + h * t.summaries.head_stride);
  for (int w = threadIdx.x; w < t.summaries.head_stride / 4; w += blockDim.x) meta[w] = rows[w];
}

__global__ void norm_kernel(const float* x, const float* weight, float eps, int64_t cols, int32_t per_item,
                            int32_t rows, uint16_t* out) {
  __shared__ float scratch[32];
  const int64_t i = blockIdx.x, row = i / per_item * rows + i % per_item;
  const auto* from = reinterpret_cast<const float4*>(x + row * cols);
  const auto* w = reinterpret_cast<const float4*>(weight);
  auto* to = reinterpret_cast<ushort4*>(out + i * cols);
  start_next();
  await_previous();
  float squares = 0;
  for (int64_t c = threadIdx.x; c < cols / 4; c += blockDim.x) {
    const float4 v = from[c];
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float scale = rsqrtf(block_sum(squares, scratch) / static_cast<float>(cols) + eps);
  for (int64_t c = threadIdx.x; c < cols / 4; c += blockDim.x) {
    const float4 v = from[c], g = w[c];
    to[c] = {float_to_bf16_bits(v.x * scale * g.x), float_to_bf16_bits(v.y * scale * g.y),
             float_to_bf16_bits(v.z * scale * g.z), float_to_bf16_bits(v.w * scale * g.w)};
  }
}

__device__ float swiglu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

__global__ void swiglu_kernel(const float* gate_up, int64_t rows, int64_t inner, uint16_t* out) {
  const int64_t quads = inner / 4, i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  start_next();
  await_previous();
  if (i >= rows * quads) return;
  const int64_t r = i / quads, c = i % quads;
  const auto* from = reinterpret_cast<const float4*>(gate_up + r * 2 * inner);
  const float4 g = from[c], u = from[quads + c];
  reinterpret_cast<ushort4*>(out + r * inner)[c] = {
      float_to_bf16_bits(swiglu(g.x, u.x)), float_to_bf16_bits(swiglu(g.y, u.y)), float_to_bf16_bits(swiglu(g.z, u.z)),
      float_to_bf16_bits(swiglu(g.w, u.w))};
}

}  // namespace

void step_qkv(cuda::CudaStream& s, const StepTables& t, int layer, const QkvParams& p) {
  const dim3 grid(static_cast<unsigned>(t.batch * t.rows), static_cast<unsigned>(t.kv_heads * (t.q_per_kv + 2)));
  OASIS_CHECK(t.head_dim % 32 == 0, "head_dim {}: a captured step takes multiples of 32", t.head_dim);
  launch_early(qkv_kernel, grid, static_cast<unsigned>(t.head_dim), static_cast<size_t>(t.head_dim) * sizeof(float),
               s.handle(), t, layer, p);
}

void step_seal(cuda::CudaStream& s, const StepTables& t, int layer, float beta) {
  const dim3 grid(static_cast<unsigned>(t.batch), static_cast<unsigned>(t.kv_heads));
  seal_kernel<<<grid, t.head_dim, 0, s.handle()>>>(t, layer, beta);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void norm_to_bf16(cuda::CudaStream& s, const float* x, const float* weight, float eps, int64_t cols, int64_t count,
                  int32_t per_item, int32_t rows, uint16_t* out) {
  launch_early(norm_kernel, dim3(static_cast<unsigned>(count)), cols >= 2048 ? 512 : 128, 0, s.handle(), x, weight, eps,
               cols, per_item, rows, out);
}

void swiglu_to_bf16(cuda::CudaStream& s, const float* gate_up, int64_t rows, int64_t inner, uint16_t* out) {
  launch_early(swiglu_kernel, dim3(static_cast<unsigned>((rows * inner / 4 + 255) / 256)), 256, 0, s.handle(), gate_up,
               rows, inner, out);
}

}  // namespace oasis::kernels
