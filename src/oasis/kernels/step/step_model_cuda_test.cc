// The model's pieces of a captured step against the ops that they stand for.
#include <cmath>
#include <initializer_list>
#include <tuple>

#include "oasis/base/numeric.h"
#include "oasis/kernels/matmul/matmul_cuda.h"
#include "oasis/kernels/norm/norm_ref.h"
#include "oasis/kernels/step/step_cuda_test_util.h"
#include "oasis/kernels/swiglu/swiglu_ref.h"

namespace oasis::kernels {
namespace {

using namespace step_testing;

float bf16_at(const std::byte* p, int64_t i) {
  bf16 x;
  std::memcpy(&x, p + 2 * i, 2);
  return to_float(x);
}

void expect_near_bytes(const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i += 2) {
    if (std::memcmp(&got[i], &want[i], 2) == 0) continue;
    const float a = bf16_at(&got[i], 0), b = bf16_at(&want[i], 0);
    ASSERT_NEAR(a, b, std::abs(b) / 128 + 1e-6) << "element " << i / 2;  // a unit in the last place
  }
}

// In FP8 a key whose rounding the order of sums decides is the neighbouring number; all else is equal.
void expect_near_fp8(const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  ASSERT_EQ(got.size(), want.size());
  int64_t different = 0, written = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    written += want[i] != std::byte{0xee};
    different += got[i] != want[i];
    ASSERT_NEAR(static_cast<int>(got[i]), static_cast<int>(want[i]), 1) << "byte " << i;
  }
  EXPECT_GT(written, 0);
  EXPECT_LE(different * 100, written);
}

// What step_qkv stands for, by the CPU's ops: q/k norm, RoPE at two positions, append.
struct Separate {
  std::vector<float> q, q_next;  // [batch * rows, heads * d]
  std::vector<std::byte> pool;
};

Separate separate_ops(const Tables& in, int32_t layer, const std::vector<float>& qkv, const std::vector<float>& q_norm,
                      const std::vector<float>& k_norm, bool interleaved, const std::vector<float>& rope,
                      const std::vector<float>& rope_next) {
  constexpr int64_t kAll = kSequences * kRows, kQ = kHeads * kGroup * kDim, kKv = kHeads * kDim, kWidth = kQ + 2 * kKv;
  const Kernels& ops = kernels_for(Backend::kCpu);
  std::vector<float> x = qkv, k(kAll * kKv), next(kAll * kDim);
  Separate out{std::vector<float>(kAll * kQ), std::vector<float>(kAll * kQ), in.pool.host};
  const auto norm = [&](const std::vector<float>& weight, int64_t first, int64_t heads) {
    for (int64_t r = 0; r < kAll && !weight.empty(); ++r) {
      float* at = x.data() + r * kWidth + first;
      ops.rms_norm(cpu(), {.x = at,
                           .x_stride = kDim,
                           .weight = weight.data(),
                           .eps = 1e-5f,
                           .y = at,
                           .y_stride = kDim,
                           .rows = heads,
                           .cols = kDim});
    }
  };
  norm(q_norm, 0, kHeads * kGroup);
  norm(k_norm, kQ, kHeads);
  for (int64_t r = 0; r < kAll; ++r) {
    std::copy_n(rope_next.begin() + r / kRows * kDim, kDim, next.begin() + r * kDim);
  }
  const auto turn = [&](int64_t first, int64_t heads, const std::vector<float>& table, std::vector<float>& y) {
    ops.rope(cpu(), {.x = x.data() + first,
                     .x_stride = kWidth,
                     .cos_sin = table.data(),
                     .interleaved = interleaved,
                     .y = y.data(),
                     .y_stride = heads * kDim,
                     .rows = kAll,
                     .heads = heads,
                     .head_dim = kDim});
  };
  turn(0, kHeads * kGroup, rope, out.q);
  turn(0, kHeads * kGroup, next, out.q_next);
  turn(kQ, kHeads, rope, k);
  std::vector<int32_t> positions, pages;
  for (int32_t s = 0; s < kSequences; ++s) {
    const StepItem& item = in.items.host[static_cast<size_t>(s)];
    for (int32_t j = 0; j < kRows; ++j) {
      positions.push_back(j < item.rows ? item.position + j : -1);
      for (int32_t h = 0; h < kHeads; ++h) {
        pages.push_back(j < item.rows ? in.page(layer, s, h, (item.position + j) / kBlock) : -1);
      }
    }
  }
  ops.append(cpu(), {.pool = in.pool_view(out.pool.data(), layer),
                     .block_size = kBlock,
                     .head_dim = kDim,
                     .kv_heads = kHeads,
                     .rows = kAll,
                     .positions = positions.data(),
                     .pages = pages.data(),
                     .k = k.data(),
                     .k_stride = kKv,
                     .v = x.data() + kQ + kKv,
                     .v_stride = kWidth});
  return out;
}

