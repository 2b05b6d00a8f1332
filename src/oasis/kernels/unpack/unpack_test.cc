#include "oasis/kernels/unpack/unpack.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

#include "oasis/base/numeric.h"
#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/fp8_row_ref.h"

namespace oasis::kernels {
namespace {

struct Case {
  KvType type;
  int64_t block_size, d;
};

class Unpack : public testing::TestWithParam<std::tuple<Backend, Case>> {
 protected:
  void SetUp() override { OASIS_SKIP_WITHOUT(std::get<0>(GetParam())); }
};

TEST_P(Unpack, WritesEachBlockHeadsKeysAndValuesAndNothingElse) {
  const auto [backend, c] = GetParam();
  constexpr int64_t kCount = 5;
  const bool fp8 = c.type == KvType::kFp8E4M3;
  const int64_t rows = 2 * c.block_size, half = c.block_size * c.d * 2, head_bytes = rows * (fp8 ? c.d + 1 : 2 * c.d);
  std::mt19937 random(4);
  std::vector<uint8_t> homes(static_cast<size_t>(kCount * head_bytes));
  for (size_t i = 0; i < homes.size(); ++i) homes[i] = static_cast<uint8_t>((random() & 0x80) | random() % 0x7f);
  for (int64_t i = 0; fp8 && i < kCount * rows; ++i)
    homes[static_cast<size_t>(i / rows * head_bytes + rows * c.d + i % rows)] =
        static_cast<uint8_t>(10 + random() % 237);
  if (fp8) homes[static_cast<size_t>(rows * c.d + 3)] = 255;  // a row of NaN

  // The workspace: keys of block-heads 2, 0, 4, 1, 3 with gaps of a vector, then values alike.
  const int64_t stride = half + 16, v_offset = kCount * stride;
  std::vector<std::byte> got(static_cast<size_t>(2 * v_offset), std::byte{0xee});
  Device& device = test_device(backend, 3);
  Buffer pinned = std::move(device.allocate_pinned(homes.size())).value();
  std::memcpy(pinned.data(), homes.data(), homes.size());
  const Buffer workspace = copy_to(device, got.data(), got.size());
  std::vector<Copy> copies;
  for (int64_t i = 0; i < kCount; ++i) {
    copies.push_back({pinned.data() + i * head_bytes, workspace.data() + (i * 3 + 1) % kCount * stride});
  }
  kernels_for(backend).unpack(device.foreground(), {.type = c.type,
                                                    .copies = copies.data(),
                                                    .count = kCount,
                                                    .block_size = c.block_size,
                                                    .head_dim = c.d,
                                                    .v_offset = v_offset});
  device.foreground().copy(got.data(), workspace.data(), got.size());

  std::vector<bool> written(got.size());
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t to = (i * 3 + 1) % kCount * stride + row / c.block_size * v_offset + row % c.block_size * c.d * 2;
      const uint8_t* head = &homes[static_cast<size_t>(i * head_bytes)];
      std::vector<double> want;
      if (fp8) want = read_fp8_row_ref(head + row * c.d, head[rows * c.d + row], c.d);
      for (int64_t j = 0; j < c.d; ++j) {
        bf16 x;
        std::memcpy(&x, &got[static_cast<size_t>(to + 2 * j)], 2);
        written[static_cast<size_t>(to + 2 * j)] = written[static_cast<size_t>(to + 2 * j + 1)] = true;
        if (!fp8) {
          ASSERT_EQ(0, std::memcmp(&x, head + 2 * (row * c.d + j), 2));
        } else if (std::isnan(want[static_cast<size_t>(j)])) {
          ASSERT_TRUE(std::isnan(to_float(x)));
        } else {
          ASSERT_EQ(to_float(x), want[static_cast<size_t>(j)]) << "row " << row << " element " << j;
        }
      }
    }
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (!written[i]) {
      ASSERT_EQ(got[i], std::byte{0xee});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Unpack,
                         testing::Combine(testing::Values(Backend::kCpu, Backend::kCuda),
                                          testing::Values(Case{KvType::kBf16, 16, 64}, Case{KvType::kBf16, 32, 80},
                                                          Case{KvType::kFp8E4M3, 16, 64},
                                                          Case{KvType::kFp8E4M3, 64, 80},
                                                          Case{KvType::kFp8E4M3, 16, 256})),
                         case_name);

}  // namespace
}  // namespace oasis::kernels
