// The GPU kernels of a decode step beside the memory's speed: microseconds a call, GB/s from counted bytes, and the
// share of the HBM read bandwidth, which is measured first. Calls are replayed from a CUDA graph and walk through
// several sets of inputs, so that the L2 cache does not hold them. cuda_kernels_bench [--quick]
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "oasis/device/cuda/cuda_device.h"
#include "oasis/kernels/kernels.h"

namespace oasis::kernels {
namespace {

using namespace oasis::cuda;

constexpr int64_t kHeads = 8, kGroup = 4, kHeadDim = 128, kBlockSize = 16;
constexpr size_t kCache = 60 << 20;

__global__ void read_all(const uint4* from, size_t n, uint32_t* out) {
  uint32_t x = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (x == 0x12345678u) *out = x;
}

__device__ uint32_t hash(uint64_t i) {
  uint64_t x = i * 0x9e3779b97f4a7c15ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return static_cast<uint32_t>(x >> 32);
}

// Uniform between -1 and 1.
__global__ void fill_bf16(__nv_bfloat16* to, size_t n) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    to[i] = __float2bfloat16(static_cast<float>(hash(i)) * 0x1p-31f - 1);
}
// Summaries of FP8 rows: scales of 1, then bytes of finite values.
__global__ void fill_fp8(std::byte* to, size_t n, size_t row) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (i % row >= 8) to[i] = static_cast<std::byte>(hash(i) & 0xbf);
    if (i % row == 0) reinterpret_cast<float*>(to + i)[0] = reinterpret_cast<float*>(to + i)[1] = 1;
  }
}

class Bench {
 public:
  explicit Bench(bool quick) : device_(std::move(make_cuda_device(0)).value()), quick_(quick) {}

