// What must hold between any two calls of HomeStore.
#include <algorithm>

#include "oasis/kv/home_store.h"

namespace oasis::kv {
namespace {

Status broken(HomeId home, std::string_view what) {
  return Status(StatusCode::kInternal, fmt::format("home {}: {}", home, what));
}

}  // namespace

Status HomeStore::check_integrity() const {
  std::array<int32_t, 4> counts{};
  size_t published = 0, evictable = 0;
  std::vector<int> listed_free(homes_.size(), 0);
  for (const HomeId home : free_) ++listed_free[static_cast<size_t>(home)];

  for (HomeId home = 0; home < static_cast<HomeId>(homes_.size()); ++home) {
    const Home& h = homes_[static_cast<size_t>(home)];
    ++counts[static_cast<size_t>(h.state)];
    if ((h.refs > 0) != (h.state == State::kReferenced)) return broken(home, "references and state disagree");
    if (listed_free[static_cast<size_t>(home)] != (h.state == State::kFree)) return broken(home, "free list disagrees");
    if (h.state == State::kFree && h.published) return broken(home, "free and published");
    if (h.state == State::kCached && !h.published) return broken(home, "cached and not published");
    if (h.state == State::kDeferred && std::ranges::none_of(deferred_, [&](const Deferred& d) {
          return d.home == home && d.step == h.deferred_step;
        })) {
      return broken(home, "deferred to no step");
    }
    const bool leaf = h.first_child == kNoHome;
    if (evictable_.contains({h.last_used, home}) != (h.state == State::kCached && leaf)) {
      return broken(home, "evictable and not a cached leaf, or the reverse");
    }
    evictable += h.state == State::kCached && leaf;
    if (!h.published) {
      if (!leaf || h.parent != kNoHome) return broken(home, "in the tree and not published");
      continue;
    }
    ++published;
    const auto it = by_key_.find(h.key);
    if (it == by_key_.end() || it->second != home) return broken(home, "not found by its key");
    if (h.parent != kNoHome) {
      const Home& parent = homes_[static_cast<size_t>(h.parent)];
      if (!parent.published) return broken(home, "published after a block that is not");
      if (prefix_child(parent.key, h.tokens, h.provenance) != h.key) return broken(home, "key does not follow");
      if (parent.provenance == Provenance::kSparse && h.provenance == Provenance::kDense) {
        return broken(home, "dense after sparse");
      }
    }
    HomeId previous = kNoHome;
    for (HomeId child = h.first_child; child != kNoHome;) {
      const Home& c = homes_[static_cast<size_t>(child)];
      if (c.parent != home || c.previous_sibling != previous) return broken(child, "broken links");
      previous = child;
      child = c.next_sibling;
    }
  }
  if (counts != counts_) return Status(StatusCode::kInternal, "states are miscounted");
  if (published != by_key_.size() || evictable != evictable_.size()) {
    return Status(StatusCode::kInternal, "the index holds homes that are gone");
  }
  if (reserved_ < 0 || slack() < 0) {
    return Status(StatusCode::kInternal, fmt::format("{} homes reserved, {} of them missing", reserved_, -slack()));
  }
  return {};
}

}  // namespace oasis::kv