TEST_F(StepCuda, QkvEqualsNormRopeAndAppendOnTheirOwn) {
  constexpr int64_t kAll = kSequences * kRows, kQ = kHeads * kGroup * kDim, kWidth = kQ + 2 * kHeads * kDim;
  for (const auto& [interleaved, normed, type] :
       std::initializer_list<std::tuple<bool, bool, KvType>>{{false, false, KvType::kBf16},
                                                             {false, true, KvType::kBf16},
                                                             {true, false, KvType::kBf16},
                                                             {true, true, KvType::kBf16},
                                                             {false, true, KvType::kFp8E4M3}}) {
    SCOPED_TRACE(testing::Message() << "interleaved " << interleaved << " normed " << normed << " type "
                                    << static_cast<int>(type));
    Tables in(type);
    const int32_t layer = 1;
    const Both<float> qkv(normal_floats(kAll * kWidth, 1)), weights(normal_floats(2 * kDim, 2));
    const std::vector<float> q_norm(weights.host.begin(), weights.host.begin() + kDim);
    const std::vector<float> k_norm(weights.host.begin() + kDim, weights.host.end());
    // Any cosines and sines will do.
    const Both<float> rope(normal_floats(kAll * kDim, 3)), rope_next(normal_floats(kSequences * kDim, 4));
    const Both<float> q(std::vector<float>(kAll * kQ, 77)), q_scoring(std::vector<float>(4 * kQ, 77));
    step_qkv(foreground(), in.tables(), layer,
             {.qkv = qkv.device(),
              .q_norm = normed ? weights.device() : nullptr,
              .k_norm = normed ? weights.device() + kDim : nullptr,
              .eps = 1e-5f,
              .interleaved = interleaved,
              .rope = rope.device(),
              .rope_next = rope_next.device(),
              .q = q.device(),
              .q_scoring = q_scoring.device()});
    const Separate want = separate_ops(in, layer, qkv.host, normed ? q_norm : std::vector<float>(),
                                       normed ? k_norm : std::vector<float>(), interleaved, rope.host, rope_next.host);
    type == KvType::kBf16 ? expect_near_bytes(in.pool.download(), want.pool)
                          : expect_near_fp8(in.pool.download(), want.pool);
    const std::vector<float> got = q.download(), scoring = q_scoring.download();
    for (int64_t r = 0; r < kAll; ++r) {
      const bool runs = r % kRows < in.items.host[static_cast<size_t>(r / kRows)].rows;
      for (int64_t i = 0; i < kQ; ++i) {
        const float x = runs ? want.q[static_cast<size_t>(r * kQ + i)] : 77;
        ASSERT_NEAR(got[static_cast<size_t>(r * kQ + i)], x, 2e-5) << "row " << r << " element " << i;
      }
    }
    // Scored: the draft row of sequence 0, the rotated x_t of sequence 2; nothing of the others.
    for (int64_t i = 0; i < kQ; ++i) {
      ASSERT_NEAR(scoring[static_cast<size_t>(i)], want.q[static_cast<size_t>(kQ + i)], 2e-5);
      ASSERT_NEAR(scoring[static_cast<size_t>(kQ + i)], want.q_next[static_cast<size_t>(2 * kRows * kQ + i)], 2e-5);
      ASSERT_EQ(scoring[static_cast<size_t>(2 * kQ + i)], 77);
    }
  }
}

