// Tables, flags and the transfer: how a step passes from graph to graph (design section 4, "A mechanism that fits
// CUDA").
#include "oasis/kernels/cuda/launch.cuh"
#include "oasis/kernels/step/step_cuda.h"

namespace oasis::kernels {
namespace {

constexpr int kMaxHeads = 256;                 // KV heads of one GPU
constexpr int64_t kTimeoutNs = 4'000'000'000;  // nobody waits longer for a transfer

__device__ int64_t load_acquire(const int64_t* p) {
  int64_t v;
  asm volatile("ld.acquire.gpu.global.s64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ void store_release(int64_t* p, int64_t v) {
  asm volatile("st.release.gpu.global.s64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ int64_t now_ns() {
  int64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// One thread: until *p reaches `value`. Nanoseconds waited, or -1 after too long.
__device__ int64_t poll(const int64_t* p, int64_t value) {
  if (load_acquire(p) >= value) return 0;
  const int64_t begin = now_ns();
  while (load_acquire(p) < value) {
    if (now_ns() - begin > kTimeoutNs) return -1;
    __nanosleep(100);
  }
  return now_ns() - begin;
}

__global__ void prologue_kernel(StepTables t, StepFlags* flags) {
  const int s = blockIdx.x;
  if (flags && s == 0 && threadIdx.x == 0) ++flags->step;
  const StepItem item = t.items[s];
  int32_t* pages = t.page_of_slot + int64_t{s} * t.slot_stride;
  if (threadIdx.x == 0 && item.rows > 0) {
    if (item.seal_block >= 0) {
      t.summary_pages[int64_t{s} * t.max_blocks + item.seal_block] = item.seal_summary;
      t.homes[int64_t{s} * t.max_blocks + item.seal_block] = item.seal_home;
    }
    if (item.dense_block >= 0) pages[item.dense_block] = item.dense_page;
  }
  for (int i = threadIdx.x; i < t.layers; i += blockDim.x) {
    SelectItem& out = t.select_items[int64_t{i} * t.sequences + s];
    out.maps = item.rows > 0 && item.sparse ? t.maps + (int64_t{i} * t.sequences + s) * t.kv_heads : nullptr;
    out.page_of_slot = pages;
    out.slots = t.slots;
    out.step = item.step;
    out.resident_limit = t.resident;
    out.attend_limit = t.attended;
    out.candidates = item.candidates;
    out.sealed_begin = item.sealed_begin;
    out.open_end = item.open_end;
    out.cap = item.cap;
    out.margin_threshold = item.margin_threshold;
    out.present = nullptr;
    out.wait_for_absent = false;
  }
  if (item.rows == 0 || item.sparse || item.dense_block < 0) return;
  for (int i = threadIdx.x; i < t.layers * t.kv_heads; i += blockDim.x) {
    const int64_t at = (int64_t{i / t.kv_heads} * t.sequences + s) * t.kv_heads + i % t.kv_heads;
    t.lists[at * t.list_stride + item.dense_block] = {item.dense_block, item.dense_page};
    t.list_count[at] = item.dense_block + 1;
  }
}

__global__ void clamp_kernel(StepTables t, int32_t* counts) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < t.batch * t.kv_heads && t.items[i / t.kv_heads].sparse) counts[i] = min(counts[i], t.attended);
}

// One warp a (sequence, head).
__global__ void agreement_kernel(StepTables t, int layer, AgreementParams p, StepFlags* flags) {
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (at >= t.batch * t.kv_heads || p.candidates[at / t.kv_heads] == 0) return;
  const int64_t list_at = (int64_t{layer} * t.sequences) * t.kv_heads + at;
  const ListEntry* list = t.lists + list_at * t.list_stride;
  const int32_t *predicted = p.predicted + at * p.predicted_stride, *top = p.top + at * p.top_stride;
  const int n = min(t.attended, p.predicted_count[at]), listed = t.list_count[list_at];
  int common = 0, covered = 0;
  for (int j = 0; j < p.top_count[at]; ++j) {
    bool in_p = false, in_list = false;
    for (int i = lane; i < n; i += 32) in_p |= predicted[i] == top[j];
    for (int i = lane; i < listed; i += 32) in_list |= list[i].block == top[j];
    common += __any_sync(0xffffffffu, in_p);
    covered += __any_sync(0xffffffffu, in_list);
  }
  if (lane != 0) return;
  atomicAdd(&flags->agreement[layer], n > 0 ? static_cast<double>(common) / n : 1.0);
  atomicAdd(&flags->cover[layer], n > 0 ? static_cast<double>(covered) / n : 1.0);
  atomicAdd(reinterpret_cast<unsigned long long*>(&flags->measured[layer]), 1ull);
}

// One warp a (sequence, head): residents from a turning start on, then blocks that own no slot.
__global__ void force_misses_kernel(StepTables t, int layer, int misses, int32_t* predicted, int32_t stride,
                                    const int32_t* counts) {
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (at >= t.batch * t.kv_heads) return;
  const int s = at / t.kv_heads;
  const StepItem& item = t.items[s];
  if (!item.sparse || item.rows == 0) return;
  const HeadMap map = t.maps[(int64_t{layer} * t.sequences + s) * t.kv_heads + at % t.kv_heads];
  const int count = counts[at], wanted = max(0, count - misses);
  int32_t* p = predicted + int64_t{at} * stride;
  const uint32_t turn = (static_cast<uint32_t>(item.step) * 2654435761u + at * 40503u + layer * 9176u) >> 8;
  int taken = 0;
  for (int base = 0; base < t.slots && taken < wanted; base += 32) {
    const int slot = base + lane < t.slots ? static_cast<int>((base + lane + turn) % t.slots) : -1;
    const int32_t block = slot >= 0 ? map.block_of_slot[slot] : -1;
    const bool is = block >= 0 && block < item.candidates && map.last_predicted[slot] != HeadMap::kOpen;
    const uint32_t ballot = __ballot_sync(0xffffffffu, is);
    const int rank = taken + __popc(ballot & ((1u << lane) - 1));
    if (is && rank < wanted) p[rank] = block;
    taken = min(wanted, taken + __popc(ballot));
  }
  for (int base = 0; base < item.candidates && taken < count; base += 32) {
    const int32_t block = static_cast<int32_t>((base + lane + turn) % item.candidates);
    const bool is = base + lane < item.candidates && map.slot_of_block[block] < 0;
    const uint32_t ballot = __ballot_sync(0xffffffffu, is);
    const int rank = taken + __popc(ballot & ((1u << lane) - 1));
    if (is && rank < count) p[rank] = block;
    taken = min(count, taken + __popc(ballot));
  }
}

__global__ void wait_kernel(int layer, StepFlags* flags) {
  start_next();
  await_previous();
  if (threadIdx.x != 0 || flags->timed_out != 0) return;  // one time-out is enough
  const int64_t waited = poll(&flags->done[layer], flags->step - 1);
  if (waited < 0) {
    atomicCAS(&flags->timed_out, 0, layer + 1);
  } else if (waited > 0) {
    flags->waited_ns += waited;
  }
}

// One block of threads a sequence; the last to arrive tells the transfer.
__global__ void __launch_bounds__(256) publish_kernel(StepTables t, int layer, Copy* copies, StepFlags* flags) {
  __shared__ int32_t base, total, offset[kMaxHeads];
  const int s = blockIdx.x;
  const bool active = t.items[s].rows > 0 && t.items[s].sparse;
  const int64_t first = (int64_t{layer} * t.sequences + s) * t.kv_heads;
  if (active) {
    if (threadIdx.x < 32) {  // offsets of the heads' copies, 32 heads at a time
      int32_t sum = 0;
      for (int h0 = 0; h0 < t.kv_heads; h0 += 32) {
        const int h = h0 + threadIdx.x;
        const int32_t own = h < t.kv_heads ? t.fetch_count[first + h] : 0;
        int32_t upto = own;
        for (int step = 1; step < 32; step *= 2) {
          const int32_t lower = __shfl_up_sync(0xffffffffu, upto, step);
          if (threadIdx.x >= step) upto += lower;
        }
        if (h < t.kv_heads) offset[h] = sum + upto - own;
        sum += __shfl_sync(0xffffffffu, upto, 31);
      }
      if (threadIdx.x == 0) {
        total = sum;
        base = sum > 0 ? atomicAdd(&flags->plan_fill[layer], sum) : 0;
      }
    }
    __syncthreads();
    if (total > 0) {
      const int32_t* pages = t.page_of_slot + int64_t{s} * t.slot_stride;
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
      for (int h = warp; h < t.kv_heads; h += warps) {
        const int32_t count = t.fetch_count[first + h], before = base + offset[h];
        for (int j = lane; j < count; j += 32) {
          const Fetch fetch = t.fetches[(first + h) * t.fetch_stride + j];
          const std::byte* home = t.homes[int64_t{s} * t.max_blocks + fetch.block];
          copies[before + j] = {home + layer * t.home_layer_stride + h * t.block_head_bytes,
                                t.pool.base + layer * t.pool_layer_stride + pages[fetch.slot] * t.pool.page_stride +
                                    h * t.pool.head_stride};
        }
      }
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&flags->plan_ticket[layer], 1u) + 1 < gridDim.x) return;
  __threadfence();
  flags->plan_ticket[layer] = 0;
  flags->plan_count[layer] = atomicExch(&flags->plan_fill[layer], 0);
  store_release(&flags->planned[layer], flags->step);
}

// One warp a block-head at a time, four vectors a lane in flight.
__device__ void copy_run(const Copy& copy, int vectors, int lane) {
  const auto* from = reinterpret_cast<const uint4*>(copy.from);
  auto* to = reinterpret_cast<uint4*>(copy.to);
  for (int i = lane; i < vectors; i += 128) {
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * 32 < vectors) x[j] = __ldcv(from + i + j * 32);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * 32 < vectors) to[i + j * 32] = x[j];
    }
  }
}

