// Matrix products by weight type, shape and rows. GB/s counts the weights once, as a product reads them; GFLOP/s counts
// two operations a weight and row. `token` runs all products of a decode step of SmolLM2-135M on weights of their own,
// so that no cache holds what the step before left.
//   matmul_bench --benchmark_filter=token     OASIS_THREADS=2 OASIS_CPU=avx512
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/matmul/matmul.h"

namespace oasis::kernels {
namespace {

Device& device() {
  static const std::unique_ptr<Device> device = [] {
    const char* threads = std::getenv("OASIS_THREADS");
    return make_cpu_device(threads ? std::atoi(threads) : 0);
  }();
  return *device;
}

// A matrix of random bits whose factors are small numbers.
class Weights {
 public:
  Weights(DType type, int64_t rows, int64_t cols) : buffer_(*device().allocate(bytes_of(type, rows * cols))) {
    view_ = {buffer_.data(), type, rows, cols};
    std::minstd_rand random(1);
    auto* bytes = buffer_.as<uint8_t>();
    const int block = info(type).block_bytes;
    for (size_t i = 0; i < buffer_.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random() >> 8);
    const uint16_t small = type == DType::kBF16 || type == DType::kF32 ? to_bf16(.01f).bits : to_fp16(.01f).bits;
    const auto put = [&](size_t at) { std::memcpy(bytes + at, &small, 2); };
    for (size_t i = 0; i < buffer_.bytes(); i += static_cast<size_t>(block)) {
      if (type == DType::kF32) put(i + 2);
      if (type == DType::kF32 || type == DType::kQ6_K) put(i + static_cast<size_t>(block) - 2);
      if (type != DType::kF32 && type != DType::kQ6_K) put(i);
      if (type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kQ5_K) put(i + 2);
    }
  }
  const WeightView& view() const { return view_; }

 private:
  Buffer buffer_;
  WeightView view_;
};

// Products that share one input.
struct Product {
  std::vector<Weights> weights;
  std::vector<float> x, y;

  void run(int64_t rows) {
    const int64_t cols = weights[0].view().cols;
    x.resize(static_cast<size_t>(rows * cols), .5f);
    int64_t features = 0;
    for (const Weights& w : weights) features += w.view().rows;
    y.resize(static_cast<size_t>(rows * features));
    std::vector<MatmulPart> parts;
    float* to = y.data();
    for (const Weights& w : weights) {
      parts.push_back({w.view(), to, features});
      to += w.view().rows;
    }
    matmul_cpu(device().foreground(), {.x = x.data(), .x_stride = cols, .rows = rows, .cols = cols, .parts = parts});
  }
  int64_t elements() const {
    int64_t n = 0;
    for (const Weights& w : weights) n += w.view().rows * w.view().cols;
    return n;
  }
  int64_t bytes() const {
    int64_t n = 0;
    for (const Weights& w : weights) n += w.view().rows * w.view().row_bytes();
    return n;
  }
};

void report(benchmark::State& state, double bytes, double operations) {
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = benchmark::Counter(bytes * 1e-9, rate);
  state.counters["GFLOP/s"] = benchmark::Counter(operations * 1e-9, rate);
}

// Enough copies of one matrix that they do not stay in a cache.
void one(benchmark::State& state, DType type, int64_t features, int64_t cols, int64_t rows) {
  std::vector<Product> products;
  const int64_t bytes = features * bytes_of(type, cols);
  const int64_t copies = rows > 64 ? 1 : std::max<int64_t>(1, (100 << 20) / bytes);
  for (int64_t i = 0; i < copies; ++i) products.emplace_back().weights.emplace_back(type, features, cols);
  size_t next = 0;
  for (auto _ : state) products[next++ % products.size()].run(rows);
  report(state, static_cast<double>(bytes), 2. * static_cast<double>(products[0].elements() * rows));
}

void token(benchmark::State& state) {
  const int64_t rows = state.range(0);
  static const std::vector<std::unique_ptr<Product>> products = [] {
    std::vector<std::unique_ptr<Product>> out;
    const auto add = [&](DType type, int64_t cols, const std::vector<int64_t>& parts) {
      out.push_back(std::make_unique<Product>());
      for (int64_t features : parts) out.back()->weights.emplace_back(type, features, cols);
    };
    for (int layer = 0; layer < 30; ++layer) {
      add(DType::kQ4_1, 576, {576, 192, 192});
      add(DType::kQ4_1, 576, {576});
      add(DType::kQ4_1, 576, {1536, 1536});
      add(DType::kQ4_1, 1536, {576});
    }
    add(DType::kQ8_0, 576, {49152});
    return out;
  }();
  double bytes = 0, operations = 0;
  for (const auto& p : products) {
    bytes += static_cast<double>(p->bytes());
    operations += 2. * static_cast<double>(p->elements() * rows);
  }
  for (auto _ : state)
    for (const auto& p : products) p->run(rows);
  report(state, bytes, operations);
}
BENCHMARK(token)
    ->Arg(1)
    ->Arg(2)
    ->Arg(3)
    ->Arg(4)
    ->Arg(5)
    ->Arg(8)
    ->Arg(16)
    ->Arg(64)
    ->Arg(512)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void add_all() {
  constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                              DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  for (DType type : kTypes) {
    for (int64_t rows : {1, 2, 4, 9, 64, 128, 512}) {
      benchmark::RegisterBenchmark(fmt::format("{}/2048x4096/rows:{}", info(type).name, rows).c_str(),
                                   [=](benchmark::State& s) { one(s, type, 2048, 4096, rows); })
          ->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace oasis::kernels

int main(int argc, char** argv) {
  oasis::kernels::add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