  CudaStream& stream() { return as_cuda(device_->foreground()); }
  Buffer allocate(size_t bytes) {
    auto buffer = device_->allocate(bytes);
    OASIS_CHECK(buffer.ok(), "{}", buffer.status().message());
    return std::move(buffer).value();
  }
  template <typename T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = allocate(values.size() * sizeof(T));
    stream().copy(buffer.data(), values.data(), values.size() * sizeof(T));
    return buffer;
  }

  // Microseconds of one call: the median over replays of a graph that calls each of `sets` sets.
  double time(int sets, const std::function<void(int)>& call) {
    CudaStream& s = stream();
    for (int i = 0; i < sets; ++i) call(i);
    const int rounds = std::max(1, (quick_ ? 16 : 64) / sets);
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    OASIS_CUDA_CHECK(cudaStreamBeginCapture(s.handle(), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < rounds * sets; ++i) call(i % sets);
    OASIS_CUDA_CHECK(cudaStreamEndCapture(s.handle(), &graph));
    OASIS_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
    cudaEvent_t begin, end;
    OASIS_CUDA_CHECK(cudaEventCreate(&begin));
    OASIS_CUDA_CHECK(cudaEventCreate(&end));
    std::vector<float> milliseconds;
    for (int i = 0; i < (quick_ ? 4 : 12); ++i) {
      OASIS_CUDA_CHECK(cudaEventRecord(begin, s.handle()));
      OASIS_CUDA_CHECK(cudaGraphLaunch(replay, s.handle()));
      OASIS_CUDA_CHECK(cudaEventRecord(end, s.handle()));
      s.synchronize();
      float ms = 0;
      OASIS_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (i > 0) milliseconds.push_back(ms);  // the first warms up
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
    std::nth_element(milliseconds.begin(), milliseconds.begin() + milliseconds.size() / 2, milliseconds.end());
    return milliseconds[milliseconds.size() / 2] * 1000.0 / (rounds * sets);
  }

  void measure_memory() {
    const size_t bytes = size_t{4} << 30;
    const Buffer from = allocate(bytes), out = allocate(64);
    fill_bf16<<<1024, 256, 0, stream().handle()>>>(from.as<__nv_bfloat16>(), bytes / 2);
    const double us = time(1, [&](int) {
      read_all<<<stream().sms() * 8, 256, 0, stream().handle()>>>(from.as<uint4>(), bytes / 16, out.as<uint32_t>());
    });
    bandwidth_ = static_cast<double>(bytes) / us / 1e3;
    std::printf("HBM read: %.0f GB/s, %d multiprocessors\n", bandwidth_, stream().sms());
  }

  void print(const std::string& shape, double us, double bytes) {
    const double rate = bytes / us / 1e3;
    std::printf("%-58s %9.2f us %8.0f GB/s %5.1f%%\n", shape.c_str(), us, rate, 100 * rate / bandwidth_);
    std::fflush(stdout);
  }

  void attention(int64_t batch);
  void score(int64_t items, int64_t blocks, KvType type);
  void topk_and_select(int64_t blocks);

 private:
  std::unique_ptr<Device> device_;
  const Kernels& kernels_ = kernels_for(Backend::kCuda);
  const bool quick_;
  double bandwidth_ = 1;
};

// Sets of inputs that together are several times the cache.
int sets_for(size_t bytes) { return static_cast<int>(std::clamp<size_t>(8 * kCache / bytes, 2, 16)); }

std::vector<float> normals(size_t n) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

void Bench::attention(int64_t batch) {
  constexpr int64_t kListed = 131, kRows = 2, kContext = 1024;  // 128 selected blocks and 3 open ones
  AttentionParams p;
  p.block_size = kBlockSize;
  p.head_dim = kHeadDim;
  p.kv_heads = kHeads;
  p.q_per_kv = kGroup;
  p.pool = {.token_stride = 2 * kHeadDim, .v_offset = kBlockSize * 2 * kHeadDim};
  p.pool.head_stride = 2 * p.pool.v_offset;
  p.pool.page_stride = kHeads * p.pool.head_stride;
  const int64_t pages = batch * kListed;
  const size_t bytes = pages * p.pool.page_stride;
  const int sets = sets_for(bytes);
  const Buffer pool = allocate(bytes * sets);
  fill_bf16<<<1024, 256, 0, stream().handle()>>>(pool.as<__nv_bfloat16>(), bytes * sets / 2);
  // Every head has its own order of slots, as after a while of eviction.
  std::mt19937 random(3);
  std::vector<ListEntry> entries;
  std::vector<int32_t> slots(kListed), row_begin{0}, positions;
  for (int64_t g = 0; g < batch; ++g) {
    for (int64_t h = 0; h < kHeads; ++h) {
      std::iota(slots.begin(), slots.end(), static_cast<int32_t>(g * kListed));
      std::shuffle(slots.begin(), slots.end(), random);
      for (int64_t i = 0; i < kListed; ++i) {
        const int64_t block = i < kListed - 3 ? i * (kContext - 4) / kListed : kContext - kListed + i;
        entries.push_back({static_cast<int32_t>(block), slots[i]});
      }
    }
    row_begin.push_back(static_cast<int32_t>((g + 1) * kRows));
    for (int64_t r = 0; r < kRows; ++r) positions.push_back(static_cast<int32_t>((kContext - 2) * kBlockSize + r));
  }
  const Buffer lists = upload(entries), begins = upload(row_begin), places = upload(positions);
  const Buffer counts = upload(std::vector<int32_t>(batch * kHeads, kListed));
  p.q_stride = p.out_stride = kHeads * kGroup * kHeadDim;
  const Buffer q = upload(normals(batch * kRows * p.q_stride)), out = allocate(batch * kRows * p.out_stride * 4);
  p.groups = batch;
  p.max_group_rows = kRows;
  p.row_begin = begins.as<int32_t>();
  p.positions = places.as<int32_t>();
  p.entries = lists.as<ListEntry>();
  p.entry_count = counts.as<int32_t>();
  p.list_stride = kListed;
  p.q = q.as<float>();
  p.out = out.as<float>();
  const double us = time(sets, [&](int set) {
    p.pool.base = pool.data() + set * bytes;
    kernels_.attention(stream(), p);
  });
  print(fmt::format("attention {} sequences x {} blocks x {} heads, {} rows", batch, kListed, kHeads, kRows), us,
        static_cast<double>(bytes));
}

void Bench::score(int64_t items, int64_t blocks, KvType type) {
  const bool fp8 = type == KvType::kFp8E4M3;
  ScoreParams p;
  p.summaries.type = type;
  p.summaries.head_stride = fp8 ? 8 + 2 * kHeadDim : 4 * kHeadDim;
  p.summaries.page_stride = kHeads * p.summaries.head_stride;
  const size_t bytes = items * blocks * p.summaries.page_stride;
  const int sets = sets_for(bytes);
  const Buffer summaries = allocate(bytes * sets);
  if (fp8) {
    fill_fp8<<<1024, 256, 0, stream().handle()>>>(summaries.data(), bytes * sets, p.summaries.head_stride);
  } else {
    fill_bf16<<<1024, 256, 0, stream().handle()>>>(summaries.as<__nv_bfloat16>(), bytes * sets / 2);
  }
  std::vector<int32_t> pages(items * blocks), row_begin(items + 1);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(4));
  std::iota(row_begin.begin(), row_begin.end(), 0);
  const Buffer page_memory = upload(pages), begins = upload(row_begin);
  std::vector<const int32_t*> tables;
  for (int64_t i = 0; i < items; ++i) tables.push_back(page_memory.as<int32_t>() + i * blocks);
  const Buffer table_memory = upload(tables);
  const Buffer candidates = upload(std::vector<int32_t>(items, static_cast<int32_t>(blocks)));
  p.head_dim = kHeadDim;
  p.kv_heads = kHeads;
  p.q_per_kv = kGroup;
  p.items = items;
  p.q_stride = kHeads * kGroup * kHeadDim;
  const Buffer q = upload(normals(items * p.q_stride)), scores = allocate(items * kHeads * blocks * 4);
  p.row_begin = begins.as<int32_t>();
  p.candidates = candidates.as<int32_t>();
  p.summary_pages = table_memory.as<const int32_t*>();
  p.q = q.as<float>();
  p.scores = scores.as<float>();
  p.score_stride = blocks;
  const double us = time(sets, [&](int set) {
    p.summaries.base = summaries.data() + set * bytes;
    kernels_.score(stream(), p);
  });
  print(fmt::format("score {} sequences x {} blocks x {} heads, {}", items, blocks, kHeads, fp8 ? "FP8" : "bf16"), us,
        static_cast<double>(bytes));
}

