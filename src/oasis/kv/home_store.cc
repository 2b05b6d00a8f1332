#include "oasis/kv/home_store.h"

#include <algorithm>
#include <limits>

namespace oasis::kv {

HomeStore::HomeStore(std::unique_ptr<Tier> tier, int32_t block_size)
    : tier_(std::move(tier)), block_size_(block_size), homes_(static_cast<size_t>(tier_->homes())) {
  OASIS_CHECK(block_size > 0, "block size {}", block_size);
  counts_[static_cast<size_t>(State::kFree)] = capacity();
  for (HomeId home = capacity() - 1; home >= 0; --home) free_.push_back(home);
}

HomeStore::Home& HomeStore::at(HomeId home) {
  OASIS_CHECK(home >= 0 && home < capacity(), "home {} of {}", home, capacity());
  return homes_[static_cast<size_t>(home)];
}

void HomeStore::set_state(HomeId home, State state) {
  Home& h = at(home);
  --counts_[static_cast<size_t>(h.state)];
  ++counts_[static_cast<size_t>(state)];
  h.state = state;
  update_evictable(home);
}

void HomeStore::update_evictable(HomeId home) {
  const Home& h = at(home);
  const std::pair entry(h.last_used, home);
  if (h.state == State::kCached && h.first_child == kNoHome) {
    evictable_.insert(entry);
  } else {
    evictable_.erase(entry);
  }
}

Result<bool> HomeStore::reserve(int32_t homes) {
  OASIS_CHECK(homes >= 0, "reserve of {} homes", homes);
  if (homes > capacity()) {
    return resource_exhausted(
        "a sequence of {} blocks does not fit the capacity tier's {}: {} short; shorten it or give the tier more room "
        "(--capacity-memory, --capacity-file)",
        homes, capacity(), homes - capacity());
  }
  if (homes > slack()) return false;
  reserved_ += homes;
  return true;
}

void HomeStore::unreserve(int32_t homes) {
  OASIS_CHECK(homes >= 0 && homes <= reserved_, "unreserve of {} homes, {} are reserved", homes, reserved_);
  reserved_ -= homes;
}

HomeId HomeStore::allocate_reserved() {
  OASIS_CHECK(reserved_ > 0, "a home is taken without a reservation");
  if (free_.empty()) evict_one();
  const HomeId home = free_.back();
  free_.pop_back();
  --reserved_;
  Home& h = at(home);
  h.refs = 1;
  set_state(home, State::kReferenced);
  return home;
}

void HomeStore::ref(HomeId home) {
  OASIS_CHECK(at(home).refs > 0, "ref of home {}, which nobody holds", home);
  ++at(home).refs;
}

void HomeStore::unref(HomeId home, int64_t step) {
  Home& h = at(home);
  OASIS_CHECK(h.refs > 0, "unref of home {}, which nobody holds", home);
  if (--h.refs > 0) return;
  h.last_used = ++clock_;
  h.deferred_step = step;
  set_state(home, State::kDeferred);
  deferred_.push_back({home, step});
}

void HomeStore::release_through(int64_t step) {
  std::erase_if(deferred_, [&](const Deferred& d) {
    if (d.step > step) return false;
    // An entry is stale if the home was matched again since, and perhaps given up again in a later step.
    const Home& h = at(d.home);
    if (h.state == State::kDeferred && h.deferred_step == d.step) settle(d.home);
    return true;
  });
}

void HomeStore::settle(HomeId home) {
  if (at(home).published && usable(home)) {
    set_state(home, State::kCached);
  } else {
    free_home(home);
  }
}

void HomeStore::free_home(HomeId home) {
  OASIS_CHECK(at(home).refs == 0 && !at(home).published, "home {} is freed while in use", home);
  tier_->drop(home);
  set_state(home, State::kFree);
  free_.push_back(home);
}

bool HomeStore::usable(HomeId home) {
  if (tier_->status(home).ok()) return true;
  if (at(home).published) unpublish(home);
  return false;
}

void HomeStore::take(HomeId home) {
  Home& h = at(home);
  if (h.refs++ == 0) set_state(home, State::kReferenced);
}

HomeId HomeStore::find(const PrefixKey& key, HomeId parent, std::span<const int32_t> tokens) const {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return kNoHome;
  const Home& h = homes_[static_cast<size_t>(it->second)];
  return h.parent == parent && std::ranges::equal(h.tokens, tokens) ? it->second : kNoHome;
}

// The chain of blocks of one provenance that follows `parent` (or `root`) and holds `tokens` (whole blocks).
std::vector<HomeId> HomeStore::walk(const PrefixKey& root, HomeId parent, std::span<const int32_t> tokens,
                                    Provenance provenance) {
  std::vector<HomeId> chain;
  PrefixKey key = parent == kNoHome ? root : at(parent).key;
  while (!tokens.empty()) {
    const auto block = tokens.first(static_cast<size_t>(block_size_));
    key = prefix_child(key, block, provenance);
    const HomeId home = find(key, parent, block);
    if (home == kNoHome || !usable(home)) break;
    chain.push_back(home);
    parent = home;
    tokens = tokens.subspan(block.size());
  }
  return chain;
}

std::vector<HomeId> HomeStore::longest_chain(const PrefixKey& root, std::span<const int32_t> tokens,
                                             Provenance wanted) {
  const auto block_size = static_cast<size_t>(block_size_);
  const std::vector<HomeId> dense = walk(root, kNoHome, tokens, Provenance::kDense);
  if (wanted == Provenance::kDense) return dense;
  // A chain leaves the dense blocks once, after any of them. From the longest dense part down, so that ties go to it.
  std::vector<HomeId> best = dense;
  for (size_t from = dense.size() + 1; from-- > 0 && best.size() * block_size < tokens.size();) {
    const HomeId parent = from == 0 ? kNoHome : dense[from - 1];
    const std::vector<HomeId> sparse = walk(root, parent, tokens.subspan(from * block_size), Provenance::kSparse);
    if (from + sparse.size() <= best.size()) continue;
    best.assign(dense.begin(), dense.begin() + static_cast<std::ptrdiff_t>(from));
    best.insert(best.end(), sparse.begin(), sparse.end());
  }
  return best;
}

std::vector<HomeId> HomeStore::match(const PrefixKey& root, std::span<const int32_t> tokens, Provenance wanted) {
  const auto block_size = static_cast<size_t>(block_size_);
  const size_t blocks = tokens.empty() ? 0 : (tokens.size() - 1) / block_size;
  std::vector<HomeId> chain = longest_chain(root, tokens.first(blocks * block_size), wanted);
  size_t taken = 0;
  for (; taken < chain.size(); ++taken) {
    if (at(chain[taken]).state == State::kCached && slack() == 0) break;
    take(chain[taken]);
  }
  chain.resize(taken);
  hits_ += static_cast<int64_t>(taken);
  misses_ += static_cast<int64_t>(blocks - taken);
  return chain;
}

HomeId HomeStore::publish(HomeId home, HomeId parent, const PrefixKey& root, std::span<const int32_t> block_tokens,
                          Provenance provenance) {
  OASIS_CHECK(block_tokens.size() == static_cast<size_t>(block_size_), "a block of {} tokens is published, not {}",
              block_tokens.size(), block_size_);
  OASIS_CHECK(at(home).refs > 0 && !at(home).published, "home {} is published twice, or nobody holds it", home);
  if (!usable(home)) return home;
  PrefixKey key = root;
  if (parent != kNoHome) {
    if (!at(parent).published || !usable(parent)) return home;
    key = at(parent).key;
    if (at(parent).provenance == Provenance::kSparse) provenance = Provenance::kSparse;
  }
  key = prefix_child(key, block_tokens, provenance);

  const HomeId twin = find(key, parent, block_tokens);
  if (twin != kNoHome && usable(twin)) {
    if (at(twin).state == State::kCached && slack() == 0) return home;  // reservations count on the twin
    take(twin);
    return twin;
  }
  if (by_key_.contains(key)) return home;
  link(home, parent, key, provenance, block_tokens);
  return home;
}

// Into the tree. Nobody has the key.
void HomeStore::link(HomeId home, HomeId parent, const PrefixKey& key, Provenance provenance,
                     std::span<const int32_t> tokens) {
  by_key_.emplace(key, home);
  Home& h = at(home);
  h.published = true;
  h.key = key;
  h.provenance = provenance;
  h.parent = parent;
  h.tokens.assign(tokens.begin(), tokens.end());
  if (parent != kNoHome) {
    h.next_sibling = at(parent).first_child;
    if (h.next_sibling != kNoHome) at(h.next_sibling).previous_sibling = home;
    at(parent).first_child = home;
    update_evictable(parent);
  }
}

void HomeStore::unpublish(HomeId home) {
  std::vector<HomeId> subtree = {home};  // parents before children
  for (size_t i = 0; i < subtree.size(); ++i) {
    for (HomeId child = at(subtree[i]).first_child; child != kNoHome; child = at(child).next_sibling) {
      subtree.push_back(child);
    }
  }
  for (auto it = subtree.rbegin(); it != subtree.rend(); ++it) {
    detach(*it);
    if (at(*it).state == State::kCached) free_home(*it);
  }
}

void HomeStore::detach(HomeId leaf) {
  Home& h = at(leaf);
  OASIS_CHECK(h.published && h.first_child == kNoHome, "home {} is not a leaf of the prefix tree", leaf);
  if (h.next_sibling != kNoHome) at(h.next_sibling).previous_sibling = h.previous_sibling;
  if (h.previous_sibling != kNoHome) {
    at(h.previous_sibling).next_sibling = h.next_sibling;
  } else if (h.parent != kNoHome) {
    at(h.parent).first_child = h.next_sibling;
    update_evictable(h.parent);
  }
  by_key_.erase(h.key);
  h.published = false;
  h.parent = h.next_sibling = h.previous_sibling = kNoHome;
  h.tokens.clear();
}

void HomeStore::evict_one() {
  HomeId victim = kNoHome;
  if (!evictable_.empty()) {
    victim = evictable_.begin()->second;
  } else {
    // Every cached home has a child in use (whose holder gave up the parent first): the child is unpublished with it.
    int64_t oldest = std::numeric_limits<int64_t>::max();
    for (HomeId home = 0; home < capacity(); ++home) {
      if (at(home).state != State::kCached || at(home).last_used >= oldest) continue;
      victim = home;
      oldest = at(home).last_used;
    }
  }
  OASIS_CHECK(victim != kNoHome, "{} homes are reserved and none can be evicted", reserved_);
  const int32_t cached = count(State::kCached);
  unpublish(victim);
  evictions_ += cached - count(State::kCached);
}

void HomeStore::clear_cache() {
  for (HomeId home = 0; home < capacity(); ++home) {
    if (at(home).state == State::kCached) unpublish(home);
  }
}

HomeStoreStats HomeStore::stats() const {
  return {.free = count(State::kFree),
          .referenced = count(State::kReferenced),
          .deferred = count(State::kDeferred),
          .cached = count(State::kCached),
          .reserved = reserved_,
          .prefix_hits = hits_,
          .prefix_misses = misses_,
          .evictions = evictions_};
}

}  // namespace oasis::kv
