// Attention lists of rows that see the last blocks of their sequence, kept in a ring of pages.
#pragma once

#include <cstdint>

#include "oasis/device/device.h"
#include "oasis/kernels/views.h"

namespace oasis::kernels {

// Row r at position p lists blocks max(begin_block[r], p / block_size - window_blocks + 1) .. p / block_size, the same
// for every KV head; block b lies in page first_page[r] + b % ring_pages.
struct WindowListsParams {
  int64_t rows = 0;
  int64_t kv_heads = 0;
  int32_t block_size = 16;
  int32_t window_blocks = 0;
  int32_t ring_pages = 0;
  const int32_t* positions = nullptr;    // [rows]
  const int32_t* begin_block = nullptr;  // [rows]
  const int32_t* first_page = nullptr;   // [rows]
  ListEntry* entries = nullptr;          // [rows, kv_heads, window_blocks]
  int32_t* entry_count = nullptr;        // [rows, kv_heads]
};

void window_lists_cpu(Stream& stream, const WindowListsParams& params);
void window_lists_cuda(Stream& stream, const WindowListsParams& params);

}  // namespace oasis::kernels
