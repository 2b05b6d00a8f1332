#include "oasis/kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include "oasis/base/numeric.h"
#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/matmul/matmul_ref.h"

namespace oasis::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                            DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// The levels that this machine has.
std::vector<CpuLevel> levels(Backend backend = Backend::kCpu) {
  std::vector<CpuLevel> out;
  if (backend == Backend::kCuda) return {CpuLevel::kPortable};
  const CpuLevel before = cpu_level();
  for (CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    set_cpu_level(level);
    if (cpu_level() == level) out.push_back(level);
  }
  set_cpu_level(before);
  return out;
}

// Random blocks with scales around 1/64, of either sign.
std::vector<uint8_t> random_weights(DType type, int64_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(bytes_of(type, elements)));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto put = [&](size_t at, uint16_t bits) { std::memcpy(&bytes[at], &bits, 2); };
  if (info(type).block_elements == 1) {
    for (size_t i = 0; i < static_cast<size_t>(elements); ++i) {
      const float x = uniform(random);
      if (type == DType::kF32) std::memcpy(&bytes[4 * i], &x, 4);
      if (type == DType::kF16) put(2 * i, to_fp16(x).bits);
      if (type == DType::kBF16) put(2 * i, to_bf16(x).bits);
    }
    return bytes;
  }
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  for (size_t p = 0; p < bytes.size(); p += static_cast<size_t>(info(type).block_bytes)) {
    put(type == DType::kQ6_K ? p + 208 : p, to_fp16(uniform(random) / 64).bits);
    if (type == DType::kQ4_1 || type == DType::kQ4_K || type == DType::kQ5_K)
      put(p + 2, to_fp16(uniform(random) / 8).bits);
  }
  return bytes;
}

// With a mean, or errors in the offset of a format would average out.
std::vector<float> random_floats(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(1);
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal(random) * (random() % 16 == 0 ? 8.f : 1.f);
  return out;
}

struct Case {
  DType type;
  int64_t rows, cols;
  std::vector<int64_t> parts;  // features of each
  bool accumulate = false;
  Backend backend = Backend::kCpu;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << info(c.type).name << " " << c.rows << " x " << c.cols << (c.accumulate ? " +=" : " =") << " parts";
  for (int64_t p : c.parts) *os << " " << p;
}

struct Inputs {
  explicit Inputs(const Case& c) : x(random_floats((c.rows - 1) * (c.cols + 5) + c.cols, 1)) {
    for (size_t i = 0; i < c.parts.size(); ++i) {
      // Exactly as long as the weights, so that a read past the end can be seen by a sanitizer.
      weights.push_back(random_weights(c.type, c.parts[i] * c.cols, i + 2));
      views.push_back({weights.back().data(), c.type, c.parts[i], c.cols});
    }
  }
  std::vector<float> x;  // [rows, cols + 5]
  std::vector<std::vector<uint8_t>> weights;
  std::vector<WeightView> views;
};

constexpr float kUntouched = -12345.f;

// y of every part, [rows, features + 3], columns 0 .. features - 1 preset where they are added to.
std::vector<std::vector<float>> run(const Case& c, const Inputs& in, int threads) {
  std::vector<std::vector<float>> y;
  std::vector<MatmulPart> parts;
  for (int64_t features : c.parts) y.emplace_back(c.rows * (features + 3), kUntouched);
  for (size_t i = 0; i < c.parts.size(); ++i) {
    for (int64_t j = 0; c.accumulate && j < c.rows * (c.parts[i] + 3); ++j)
      if (j % (c.parts[i] + 3) < c.parts[i]) y[i][j] = static_cast<float>(j % 7);
    parts.push_back({in.views[i], y[i].data(), c.parts[i] + 3});
  }
  kernels_for(c.backend).matmul(test_device(c.backend, threads).foreground(), {.x = in.x.data(),
                                                                               .x_stride = c.cols + 5,
                                                                               .rows = c.rows,
                                                                               .cols = c.cols,
                                                                               .parts = parts,
                                                                               .accumulate = c.accumulate});
  return y;
}

ActivationsRef activations(const Case& c, CpuLevel level) {
  if (c.type == DType::kF32) return ActivationsRef::kExact;
  if (c.backend == Backend::kCuda) return ActivationsRef::kBf16;
  if (level == CpuLevel::kPortable) return ActivationsRef::kExact;
  if (c.rows > 64) return level == CpuLevel::kAvx512 ? ActivationsRef::kBf16 : ActivationsRef::kExact;
  if (c.type == DType::kBF16) return level == CpuLevel::kAvx512 ? ActivationsRef::kBf16 : ActivationsRef::kExact;
  if (info(c.type).block_elements == 1) return ActivationsRef::kExact;
  return level == CpuLevel::kAvx512 && c.rows <= 16 ? ActivationsRef::kInt16Blocks : ActivationsRef::kInt8Blocks;
}

class Matmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(GetParam().backend); }
  void TearDown() override { set_cpu_level(CpuLevel::kAvx512); }
};

TEST_P(Matmul, IsAsCloseToFp64AsTheActivationsBitsAllow) {
  const Case& c = GetParam();
  const Inputs in(c);
  for (CpuLevel level : levels(c.backend)) {
    set_cpu_level(level);
    const auto y = run(c, in, 2);
    const bool bf16_tiles = level == CpuLevel::kAvx512 && c.rows > 64 && c.type != DType::kF32;
    for (size_t part = 0; part < c.parts.size(); ++part) {
      const int64_t stride = c.parts[part] + 3;
      double error2 = 0, expected2 = 0;
      for (int64_t i = 0; i < c.parts[part]; ++i) {
        const auto w = weight_row_ref(in.views[part], i);
        for (int64_t row = 0; row < c.rows; ++row) {
          const ProductRef want = product_ref(&in.x[row * (c.cols + 5)], w, activations(c, level), bf16_tiles);
          const double preset = c.accumulate ? (row * stride + i) % 7 : 0;
          const double got = y[part][row * stride + i], error = got - preset - want.value;
          ASSERT_LE(std::abs(error), want.tolerance + 2e-6 * (want.magnitude + preset))
              << "level " << static_cast<int>(level) << " part " << part << " row " << row << " feature " << i
              << " value " << want.value;
          error2 += error * error;
          expected2 += std::pow(want.deviation + 1e-6 * (want.magnitude + preset), 2);
        }
      }
      // Much sharper than the bound on each: all errors together are what rounding alone explains.
      if (c.rows * c.parts[part] > 100) {
        EXPECT_LE(std::sqrt(error2 / expected2), 1.2) << "level " << static_cast<int>(level);
      }
      for (int64_t row = 0; row < c.rows; ++row)
        for (int64_t i = c.parts[part]; i < stride; ++i) ASSERT_EQ(y[part][row * stride + i], kUntouched);
    }
  }
}

