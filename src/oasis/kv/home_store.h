// Who owns which home: reservations, references, and the prefix cache. The tier below holds the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kv/tier.h"

namespace oasis::kv {

// How the K/V of a block came to be. Dense and `exact` requests match dense blocks only (design section 6).
enum class Provenance : uint8_t { kDense, kSparse };

// 128 bits that name a block by everything its K/V depends on: the chain of tokens before it, the model, the encoding,
// provenance.
struct PrefixKey {
  uint64_t low = 0, high = 0;
  bool operator==(const PrefixKey&) const = default;
};

// The key before the first block: model fingerprint (RoPE parameters included), element types, block size, drafter
// fingerprint.
PrefixKey prefix_root(uint64_t model_fingerprint, const KvShape& shape, uint64_t drafter_fingerprint);
// The key of the block whose tokens are `tokens` (a whole block) and whose predecessor is `parent`.
PrefixKey prefix_child(const PrefixKey& parent, std::span<const int32_t> tokens, Provenance provenance);

struct HomeStoreStats {
  int32_t homes = 0, referenced = 0, cached = 0, free = 0, reserved = 0;  // cached: unreferenced, kept for their prefix
  int64_t prefix_hits = 0, prefix_misses = 0, evictions = 0;              // in blocks
};

// Not thread-safe: the engine's thread owns it (the tier below is thread-safe).
class HomeStore {
 public:
  HomeStore(std::unique_ptr<Tier> tier, int32_t block_size);
  Tier& tier() { return *tier_; }
  int32_t capacity() const { return tier_->homes(); }

  // Admission: sets `homes` aside for one sequence. False: not now (wait); an error: never (more than capacity), with
  // the shortfall.
  Result<bool> reserve(int32_t homes);
  void unreserve(int32_t homes);
  // Takes one home out of a reservation (evicting the least recently used cached home if none is free). One reference.
  HomeId allocate_reserved();

  void ref(HomeId home);
  // The last reference: the home stays cached if it has a key and its tier status is ok, else it is free. Deferred to
  // the end of `step` like pages; `release_through` makes it so.
  void unref(HomeId home, int64_t step);
  void release_through(int64_t step);

  // The homes of the longest chain of cached or referenced blocks that starts `tokens` and may be used under
  // `provenance`: at most floor((len - 1) / block_size). Each gets a reference; nothing is taken from a reservation.
  // Homes whose tier status is not ok end the match (a damaged block is a miss) and lose their key.
  std::vector<HomeId> match(const PrefixKey& root, std::span<const int32_t> tokens, Provenance wanted);

  // Publishes a sealed, fully written block under its key (the block's tokens are kept and compared on a match). If the
  // key exists, returns the home that has it, now referenced: the caller gives up its own and uses that one. Else
  // returns `home`.
  HomeId publish(HomeId home, const PrefixKey& key, std::span<const int32_t> block_tokens, Provenance provenance);

  // Drops every cached home.
  void clear_cache();
  HomeStoreStats stats() const;
  Status check_integrity() const;

 private:
  struct Home;
  std::unique_ptr<Tier> tier_;
  int32_t block_size_;
  // The implementation's state: see home_store.cc.
  struct State;
  std::unique_ptr<State> state_;

 public:
  ~HomeStore();
};

}  // namespace oasis::kv
