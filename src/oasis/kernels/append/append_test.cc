#include "oasis/kernels/append/append.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "oasis/kernels/append/append_ref.h"
#include "oasis/kernels/backend_test_util.h"

namespace oasis::kernels {
namespace {

struct Case {
  const char* name;
  int64_t block_size, head_dim, kv_heads;
  std::vector<int32_t> positions;
  bool interleaved_pool = false;
  KvType type = KvType::kBf16;
  bool fp8_values = false;
};

std::vector<Case> cases() {
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 200; ++i) many.push_back(i % 11 == 5 ? -1 : i);
  return {{"two rows", 16, 64, 3, {37, 38}},
          {"across a block's border", 16, 80, 2, {15, 16, 17}},
          {"a masked row", 32, 128, 2, {69, -1, 70}},
          {"strided pool", 16, 64, 3, {31, 32}, true},
          {"many rows", 64, 128, 8, many},
          {"FP8", 16, 64, 3, {37, 38}, false, KvType::kFp8E4M3},
          {"FP8, head_dim 80", 16, 80, 2, {15, 16, 17}, false, KvType::kFp8E4M3},
          {"FP8, many rows", 64, 256, 3, many, false, KvType::kFp8E4M3},
          {"FP8, strided pool", 16, 128, 2, {31, -1, 32}, true, KvType::kFp8E4M3},
          {"values of FP8 in bf16", 32, 96, 2, {69, -1, 70}, false, KvType::kBf16, true}};
}

class Append : public testing::TestWithParam<Backend> {};

TEST_P(Append, WritesOneTokenOfOneSlotAHeadAndNothingElse) {
  OASIS_SKIP_WITHOUT(GetParam());
  Device& device = test_device(GetParam(), 2);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto rows = static_cast<int64_t>(c.positions.size());
    const bool fp8 = c.type == KvType::kFp8E4M3;
    const int64_t row_bytes = c.head_dim * (fp8 ? 1 : 2), pages = c.positions.back() / c.block_size + 3;
    const int64_t rows_bytes = c.block_size * 2 * row_bytes;  // of a slot
    AppendParams p{.fp8_values = c.fp8_values,
                   .block_size = c.block_size,
                   .head_dim = c.head_dim,
                   .kv_heads = c.kv_heads,
                   .rows = rows};
    p.pool = {.page_stride = c.kv_heads * (rows_bytes + (fp8 ? 2 * c.block_size : 0)),
              .head_stride = rows_bytes + (fp8 ? 2 * c.block_size : 0),
              .token_stride = row_bytes,
              .v_offset = c.block_size * row_bytes,
              .scale_offset = rows_bytes,
              .type = c.type};
    if (c.interleaved_pool) {
      p.pool.head_stride = row_bytes;
      p.pool.token_stride = 2 * c.kv_heads * row_bytes;
      p.pool.v_offset = c.kv_heads * row_bytes;
      // Scales behind the page's rows, those of head 0 first: heads are row_bytes apart there too.
      p.pool.scale_offset = c.kv_heads * rows_bytes;
      p.pool.page_stride = c.kv_heads * (rows_bytes + row_bytes);
    }
    std::vector<int32_t> page_of;
    for (const int32_t position : c.positions)
      for (int64_t h = 0; h < c.kv_heads; ++h)
        page_of.push_back(position < 0 ? -1 : static_cast<int32_t>((position / c.block_size + 2 * h + 1) % pages));
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 10);
    p.k_stride = c.kv_heads * c.head_dim + 1;
    p.v_stride = c.kv_heads * c.head_dim + 9;
    std::vector<float> k(rows * p.k_stride), v(rows * p.v_stride);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    k[0] = 0x1.01p0f, k[1] = 0x1.03p0f, k[2] = -0x1.01p0f, k[3] = 0x1.010002p0f, k[4] = 1e-41f;  // ties, a subnormal
    p.positions = c.positions.data();
    p.pages = page_of.data();
    p.k = k.data();
    p.v = v.data();
    std::vector<std::byte> got(pages * p.pool.page_stride, std::byte{0xee}), want = got;
    const Buffer pool = copy_to(device, got.data(), got.size());
    p.pool.base = pool.data();
    kernels_for(GetParam()).append(device.foreground(), p);
    device.foreground().copy(got.data(), pool.data(), got.size());
    p.pool.base = want.data();
    append_ref(p);
    EXPECT_EQ(got, want);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Append, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