TEST_P(Matmul, DoesNotDependOnTheNumberOfThreads) {
  const Inputs in(GetParam());
  for (CpuLevel level : levels(GetParam().backend)) {
    set_cpu_level(level);
    EXPECT_EQ(run(GetParam(), in, 1), run(GetParam(), in, 3)) << "level " << static_cast<int>(level);
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (DType type : kTypes) {
    const int64_t block = info(type).block_elements;
    const int64_t odd = block == 1 ? 77 : block == 32 ? 32 * 18 : 256 * 3;  // 18 blocks: no multiple of a register
    for (int64_t rows : {1, 2, 3, 4, 5, 9, 16, 17, 64, 65, 130}) out.push_back({type, rows, odd, {37}, false});
    for (int64_t rows : {1, 2, 6, 70}) out.push_back({type, rows, odd, {33, 1, 18}, true});
    out.push_back({type, 2, block, {5}, false});
    out.push_back({type, 66, block, {5}, false});
    // Longer than a chunk of factors (4,096) and than a tile is deep (2,048).
    out.push_back({type, 2, 4096 + (block == 1 ? 33 : block == 32 ? 3 * 32 : 256), {3}, false});
    out.push_back({type, 7, 4096 + (block == 1 ? 33 : block == 32 ? 3 * 32 : 256), {3}, false});
    out.push_back({type, 65, 4096 + (block == 1 ? 33 : block == 32 ? 3 * 32 : 256), {3}, true});
  }
  // The GPU's: what models are unpacked to.
  for (DType type : {DType::kBF16, DType::kF32}) {
    for (int64_t rows : {1, 2, 3, 8, 9, 64, 130}) out.push_back({type, rows, 72, {37}, false, Backend::kCuda});
    for (int64_t rows : {1, 6, 70}) out.push_back({type, rows, 576, {192, 1, 64}, true, Backend::kCuda});
    for (int64_t rows : {1, 2, 5, 33}) out.push_back({type, rows, 4096 + 8, {48}, false, Backend::kCuda});
    out.push_back({type, 300, 64, {576}, false, Backend::kCuda});
    out.push_back({type, 2, 8, {5}, false, Backend::kCuda});
  }
  out.push_back({DType::kQ8_0, 1, 64, {1500}, false});
  out.push_back({DType::kQ4_1, 1100, 64, {33}, false});  // more rows than are packed at a time
  return out;
}

std::string name(const testing::TestParamInfo<Case>& i) {
  const Case& c = i.param;
  std::string out = c.backend == Backend::kCuda ? "Cuda_" : "";
  out += fmt::format("{}_{}x{}{}", info(c.type).name, c.rows, c.cols, c.accumulate ? "_added" : "");
  for (int64_t p : c.parts) out += fmt::format("_{}", p);
  return out;
}

INSTANTIATE_TEST_SUITE_P(Cases, Matmul, testing::ValuesIn(cases()), name);

TEST(MatmulMixed, PartsOfDifferentTypesShareOneInput) {
  const Case c{DType::kF32, 3, 256, {20, 20, 20, 20}, false};
  const auto x = random_floats(c.rows * c.cols, 3);
  const DType types[] = {DType::kQ4_1, DType::kBF16, DType::kQ6_K, DType::kF32};
  const auto device = make_cpu_device(2);
  for (CpuLevel level : levels()) {
    set_cpu_level(level);
    std::vector<std::vector<uint8_t>> weights;
    std::vector<std::vector<float>> y(4, std::vector<float>(3 * 20));
    std::vector<MatmulPart> parts;
    for (size_t i = 0; i < 4; ++i) {
      weights.push_back(random_weights(types[i], 20 * c.cols, i));
      parts.push_back({{weights[i].data(), types[i], 20, c.cols}, y[i].data(), 20});
    }
    matmul_cpu(device->foreground(), {.x = x.data(), .x_stride = c.cols, .rows = 3, .cols = c.cols, .parts = parts});
    for (size_t i = 0; i < 4; ++i) {
      for (int64_t row = 0; row < 3; ++row) {
        for (int64_t j = 0; j < 20; ++j) {
          const ProductRef want =
              product_ref(&x[row * c.cols], weight_row_ref(parts[i].w, j), ActivationsRef::kExact, false);
          EXPECT_NEAR(y[i][row * 20 + j], want.value, want.magnitude * .01);
        }
      }
    }
  }
  set_cpu_level(CpuLevel::kAvx512);
}

TEST(MatmulNaN, ANaNInARowSpoilsThatRowAndNoOther) {
  const auto device = make_cpu_device(1);
  for (CpuLevel level : levels()) {
    set_cpu_level(level);
    for (DType type : kTypes) {
      for (int64_t rows : {2, 6, 66}) {
        auto x = random_floats(rows * 256, 4);
        x[256 + 77] = std::numeric_limits<float>::quiet_NaN();
        const auto weights = random_weights(type, 10 * 256, 5);
        std::vector<float> y(static_cast<size_t>(rows * 10));
        const MatmulPart part{{weights.data(), type, 10, 256}, y.data(), 10};
        matmul_cpu(device->foreground(),
                   {.x = x.data(), .x_stride = 256, .rows = rows, .cols = 256, .parts = {&part, 1}});
        for (int64_t i = 0; i < rows * 10; ++i)
          EXPECT_EQ(std::isnan(y[i]), i / 10 == 1) << info(type).name << " level " << static_cast<int>(level);
      }
    }
  }
  set_cpu_level(CpuLevel::kAvx512);
}

TEST(Dequantize, AgreesWithTheGgufPackage) {
  const std::string folder = std::string(OASIS_SOURCE_DIR) + "/tests/data/quant/";
  const auto read = [&](const std::string& file) {
    std::ifstream in(folder + file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  for (DType type : kTypes) {
    const std::string name(info(type).name);
    const std::string raw = read(name + ".raw"), floats = read(name + ".f32");
    const auto elements = static_cast<int64_t>(floats.size() / 4);
    ASSERT_GT(elements, 0) << folder << name;
    ASSERT_EQ(raw.size(), static_cast<size_t>(bytes_of(type, elements))) << name;
    std::vector<float> want(static_cast<size_t>(elements)), got(want.size());
    std::memcpy(want.data(), floats.data(), floats.size());
    dequantize(type, raw.data(), elements, got.data());
    const int64_t block = info(type).block_elements;
    for (int64_t i = 0; i < elements; i += block) {
      float largest = 0;
      for (int64_t j = i; j < i + block; ++j) largest = std::max(largest, std::abs(want[j]));
      for (int64_t j = i; j < i + block; ++j)
        EXPECT_LE(std::abs(got[j] - want[j]), largest * 1e-6f) << name << " " << j;
    }
  }
}

TEST(Dequantize, AgreesWithTheOracle) {
  for (DType type : kTypes) {
    const auto weights = random_weights(type, 4 * 512, 6);
    std::vector<float> got(512);
    for (int64_t row = 0; row < 4; ++row) {
      dequantize(type, weights.data() + row * bytes_of(type, 512), 512, got.data());
      const auto want = weight_row_ref({weights.data(), type, 4, 512}, row);
      for (size_t i = 0; i < 512; ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << info(type).name;
    }
  }
}

}  // namespace
}  // namespace oasis::kernels