TEST_F(StepCuda, QkvWritesNothingForABlockWithoutASlot) {
  Tables in;
  std::fill(in.slot_of_block.host.begin(), in.slot_of_block.host.end(), -1);
  in.items.host[3].rows = 0;  // the dense one needs no map
  in.upload();
  constexpr int64_t kAll = kSequences * kRows, kQ = kHeads * kGroup * kDim, kWidth = kQ + 2 * kHeads * kDim;
  const Both<float> qkv(normal_floats(kAll * kWidth, 1)), rope(normal_floats(kAll * kDim, 3));
  const Both<float> q(std::vector<float>(kAll * kQ));
  step_qkv(foreground(), in.tables(), 0,
           {.qkv = qkv.device(), .rope = rope.device(), .rope_next = rope.device(), .q = q.device()});
  EXPECT_TRUE(in.pool.download() == in.pool.host);
}

TEST_F(StepCuda, SealEqualsTheOpAndWritesTheHomeRecord) {
  for (const auto& [beta, type] : std::initializer_list<std::pair<float, KvType>>{
           {.5f, KvType::kBf16}, {1.0f, KvType::kBf16}, {.5f, KvType::kFp8E4M3}}) {
    Tables in(type);
    const PinnedHomes homes(3);
    std::mt19937 random(6);
    std::normal_distribution<float> normal(0, 3);
    for (size_t i = 0; i < in.pool.host.size(); i += 2) {
      const bf16 x = oasis::to_bf16(normal(random));
      std::memcpy(&in.pool.host[i], &x, 2);
    }
    for (size_t i = 0; type == KvType::kFp8E4M3 && i < in.pool.host.size(); ++i) {  // also good for scales
      in.pool.host[i] = static_cast<std::byte>(100 + random() % 20);
    }
    in.pool.upload();
    const auto seals = [&](size_t s, int32_t block, int32_t summary, int64_t home) {
      StepItem& item = in.items.host[s];
      item.seal_block = block, item.seal_summary = summary;
      if (home >= 0) item.seal_home = homes.part(home), item.seal_meta = homes.meta(home);
    };
    seals(0, 1, 11, 1);
    seals(1, 1, 12, 0);  // takes no part in the step
    seals(2, 3, 7, -1);  // writing home has failed
    seals(3, 0, 30, 2);
    in.upload();
    const int32_t layer = 2;
    step_seal(foreground(), in.tables(), layer, beta);
    step_seal_home(foreground(), in.tables(), layer);
    const std::vector<std::byte> got = in.summaries.download();

    std::vector<std::byte> want = in.summaries.host;
    const std::pair<size_t, int64_t> sealed[] = {{0, 1}, {2, -1}, {3, 2}};
    for (const auto& [s, home] : sealed) {
      const StepItem& item = in.items.host[s];
      std::vector<std::byte> part(kPage, std::byte{0xee});
      std::byte* to[kHeads];
      for (int32_t h = 0; h < kHeads; ++h) to[h] = part.data() + h * in.block_head_bytes();
      int32_t pages[kHeads];
      for (int32_t h = 0; h < kHeads; ++h) pages[h] = in.page(layer, static_cast<int32_t>(s), h, item.seal_block);
      kernels_for(Backend::kCpu)
          .seal(cpu(), {.pool = in.pool_view(in.pool.host.data(), layer),
                        .block_size = kBlock,
                        .head_dim = kDim,
                        .kv_heads = kHeads,
                        .beta = beta,
                        .entries = 1,
                        .pages = pages,
                        .summaries = {.base = want.data() + layer * kLayerSummaries * kSummary,
                                      .page_stride = kSummary,
                                      .head_stride = kSummary / kHeads},
                        .summary_pages = &item.seal_summary,
                        .homes = to,
                        .home_type = type});
      if (home < 0) continue;
      for (int32_t l = 0; l < kLayers; ++l) {
        const std::byte* at = homes.part(home) + l * PinnedHomes::kPartStride;
        const std::vector<std::byte> expected = l == layer ? part : std::vector<std::byte>(kPage, std::byte{0xee});
        EXPECT_EQ(std::memcmp(at, expected.data(), kPage), 0) << "sequence " << s << " layer " << l;
        EXPECT_EQ(at[kPage], std::byte{0xee});
      }
      const std::byte* rows = got.data() + (layer * kLayerSummaries + item.seal_summary) * kSummary;
      EXPECT_EQ(std::memcmp(homes.meta(home) + layer * kSummary, rows, kSummary), 0) << "sequence " << s;
      EXPECT_EQ(homes.meta(home)[0], std::byte{0xee});
    }
    expect_near_bytes(got, want);
    for (int64_t i = 0; i < PinnedHomes::kHome; ++i) ASSERT_EQ(homes.part(0)[i], std::byte{0xee});
  }
}