__global__ void __launch_bounds__(1024)
    transfer_kernel(int64_t step, int layers, const Copy* copies, int64_t copy_stride, int vectors, StepFlags* flags,
                    StepStamps stamps) {
  __shared__ bool gave_up;
  __shared__ int64_t begin;
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  for (int layer = 0; layer < layers; ++layer) {
    if (threadIdx.x == 0) {
      gave_up = poll(&flags->planned[layer], step) < 0;
      begin = now_ns();
    }
    __syncthreads();
    if (gave_up) return;
    int64_t* const stamp =
        stamps.transfer ? stamps.transfer + (step % StepStamps::kSteps * layers + layer) * 2 : nullptr;
    if (stamp && blockIdx.x == 0 && threadIdx.x == 0) stamp[0] = begin;
    const int count = *const_cast<volatile int32_t*>(&flags->plan_count[layer]);
    for (int i = warp; i < count; i += warps) {
      const Copy& at = copies[layer * copy_stride + i];
      // Written by another grid that runs beside this one: not from a cache that is not coherent.
      const Copy copy{reinterpret_cast<const std::byte*>(__ldcg(reinterpret_cast<const unsigned long long*>(&at.from))),
                      reinterpret_cast<std::byte*>(__ldcg(reinterpret_cast<const unsigned long long*>(&at.to)))};
      copy_run(copy, vectors, threadIdx.x % 32);
    }
    __syncthreads();
    if (threadIdx.x != 0) continue;
    __threadfence();
    if (atomicAdd(&flags->done_ticket[layer], 1u) + 1 < gridDim.x) continue;
    flags->done_ticket[layer] = 0;
    const int64_t end = now_ns();
    if (count > 0) flags->transfer_ns += end - begin, flags->copied += count;
    if (stamp) stamp[1] = end;
    __threadfence();
    store_release(&flags->done[layer], step);
  }
}

