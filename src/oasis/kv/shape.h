// The sizes that everything in the KV core derives from. Layers and KV heads are ranges of a model's, so that a rank of
// a tensor-parallel group owns its part and needs no other.
#pragma once

#include <cstdint>
#include <string_view>

#include "oasis/base/status.h"
#include "oasis/kernels/views.h"

namespace oasis::kv {

using kernels::KvType;

// As the program's options write it.
constexpr std::string_view to_string(KvType type) { return type == KvType::kBf16 ? "bf16" : "fp8"; }

struct KvShape {
  int32_t first_layer = 0, layers = 0;
  int32_t first_kv_head = 0, kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 16;
  KvType type = KvType::kBf16;          // of block-heads
  KvType summary_type = KvType::kBf16;  // of summary rows

  int64_t element_bytes() const { return type == KvType::kBf16 ? 2 : 1; }
  // One block-head: K[block_size][d] then V[block_size][d]; in FP8 the scale bytes of K's rows and of V's follow.
  int64_t block_head_bytes() const {
    return int64_t{2} * block_size * (head_dim * element_bytes() + (type == KvType::kBf16 ? 0 : 1));
  }
  // One part: the block-heads of one block and layer, all KV heads. The unit in which staged tiers move data.
  int64_t part_bytes() const { return kv_heads * block_head_bytes(); }
  // One page: one slot a layer and KV head.
  int64_t page_bytes() const { return layers * part_bytes(); }
  // Two summary rows of one (block, layer, KV head).
  int64_t summary_rows_bytes() const {
    return summary_type == KvType::kBf16 ? int64_t{4} * head_dim : 8 + int64_t{2} * head_dim;
  }
  int64_t summary_page_bytes() const { return int64_t{layers} * kv_heads * summary_rows_bytes(); }
};

// Every size positive, and a page within what an int64_t of bytes can count many of.
Status validate(const KvShape& shape);

}  // namespace oasis::kv
