// What an EAGLE-3 head remembers of each sequence: the KV of its one layer over a window, in a ring of pages, and the
// fused features of the last tokens of recent blocks, for home records.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/device/device.h"
#include "oasis/kv/shape.h"

namespace oasis::draft {

struct CacheShape {
  kv::KvShape kv;  // one layer, bf16
  int32_t max_sequences = 0;
  int32_t window_blocks = 0;  // blocks that a row sees, its own included
  int32_t max_rows = 0;       // taken in by one call
  int64_t feature_dim = 0;

  // Drafts may reach two blocks past the newest row and be thrown away; what they overwrite must be out of the window.
  // The blocks of one call must not overwrite each other.
  int32_t ring_pages() const { return std::max(window_blocks + 3, kept_features()); }
  int32_t kept_features() const { return max_rows / kv.block_size + 2; }
  int64_t bytes_per_sequence() const {
    return ring_pages() * kv.page_bytes() + kept_features() * feature_dim * static_cast<int64_t>(sizeof(float));
  }
  int64_t bytes() const { return max_sequences * bytes_per_sequence(); }
  // KV of the block, then the feature of its last token.
  int64_t record_bytes() const { return kv.page_bytes() + feature_dim * static_cast<int64_t>(sizeof(float)); }
};

class Eagle3Cache {
 public:
  static Result<Eagle3Cache> create(Device& device, const CacheShape& shape);

  const CacheShape& shape() const { return shape_; }
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }
  kernels::PoolView view() const;
  int32_t page(int32_t sequence, int32_t block) const {
    return sequence * shape_.ring_pages() + block % shape_.ring_pages();
  }

  void attach(int32_t sequence);
  // As if rows 0 .. rows-1 had been taken in, with whatever KV there is: for benches.
  void pretend(int32_t sequence, int32_t rows) {
    at(sequence) = {.attached = true,
                    .begin_block = std::max(0, rows / shape_.kv.block_size - shape_.window_blocks + 1),
                    .next_row = rows};
  }
  void detach(int32_t sequence);
  bool attached(int32_t sequence) const { return at(sequence).attached; }
  // First position whose row is missing. Rows come without gaps; a new sequence may start at any whole block.
  int32_t next_row(int32_t sequence) const { return at(sequence).next_row; }
  void advance(int32_t sequence, int32_t first, int32_t rows);
  // First block that a row at `position` sees.
  int32_t first_block(int32_t sequence, int32_t position) const;

  // The feature of position p, if it is the last of its block.
  void keep_feature(Stream& stream, int32_t sequence, int32_t position, const float* feature);

  // Home records; reading zeroes the last row, which depends on the next token. `write` returns the feature of the
  // block's last token, where keep_feature keeps it.
  void read_record(int32_t sequence, int32_t block, std::byte* record) const;
  const float* write_record(int32_t sequence, int32_t block, const std::byte* record);

  std::vector<std::byte> save(int32_t sequence) const;
  Status restore(int32_t sequence, std::span<const std::byte> state);

 private:
  struct Sequence {
    bool attached = false;
    int32_t begin_block = 0;  // nothing before it is known
    int32_t next_row = 0;
  };
  Sequence& at(int32_t sequence) { return sequences_[static_cast<size_t>(sequence)]; }
  const Sequence& at(int32_t sequence) const { return sequences_[static_cast<size_t>(sequence)]; }
  std::byte* page_data(int32_t sequence, int32_t block) const {
    return memory_.data() + page(sequence, block) * shape_.kv.page_bytes();
  }
  float* feature(int32_t sequence, int32_t block) const;

  CacheShape shape_;
  Stream* stream_ = nullptr;  // the device's foreground, for copies from and to host memory
  std::vector<Sequence> sequences_;
  Buffer memory_;  // all pages, then all features [sequence, kept_features, feature_dim]
};

}  // namespace oasis::draft
