#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

#include "oasis/kv/home_store.h"

namespace oasis::kv {
namespace {

PrefixKey to_key(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

PrefixKey prefix_root(uint64_t model_fingerprint, const KvShape& shape, uint64_t drafter_fingerprint) {
  const std::array<uint64_t, 5> fields = {model_fingerprint, static_cast<uint64_t>(shape.type),
                                          static_cast<uint64_t>(shape.summary_type),
                                          static_cast<uint64_t>(shape.block_size), drafter_fingerprint};
  return to_key(XXH3_128bits(fields.data(), sizeof(fields)));
}

PrefixKey prefix_child(const PrefixKey& parent, std::span<const int32_t> tokens, Provenance provenance) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::array<uint64_t, 3> head = {parent.low, parent.high, static_cast<uint64_t>(provenance)};
  XXH3_128bits_update(&state, head.data(), sizeof(head));
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  return to_key(XXH3_128bits_digest(&state));
}

}  // namespace oasis::kv
