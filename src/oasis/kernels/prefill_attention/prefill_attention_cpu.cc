#include <algorithm>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/prefill_attention/prefill_attention.h"
#include "oasis/kernels/prefill_attention/prefill_attention_vec.h"

namespace oasis::kernels {
namespace {

constexpr PrefillLevel kPrefillPortable{scratch_bytes, attend};
constexpr int64_t kTaskQueries = 192;  // share one packing of the keys and values

const PrefillLevel& level() {
  switch (cpu_level()) {
    case CpuLevel::kAvx512:
      return kPrefillAvx512;
    case CpuLevel::kAvx2:
      return kPrefillAvx2;
    case CpuLevel::kPortable:
      break;
  }
  return kPrefillPortable;
}

// Memory that stays with its thread, aligned to 64 bytes.
std::byte* thread_scratch(int64_t bytes) {
  static thread_local std::vector<std::byte> memory;
  if (memory.size() < static_cast<size_t>(bytes) + 64) memory.resize(bytes + 64);
  return memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
}

}  // namespace

void prefill_attention_cpu(Stream& stream, const PrefillAttentionParams& p) {
  OASIS_CHECK(p.head_dim > 0 && p.head_dim % 16 == 0, "head_dim {}: must be a multiple of 16", p.head_dim);
  const PrefillLevel& instructions = level();
  const int64_t task_rows = std::clamp<int64_t>(kTaskQueries / p.q_per_kv, 1, std::max<int64_t>(1, p.rows));
  const int64_t tasks = (p.rows + task_rows - 1) / task_rows;
  stream.pool().run(tasks * p.kv_heads, [&](int64_t item, int) {
    const int64_t head = item % p.kv_heads;
    const int64_t first = (tasks - 1 - item / p.kv_heads) * task_rows;  // the longest first, for balance
    const int64_t rows = std::min(task_rows, p.rows - first);
    instructions.attend({
        .q = p.q + first * p.q_stride + head * p.q_per_kv * p.head_dim,
        .q_stride = p.q_stride,
        .k = reinterpret_cast<const uint16_t*>(p.k + head * p.kv_head_stride),
        .v = reinterpret_cast<const uint16_t*>(p.v + head * p.kv_head_stride),
        .first_position = p.first_position + first,
        .rows = rows,
        .q_per_kv = p.q_per_kv,
        .head_dim = p.head_dim,
        .out = p.out + first * p.out_stride + head * p.q_per_kv * p.head_dim,
        .out_stride = p.out_stride,
        .scratch = thread_scratch(instructions.scratch_bytes(rows * p.q_per_kv, p.head_dim)),
    });
  });
}

}  // namespace oasis::kernels