// Both at 125 sequences, K = 128, R = 192. From one set of scores to the next about a fifth of the blocks change
// places.
void Bench::topk_and_select(int64_t blocks) {
  constexpr int64_t kItems = 125, kSelected = 128, kResident = 192, kSlots = kResident + 3, kSets = 8;
  constexpr int64_t kRowsOfHeads = kItems * kHeads;
  std::vector<float> scores;
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const std::vector<float> lasting = normals(kRowsOfHeads * blocks);
  for (int64_t set = 0; set < kSets; ++set)
    for (const float x : lasting) scores.push_back(40 + 15 * (x + 0.3f * normal(random)));
  const Buffer score_memory = upload(scores);
  const Buffer candidates = upload(std::vector<int32_t>(kItems, static_cast<int32_t>(blocks)));
  const Buffer predicted = allocate(kSets * kRowsOfHeads * kSelected * 4);
  const Buffer predicted_scores = allocate(kSets * kRowsOfHeads * kSelected * 4);
  const Buffer predicted_count = allocate(kRowsOfHeads * 4);
  const auto top = [&](int set) {
    kernels_.topk(stream(), {.scores = score_memory.as<float>() + set * kRowsOfHeads * blocks,
                             .score_stride = blocks,
                             .candidates = candidates.as<int32_t>(),
                             .items = kItems,
                             .heads = kHeads,
                             .k = kSelected,
                             .pin_first = true,
                             .blocks = predicted.as<int32_t>() + set * kRowsOfHeads * kSelected,
                             .block_scores = predicted_scores.as<float>() + set * kRowsOfHeads * kSelected,
                             .block_stride = kSelected,
                             .count = predicted_count.as<int32_t>()});
  };
  const double top_us = time(kSets, top);
  print(fmt::format("topk {} x {} of {} blocks, k = {}", kItems, kHeads, blocks, kSelected), top_us,
        4.0 * kRowsOfHeads * blocks);

  // Residents 0 .. R-1 to begin with, three open blocks.
  const int64_t max_blocks = blocks + 8;
  std::vector<int32_t> slot_of_block(kRowsOfHeads * max_blocks, -1), block_of_slot(kRowsOfHeads * kSlots);
  std::vector<int32_t> last_predicted(kRowsOfHeads * kSlots, -1), page_of_slot(kItems * kSlots);
  std::iota(page_of_slot.begin(), page_of_slot.end(), 0);
  for (int64_t at = 0; at < kRowsOfHeads; ++at) {
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const int64_t block = slot < kResident ? slot : blocks + slot - kResident;
      slot_of_block[at * max_blocks + block] = static_cast<int32_t>(slot);
      block_of_slot[at * kSlots + slot] = static_cast<int32_t>(block);
      if (slot >= kResident) last_predicted[at * kSlots + slot] = HeadMap::kOpen;
    }
  }
  const Buffer inverse = upload(slot_of_block), held = upload(block_of_slot), last = upload(last_predicted);
  const Buffer pages = upload(page_of_slot);
  std::vector<HeadMap> maps;
  for (int64_t at = 0; at < kRowsOfHeads; ++at) {
    maps.push_back(
        {inverse.as<int32_t>() + at * max_blocks, held.as<int32_t>() + at * kSlots, last.as<int32_t>() + at * kSlots});
  }
  const Buffer map_memory = upload(maps);
  std::vector<Buffer> items;  // a set each: the step goes on
  for (int32_t set = 0; set < kSets; ++set) {
    std::vector<SelectItem> of_set;
    for (int64_t i = 0; i < kItems; ++i) {
      of_set.push_back({.maps = map_memory.as<HeadMap>() + i * kHeads,
                        .page_of_slot = pages.as<int32_t>() + i * kSlots,
                        .slots = kSlots,
                        .step = set,
                        .resident_limit = kResident,
                        .attend_limit = kSelected,
                        .candidates = static_cast<int32_t>(blocks),
                        .sealed_begin = static_cast<int32_t>(blocks),
                        .open_end = static_cast<int32_t>(blocks + 3),
                        .cap = 7,
                        .margin_threshold = -std::numeric_limits<float>::infinity()});
    }
    items.push_back(upload(of_set));
  }
  const Buffer fetches = allocate(kRowsOfHeads * kSelected * sizeof(Fetch)), fetch_count = allocate(kRowsOfHeads * 4);
  const Buffer list = allocate(kRowsOfHeads * (kSelected + 3) * sizeof(ListEntry));
  const Buffer list_count = allocate(kRowsOfHeads * 4), stats = allocate(kRowsOfHeads * 16);
  const auto select = [&](int set) {
    kernels_.select(stream(), {.items = kItems,
                               .kv_heads = kHeads,
                               .item = items[set].as<SelectItem>(),
                               .max_slots = kSlots,
                               .max_blocks = static_cast<int32_t>(max_blocks),
                               .predicted = predicted.as<int32_t>() + set * kRowsOfHeads * kSelected,
                               .predicted_scores = predicted_scores.as<float>() + set * kRowsOfHeads * kSelected,
                               .predicted_count = predicted_count.as<int32_t>(),
                               .predicted_stride = kSelected,
                               .fetches = fetches.as<Fetch>(),
                               .fetch_count = fetch_count.as<int32_t>(),
                               .fetch_stride = kSelected,
                               .list = list.as<ListEntry>(),
                               .list_count = list_count.as<int32_t>(),
                               .list_stride = kSelected + 3,
                               .stats = stats.as<int32_t>()});
  };
  const double select_us = time(kSets, select);
  // P, the maps in and out, the list.
  print(fmt::format("select {} x {}, {} predicted, {} slots", kItems, kHeads, kSelected, kSlots), select_us,
        4.0 * kRowsOfHeads * (2 * kSelected + 4 * kSlots + 2 * (kSelected + 3)));
  std::vector<int32_t> counts(kRowsOfHeads * 4);
  stream().copy(counts.data(), stats.data(), counts.size() * 4);
  double misses = 0;
  for (size_t i = 1; i < counts.size(); i += 4) misses += counts[i];
  std::printf("  both %.2f us; %.1f misses a head in the last step\n", top_us + select_us, misses / kRowsOfHeads);
}

}  // namespace
}  // namespace oasis::kernels

int main(int argc, char** argv) {
  using oasis::kernels::KvType;
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  if (const auto device = oasis::make_cuda_device(0); !device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().message().c_str());
    return 1;
  }
  oasis::kernels::Bench bench(quick);
  bench.measure_memory();
  for (const int64_t batch : {1, 16, 64, 128}) bench.attention(batch);
  for (const KvType type : {KvType::kBf16, KvType::kFp8E4M3})
    for (const int64_t items : {1, 64, 128})
      for (const int64_t blocks : {1024, 2048, 8192})
        if (!quick || blocks != 2048) bench.score(items, blocks, type);
  for (const int64_t blocks : {1024, 2048}) bench.topk_and_select(blocks);
  return 0;
}
