// How kernels see memory that the KV core (or an engine that embeds it) owns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oasis::kernels {

// Element type of a slot or of a summary row.
enum class KvType : uint8_t { kBf16, kFp8E4M3 };

// One layer of a pool of pages. A page holds one slot a KV head; a slot holds one block-head, K rows then V rows:
// K of token i at base + page * page_stride + head * head_stride + i * token_stride, its V at v_offset beyond. Strides
// in bytes. Contiguous block-heads (token_stride = d * 2, v_offset = block_size * d * 2) are the default, not an
// assumption. kFp8E4M3: bytes, and a scale byte a row (fp8_row.h), those of the block's K one after another at
// scale_offset from K of token 0, then those of its V.
struct PoolView {
  std::byte* base = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t v_offset = 0;
  int64_t scale_offset = 0;
  KvType type = KvType::kBf16;

  std::byte* k(int64_t page, int64_t head, int64_t token) const {
    return base + page * page_stride + head * head_stride + token * token_stride;
  }
  std::byte* v(int64_t page, int64_t head, int64_t token) const { return k(page, head, token) + v_offset; }
  // kFp8E4M3: of K's rows [block_size], then of V's.
  uint8_t* scales(int64_t page, int64_t head) const {
    return reinterpret_cast<uint8_t*>(k(page, head, 0)) + scale_offset;
  }
};

// One layer of the summary pool. A summary page belongs to one block (shared by all sequences that share it) and holds,
// a KV head, two rows of d: the upper corner of the (shrunk) box of its keys, then the lower corner. kBf16: d + d bf16.
// kFp8E4M3: fp32 scale of the upper row, fp32 scale of the lower row, then d + d bytes; value = byte * scale.
struct SummaryView {
  std::byte* base = nullptr;
  int64_t page_stride = 0;  // bytes
  int64_t head_stride = 0;  // bytes
  KvType type = KvType::kBf16;

  std::byte* rows(int64_t page, int64_t head) const { return base + page * page_stride + head * head_stride; }
};

// One entry of an attention list: a logical block of a sequence and the page whose slot (for the list's KV head) holds
// it.
struct ListEntry {
  int32_t block;
  int32_t page;
};

}  // namespace oasis::kernels
