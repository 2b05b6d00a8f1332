// Who owns which home: reservations, references, and the prefix cache. The tier below holds the bytes.
//
// Published homes form a tree: a home's parent holds the block before it, roots hold first blocks. A node is found by
// its key (a hash of everything that its K/V depends on), and believed only if its parent is the very home that the
// walk came from and its tokens are equal, so that a hash collision costs a miss and never gives wrong K/V. Eviction
// takes leaves only, the least recently used first: what is cached can always be reached.
//
// Provenance. The K/V of a block written under sparse attention are approximate, and so are those of all blocks that
// build on it, so every chain is dense blocks, then sparse blocks. Dense and sparse children of one block are different
// nodes (provenance is in the key).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kv/tier.h"

namespace oasis::kv {

// How the K/V of a block came to be. Dense and `exact` requests match dense blocks only (design section 6).
enum class Provenance : uint8_t { kDense, kSparse };

constexpr HomeId kNoHome = -1;

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
  // Each home is one of these. cached: unreferenced, kept for its prefix; deferred: unreferenced, but its step may
  // still be under way.
  int32_t free = 0, referenced = 0, deferred = 0, cached = 0;
  int32_t reserved = 0;                                       // set aside for sequences, not yet allocated
  int64_t prefix_hits = 0, prefix_misses = 0, evictions = 0;  // in blocks
};

// Not thread-safe: the engine's thread owns it (the tier below is thread-safe).
class HomeStore {
 public:
  HomeStore(std::unique_ptr<Tier> tier, int32_t block_size);
  Tier& tier() { return *tier_; }
  int32_t capacity() const { return tier_->homes(); }

  // Admission: sets `homes` aside for one sequence. False: not now (wait); an error: never (more than capacity), with
  // the shortfall. A sequence that matched a prefix first must ask once whether matched + reserved can ever fit.
  Result<bool> reserve(int32_t homes);
  void unreserve(int32_t homes);
  // Takes one home out of a reservation (evicting the least recently used cached home if none is free). One reference.
  HomeId allocate_reserved();

  void ref(HomeId home);
  // The last reference: the home stays cached if it is published and its tier status is ok, else it is free. Deferred
  // to the end of `step` like pages; `release_through` makes it so.
  void unref(HomeId home, int64_t step);
  void release_through(int64_t step);

  // The homes of the longest chain of published blocks that starts `tokens` and may be used under `wanted`: at most
  // floor((len - 1) / block_size). Dense wants dense blocks; sparse takes either, of equally long chains the one with
  // more dense blocks. Each gets a reference. Unreferenced homes that reservations count on are not taken: the match
  // ends there, so match before reserving. A home whose tier status is not ok ends the match (a damaged block is a
  // miss) and is unpublished, with all that build on it.
  std::vector<HomeId> match(const PrefixKey& root, std::span<const int32_t> tokens, Provenance wanted);

  // Publishes a sealed, fully written block that follows the block of `parent` (kNoHome: it is the first, after
  // `root`). A block after a sparse one is sparse, whatever `provenance` says. If the block is published already,
  // returns the home that has it, now referenced: the caller gives up its own and uses that one. Else returns `home`,
  // which stays private if its parent is not published (then nothing that follows can be) or if its key collides.
  HomeId publish(HomeId home, HomeId parent, const PrefixKey& root, std::span<const int32_t> block_tokens,
                 Provenance provenance);
  bool published(HomeId home) const { return homes_[static_cast<size_t>(home)].published; }
  Provenance provenance(HomeId home) const { return homes_[static_cast<size_t>(home)].provenance; }

  // The prefix cache outlives the process if the tier's file does: its index lies beside it, in FILE.index (tokens,
  // keys, summaries, checksums). `identity` stands for everything that the cache's use depends on: model, encoding,
  // settings.
  //
  // Writes the index of all published homes and has the file kept; the old index is replaced at once or not at all.
  // Without a lasting file: nothing. Between steps.
  Status save(const PrefixKey& identity);
  // Into a store that is new: caches what the index tells, and returns how many homes. Of another identity, or with
  // a damaged head: none, no error, and the index is removed. A damaged record costs its block and what builds on it.
  // The index stays, so that a crash loses only what this run writes: what it overwrites no longer has the checksum
  // that the index knows.
  int32_t restore(const PrefixKey& identity, const PrefixKey& root);

  // Drops every cached home.
  void clear_cache();
  HomeStoreStats stats() const;
  Status check_integrity() const;

 private:
  enum class State : uint8_t { kFree, kReferenced, kDeferred, kCached };
  struct Home {
    State state = State::kFree;
    Provenance provenance = Provenance::kDense;
    bool published = false;
    int32_t refs = 0;
    int64_t last_used = 0, deferred_step = 0;
    // The tree of published homes.
    PrefixKey key;
    HomeId parent = kNoHome, first_child = kNoHome, next_sibling = kNoHome, previous_sibling = kNoHome;
    std::vector<int32_t> tokens;
  };
  struct KeyHash {
    size_t operator()(const PrefixKey& key) const { return key.low; }
  };
  struct Deferred {
    HomeId home;
    int64_t step;
  };

  Home& at(HomeId home);
  int32_t count(State state) const { return counts_[static_cast<size_t>(state)]; }
  // How many unreferenced homes are not spoken for. Never negative.
  int32_t slack() const { return count(State::kFree) + count(State::kCached) - reserved_; }
  HomeId find(const PrefixKey& key, HomeId parent, std::span<const int32_t> tokens) const;
  std::vector<HomeId> walk(const PrefixKey& root, HomeId parent, std::span<const int32_t> tokens,
                           Provenance provenance);
  std::vector<HomeId> longest_chain(const PrefixKey& root, std::span<const int32_t> tokens, Provenance wanted);
  bool usable(HomeId home);     // its tier status is ok; else it is unpublished
  void take(HomeId home);       // one more reference to a published home
  void settle(HomeId home);     // unreferenced, and its step is over: cached or free
  void unpublish(HomeId home);  // with all that build on it; cached ones become free
  void link(HomeId home, HomeId parent, const PrefixKey& key, Provenance provenance, std::span<const int32_t> tokens);
  void detach(HomeId leaf);     // from the tree
  void free_home(HomeId home);  // its bytes are forgotten
  void evict_one();
  void set_state(HomeId home, State state);
  void update_evictable(HomeId home);  // after a change of its state or children

  std::unique_ptr<Tier> tier_;
  int32_t block_size_;
  int32_t reserved_ = 0;
  std::array<int32_t, 4> counts_{};  // [State]
  int64_t clock_ = 0;                // counts uses
  int64_t hits_ = 0, misses_ = 0, evictions_ = 0;
  std::vector<Home> homes_;
  std::vector<HomeId> free_;
  std::vector<Deferred> deferred_;
  std::unordered_map<PrefixKey, HomeId, KeyHash> by_key_;
  std::set<std::pair<int64_t, HomeId>> evictable_;  // (last_used, home) of cached leaves
};

}  // namespace oasis::kv
