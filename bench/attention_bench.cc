// Attention kernels of one step: GB/s of keys and values read (decode), GFLOP/s (prefill). Decode walks through the
// layers of a pool larger than the last-level cache, as a step does.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/attention/attention.h"
#include "oasis/kernels/prefill_attention/prefill_attention.h"

namespace oasis::kernels {
namespace {

constexpr int kThreads = 2;

std::vector<float> random_floats(size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

void fill_random(bf16* x, size_t n) {
  std::mt19937 random(2);
  for (size_t i = 0; i < n; ++i) x[i] = to_bf16(static_cast<float>(random() % 2048) / 1024.0f - 1.0f);
}

// rows, layers, kv_heads, q_per_kv, head_dim, listed blocks, blocks of the context
void decode(benchmark::State& state) {
  const int64_t rows = state.range(0), layers = state.range(1), kv_heads = state.range(2), q_per_kv = state.range(3);
  const int64_t head_dim = state.range(4), listed = state.range(5), blocks = state.range(6);
  auto device = make_cpu_device(kThreads);
  AttentionParams p;
  p.head_dim = head_dim;
  p.kv_heads = kv_heads;
  p.q_per_kv = q_per_kv;
  p.pool.token_stride = 2 * head_dim;
  p.pool.v_offset = p.block_size * 2 * head_dim;
  p.pool.head_stride = 2 * p.pool.v_offset;
  p.pool.page_stride = kv_heads * p.pool.head_stride;
  const int64_t layer_bytes = listed * p.pool.page_stride;
  auto memory = device->allocate(layers * layer_bytes);
  if (!memory.ok()) return state.SkipWithError("no memory");
  fill_random(memory->as<bf16>(), layers * layer_bytes / 2);

  // Pages in a random order of their own for each head, as slots come to lie after a while.
  std::mt19937 random(3);
  std::vector<ListEntry> entries(kv_heads * listed);
  for (int64_t h = 0; h < kv_heads; ++h) {
    std::vector<int32_t> pages(listed);
    for (int64_t i = 0; i < listed; ++i) pages[i] = static_cast<int32_t>(i);
    std::shuffle(pages.begin(), pages.end(), random);
    for (int64_t i = 0; i < listed; ++i)
      entries[h * listed + i] = {static_cast<int32_t>(blocks - 1 - (listed - 1 - i) * blocks / listed), pages[i]};
  }
  const std::vector<int32_t> entry_count(kv_heads, static_cast<int32_t>(listed));
  std::vector<int32_t> positions(rows);
  for (int64_t r = 0; r < rows; ++r) positions[r] = static_cast<int32_t>(blocks * p.block_size - 4 - rows + r);
  const int32_t row_begin[] = {0, static_cast<int32_t>(rows)};
  p.q_stride = p.out_stride = kv_heads * q_per_kv * head_dim;
  const std::vector<float> q = random_floats(rows * p.q_stride);
  std::vector<float> out(q.size());
  p.groups = 1;
  p.row_begin = row_begin;
  p.positions = positions.data();
  p.entries = entries.data();
  p.entry_count = entry_count.data();
  p.list_stride = listed;
  p.q = q.data();
  p.out = out.data();

  for (auto _ : state) {
    for (int64_t layer = 0; layer < layers; ++layer) {
      p.pool.base = memory->data() + layer * layer_bytes;
      attention_cpu(device->foreground(), p);
    }
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * layers * layer_bytes);
}
BENCHMARK(decode)
    ->ArgNames({"rows", "layers", "kv_heads", "q_per_kv", "d", "listed", "blocks"})
    ->Args({1, 30, 3, 3, 64, 130, 470})
    ->Args({2, 30, 3, 3, 64, 130, 130})
    ->Args({2, 30, 3, 3, 64, 130, 470})
    ->Args({2, 30, 3, 3, 64, 130, 8000})
    ->Args({9, 30, 3, 3, 64, 130, 470})
    ->Args({2, 16, 8, 4, 128, 130, 470})
    ->Args({2, 30, 3, 3, 64, 469, 469})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// rows, first position, kv_heads, q_per_kv, head_dim
void prefill(benchmark::State& state) {
  const int64_t rows = state.range(0), first = state.range(1), kv_heads = state.range(2), q_per_kv = state.range(3);
  const int64_t head_dim = state.range(4), tokens = first + rows;
  auto device = make_cpu_device(kThreads);
  std::vector<bf16> k(kv_heads * tokens * head_dim), v(k.size());
  fill_random(k.data(), k.size());
  fill_random(v.data(), v.size());
  PrefillAttentionParams p;
  p.q_stride = p.out_stride = kv_heads * q_per_kv * head_dim;
  const std::vector<float> q = random_floats(rows * p.q_stride);
  std::vector<float> out(q.size());
  p.q = q.data();
  p.k = k.data();
  p.v = v.data();
  p.kv_head_stride = tokens * head_dim;
  p.first_position = first;
  p.rows = rows;
  p.kv_heads = kv_heads;
  p.q_per_kv = q_per_kv;
  p.head_dim = head_dim;
  p.out = out.data();
  for (auto _ : state) {
    prefill_attention_cpu(device->foreground(), p);
    benchmark::DoNotOptimize(out.data());
  }
  const double pairs = static_cast<double>(rows) * (static_cast<double>(first) + static_cast<double>(rows + 1) / 2);
  state.counters["GFLOP/s"] =
      benchmark::Counter(4e-9 * pairs * static_cast<double>(kv_heads * q_per_kv * head_dim * state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(prefill)
    ->ArgNames({"rows", "first", "kv_heads", "q_per_kv", "d"})
    ->Args({256, 0, 3, 3, 64})
    ->Args({256, 3840, 3, 3, 64})
    ->Args({512, 7168, 3, 3, 64})
    ->Args({256, 3840, 8, 4, 128})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace oasis::kernels

BENCHMARK_MAIN();