TEST_F(StepCuda, NormToBf16IsTheNormOfTheChosenRows) {
  for (const int64_t cols : {64, 576, 2048, 4096}) {
    constexpr int64_t kItems = 3, kPerItem = 2, kRowsAnItem = 5, kCount = kItems * kPerItem;
    const Both<float> x(normal_floats(kItems * kRowsAnItem * cols, 1, 3)), weight(normal_floats(cols, 2));
    const Both<uint16_t> out(std::vector<uint16_t>(static_cast<size_t>((kCount + 1) * cols), 0x7777));
    norm_to_bf16(foreground(), x.device(), weight.device(), 1e-5f, cols, kCount, kPerItem, kRowsAnItem, out.device());
    std::vector<float> want(x.host.size());
    rms_norm_ref({.x = x.host.data(),
                  .x_stride = cols,
                  .weight = weight.host.data(),
                  .eps = 1e-5f,
                  .y = want.data(),
                  .y_stride = cols,
                  .rows = kItems * kRowsAnItem,
                  .cols = cols});
    const auto got = out.download();
    for (int64_t i = 0; i < kCount * cols; ++i) {
      const int64_t row = i / cols / kPerItem * kRowsAnItem + i / cols % kPerItem;
      const float w = want[static_cast<size_t>(row * cols + i % cols)];
      ASSERT_NEAR(to_float(bf16{got[static_cast<size_t>(i)]}), w, std::abs(w) / 256 * 1.01) << i;
    }
    EXPECT_EQ(got.back(), 0x7777);
  }
}

TEST_F(StepCuda, SwigluToBf16IsSwiglu) {
  for (const int64_t inner : {8, 128, 1536}) {
    constexpr int64_t kR = 3;
    const Both<float> gate_up(normal_floats(kR * 2 * inner, 1, 6));
    const Both<uint16_t> out(std::vector<uint16_t>(static_cast<size_t>(kR * inner + 4), 0x7777));
    swiglu_to_bf16(foreground(), gate_up.device(), kR, inner, out.device());
    const auto got = out.download();
    for (int64_t r = 0; r < kR; ++r) {
      std::vector<float> want(static_cast<size_t>(inner));
      const float* gate = gate_up.host.data() + r * 2 * inner;
      swiglu_ref({.gate = gate, .up = gate + inner, .y = want.data(), .count = inner});
      for (int64_t i = 0; i < inner; ++i) {
        const float w = want[static_cast<size_t>(i)];
        ASSERT_NEAR(to_float(bf16{got[static_cast<size_t>(r * inner + i)]}), w, std::abs(w) / 256 * 1.01) << i;
      }
    }
    EXPECT_EQ(got.back(), 0x7777);
  }
}

TEST_F(StepCuda, ToBf16RoundsToNearestEven) {
  const Both<float> x(std::vector<float>{0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 0x1.010002p0f, 1e-41f, INFINITY, -0.0f, 3});
  const Both<uint16_t> out(std::vector<uint16_t>(8));
  round_rows(foreground(), x.device(), 8, 1, 8, out.device());
  const auto got = out.download();
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(got[i], oasis::to_bf16(x.host[i]).bits) << x.host[i];
}

}  // namespace
}  // namespace oasis::kernels
