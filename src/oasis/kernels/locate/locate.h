// Which page holds a block, for every KV head: the head map read on the way to append and seal.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/select/select.h"

namespace oasis::kernels {

// A sequence's way from logical block to page in one layer.
struct BlockTable {
  const HeadMap* maps = nullptr;          // [kv_heads]; null: dense, slot = block
  const int32_t* page_of_slot = nullptr;  // [slots]
};

// pages[r, h] = page of block[r] of table[r] for KV head h; -1 where block[r] is negative.
struct LocateParams {
  const BlockTable* tables = nullptr;  // [tables]
  const int32_t* table = nullptr;      // [rows]: index into tables
  const int32_t* block = nullptr;      // [rows]
  int64_t rows = 0;
  int64_t kv_heads = 0;
  int32_t* pages = nullptr;  // [rows, kv_heads]
};

void locate_cpu(Stream& stream, const LocateParams& params);
void locate_cuda(Stream& stream, const LocateParams& params);

}  // namespace oasis::kernels