__global__ void stamp_kernel(StepStamps stamps, int64_t mark, const StepFlags* flags) {
  stamps.step[flags->step % StepStamps::kSteps * stamps.marks + mark] = now_ns();
}

__global__ void epilogue_kernel(const int32_t* stats, int64_t heads, int32_t layers, int32_t sequences,
                                int32_t kv_heads, const StepItem* items, int32_t batch, StepFlags* flags) {
  __shared__ unsigned long long sums[4];
  if (threadIdx.x < 4) sums[threadIdx.x] = 0;
  __syncthreads();
  unsigned long long mine[4] = {};
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < heads; i += int64_t{gridDim.x} * blockDim.x) {
    const auto s = static_cast<int32_t>(i / kv_heads % sequences);
    if (s >= batch || items[s].rows == 0 || !items[s].sparse) continue;
    for (int j = 0; j < 4; ++j) mine[j] += static_cast<unsigned long long>(stats[i * 4 + j]);
  }
  for (int j = 0; j < 4; ++j) atomicAdd(&sums[j], mine[j]);
  __syncthreads();
  if (threadIdx.x < 4) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&flags->totals[threadIdx.x]), sums[threadIdx.x]);
  }
}

}  // namespace

void step_prologue(cuda::CudaStream& s, const StepTables& t, StepFlags* flags) {
  OASIS_CHECK(t.layers <= StepFlags::kMaxLayers, "{} layers, the limit is {}", t.layers, StepFlags::kMaxLayers);
  prologue_kernel<<<t.batch, 128, 0, s.handle()>>>(t, flags);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_clamp(cuda::CudaStream& s, const StepTables& t, int32_t* counts) {
  clamp_kernel<<<(t.batch * t.kv_heads + 127) / 128, 128, 0, s.handle()>>>(t, counts);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_agreement(cuda::CudaStream& s, const StepTables& t, int layer, const AgreementParams& p, StepFlags* flags) {
  agreement_kernel<<<(t.batch * t.kv_heads + 3) / 4, 128, 0, s.handle()>>>(t, layer, p, flags);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_force_misses(cuda::CudaStream& s, const StepTables& t, int layer, int misses, int32_t* predicted,
                       int32_t stride, const int32_t* counts) {
  force_misses_kernel<<<(t.batch * t.kv_heads + 3) / 4, 128, 0, s.handle()>>>(t, layer, misses, predicted, stride,
                                                                              counts);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_wait(cuda::CudaStream& s, int layer, StepFlags* flags) {
  launch_early(wait_kernel, dim3(1), 32, 0, s.handle(), layer, flags);
}

void step_publish(cuda::CudaStream& s, const StepTables& t, int layer, Copy* copies, StepFlags* flags) {
  OASIS_CHECK(t.kv_heads <= kMaxHeads, "{} KV heads, the limit is {}", t.kv_heads, kMaxHeads);
  publish_kernel<<<t.batch, 256, 0, s.handle()>>>(t, layer, copies, flags);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_transfer(cuda::CudaStream& s, int64_t step, int layers, const Copy* copies, int64_t copy_stride,
                   int64_t bytes, int ctas, StepFlags* flags, const StepStamps& stamps) {
  transfer_kernel<<<ctas, 1024, 0, s.handle()>>>(step, layers, copies, copy_stride, static_cast<int>(bytes / 16), flags,
                                                 stamps);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_stamp(cuda::CudaStream& s, const StepStamps& stamps, int64_t mark, const StepFlags* flags) {
  OASIS_CHECK(mark < stamps.marks, "mark {} of {}", mark, stamps.marks);
  stamp_kernel<<<1, 1, 0, s.handle()>>>(stamps, mark, flags);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

void step_epilogue(cuda::CudaStream& s, const StepTables& t, StepFlags* flags) {
  const int64_t heads = int64_t{t.layers} * t.sequences * t.kv_heads;
  epilogue_kernel<<<64, 256, 0, s.handle()>>>(t.select_stats, heads, t.layers, t.sequences, t.kv_heads, t.items,
                                              t.batch, flags);
  OASIS_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oasis::kernels
