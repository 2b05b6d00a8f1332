// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/text/bytes_index.h"

namespace oasis::text {

class Bpe {
 public:
  // `tokens[id]`: the token's bytes, kept by the caller, or empty where BPE may not produce it. `merges`: pairs
  // "a b" in the byte alphabet, by rank.
  static Result<Bpe> create(std::span<const std::string_view> tokens, std::span<const std::string> merges,
                            bool ignore_merges);

  // Appends the piece's ids. Bytes with no token are dropped, and what they parted may merge.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

  // -1: none.
  int32_t find(std::string_view bytes) const { return index_.find(bytes); }

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    int32_t result = -1;
  };
  static constexpr uint64_t kNoPair = ~0ull;
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static size_t hash(uint64_t pair) { return (pair * 0x9E3779B97F4A7C15ull) >> 32; }

  const Merge* find_merge(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    for (size_t i = hash(pair) & (merges_.size() - 1);; i = (i + 1) & (merges_.size() - 1)) {
      if (merges_[i].pair == pair) return &merges_[i];
      if (merges_[i].pair == kNoPair) return nullptr;
    }
  }
  Status add_merge(std::string_view text, uint32_t rank);
  bool merges_to_itself(int32_t id, std::string_view bytes) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;

  BytesIndex index_;
  std::array<int32_t, 256> byte_ids_;
  std::vector<Merge> merges_;  // open addressing, a power of two
  bool ignore_merges_ = false;
  // Whether merging a token's bytes gives that token, found out when first asked: 0 unknown, 1 yes, 2 no. Threads may
  // find out twice, and agree.
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace oasis::text
