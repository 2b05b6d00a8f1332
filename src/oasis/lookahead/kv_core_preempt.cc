// Preemption: a sequence gives its fast-tier memory back and later goes on exactly where it was. Its homes stay.
#include <algorithm>
#include <cstring>
#include <map>

#include "oasis/lookahead/kv_core.h"

namespace oasis::lookahead {

SavedSequence KvCore::save(int32_t sequence) {
  transfer_->drain();  // the working set is at rest
  bring_home(sequence);
  Sequence& s = seq(sequence);
  OASIS_CHECK(s.ready, "sequence {} is not between steps", sequence);
  const auto& shape = config_.shape;
  SavedSequence saved;
  saved.open_end =
      s.sparse ? open_end(s.position - s.advanced, s.max_blocks) : static_cast<int32_t>(s.page_of_slot.size());
  const auto bytes = static_cast<size_t>(shape.block_head_bytes());
  for (int32_t l = 0; l < shape.layers; ++l) {
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      const size_t i = at(l, sequence, h);
      const kernels::HeadMap& map = maps_[i];
      const int32_t slots = s.sparse ? config_.slots() : 0;
      saved.block_of_slot.emplace_back(map.block_of_slot, map.block_of_slot + slots);
      saved.last_predicted.emplace_back(map.last_predicted, map.last_predicted + slots);
      auto& listed = saved.list.emplace_back();
      for (int32_t j = 0; j < list_count_[i]; ++j) {
        listed.push_back(list_[i * static_cast<size_t>(list_stride_) + static_cast<size_t>(j)].block);
      }
      const int32_t* p = &predicted_[i * static_cast<size_t>(config_.resident_blocks)];
      saved.predicted.emplace_back(p, p + (s.sparse ? predicted_count_[i] : 0));
      saved.spread.push_back(spread_[i]);
      for (int32_t b = s.sealed; b < saved.open_end; ++b) {
        const int32_t slot = s.sparse ? map.slot_of_block[b] : b;
        const std::byte* from = pages_.view(l).k(s.page_of_slot[static_cast<size_t>(slot)], h, 0);
        saved.open_blocks.resize(saved.open_blocks.size() + bytes);
        stream_.copy(saved.open_blocks.data() + saved.open_blocks.size() - bytes, from, bytes);
      }
    }
  }
  free_pages_of(s);
  saved.state = std::exchange(s, Sequence{});
  return saved;
}

Status KvCore::restore(int32_t sequence, SavedSequence& saved) {
  Sequence& s = seq(sequence);
  OASIS_CHECK(!s.attached, "sequence {} is attached already", sequence);
  const auto& shape = config_.shape;
  const int32_t pages = saved.state.sparse ? config_.slots() : saved.open_end;
  const int32_t summaries = saved.state.sealed + 1;
  if (free_pages() < pages || free_summary_pages() < summaries) {
    return resource_exhausted("resuming needs {} pages and {} summary pages; {} and {} are free", pages, summaries,
                              free_pages(), free_summary_pages());
  }
  s = std::move(saved.state);
  s.since = step_;
  s.page_of_slot.reserve(static_cast<size_t>(std::max(s.max_blocks, config_.slots())));
  s.summary_pages.reserve(static_cast<size_t>(s.max_blocks) + 1);
  for (int32_t i = 0; i < pages; ++i) s.page_of_slot.push_back(take_page());
  for (const kv::HomeId home : s.homes) {
    const bool live = summary_page_of_home_[static_cast<size_t>(home)] >= 0;
    s.summary_pages.push_back(take_summary_page(home));
    if (!live) summaries_.write(s.summary_pages.back(), homes_.tier().meta(home));
  }
  if (config_.fetch == FetchMode::kExact && s.sparse) s.provisional_summary = summaries_.allocator().allocate();

  const auto bytes = static_cast<size_t>(shape.block_head_bytes());
  const std::byte* open = saved.open_blocks.data();
  for (int32_t l = 0; l < shape.layers; ++l) {
    std::vector<TransferItem> items;
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      const size_t i = at(l, sequence, h), j = static_cast<size_t>(l * shape.kv_heads + h);
      restore_map(i, saved, j);
      set_list(l, sequence, h, saved.list[j]);
      const int32_t slots = s.sparse ? config_.slots() : s.sealed;
      for (int32_t slot = 0; slot < slots; ++slot) {
        const int32_t b = s.sparse ? maps_[i].block_of_slot[slot] : slot;
        if (b < 0 || b >= s.sealed) continue;
        items.push_back({.part = {s.homes[static_cast<size_t>(b)], l},
                         .offset = h * shape.block_head_bytes(),
                         .to = pages_.view(l).k(s.page_of_slot[static_cast<size_t>(slot)], h, 0),
                         .sequence = sequence});
      }
      for (int32_t b = s.sealed; b < saved.open_end; ++b, open += bytes) {
        const int32_t slot = s.sparse ? maps_[i].slot_of_block[b] : b;
        stream_.copy(pages_.view(l).k(s.page_of_slot[static_cast<size_t>(slot)], h, 0), open, bytes);
      }
    }
    stats_.warm_blocks += static_cast<int64_t>(items.size());
    stream_.synchronize();
    transfer_->run_now(std::move(items));
  }
  take_errors();
  return {};
}

void KvCore::restore_map(size_t i, const SavedSequence& saved, size_t j) {
  kernels::HeadMap& map = maps_[i];
  std::fill_n(map.slot_of_block, config_.max_blocks, -1);
  for (size_t slot = 0; slot < saved.block_of_slot[j].size(); ++slot) {
    map.block_of_slot[slot] = saved.block_of_slot[j][slot];
    map.last_predicted[slot] = saved.last_predicted[j][slot];
    if (map.block_of_slot[slot] >= 0) map.slot_of_block[map.block_of_slot[slot]] = static_cast<int32_t>(slot);
  }
  const auto& predicted = saved.predicted[j];
  std::copy(predicted.begin(), predicted.end(), &predicted_[i * static_cast<size_t>(config_.resident_blocks)]);
  predicted_count_[i] = static_cast<int32_t>(predicted.size());
  spread_[i] = saved.spread[j];
}

void KvCore::discard(SavedSequence& saved) {
  for (const kv::HomeId home : saved.state.homes) homes_.unref(home, step_);
  homes_.unreserve(saved.state.reserved_homes);
  saved = SavedSequence{};
}

std::span<const int32_t> KvCore::predicted(int32_t sequence, int32_t layer, int32_t head) const {
  bring_home(sequence);
  const size_t i = at(layer, sequence, head);
  return {&predicted_[i * static_cast<size_t>(config_.resident_blocks)], static_cast<size_t>(predicted_count_[i])};
}

std::vector<std::pair<int32_t, int32_t>> KvCore::residents(int32_t sequence, int32_t layer, int32_t head) const {
  bring_home(sequence);
  const kernels::HeadMap& map = maps_[at(layer, sequence, head)];
  std::vector<std::pair<int32_t, int32_t>> out;
  for (int32_t slot = 0; slot < config_.slots(); ++slot) {
    if (map.block_of_slot[slot] >= 0 && map.last_predicted[slot] != kernels::HeadMap::kOpen) {
      out.emplace_back(map.block_of_slot[slot], map.last_predicted[slot]);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int32_t> KvCore::listed(int32_t sequence, int32_t layer, int32_t head) const {
  bring_home(sequence);
  const size_t i = at(layer, sequence, head);
  std::vector<int32_t> out;
  for (int32_t j = 0; j < list_count_[i]; ++j) {
    out.push_back(list_[i * static_cast<size_t>(list_stride_) + static_cast<size_t>(j)].block);
  }
  return out;
}

Status KvCore::check_integrity() const {
  OASIS_RETURN_IF_ERROR(pages_.allocator().check_integrity());
  OASIS_RETURN_IF_ERROR(summaries_.allocator().check_integrity());
  OASIS_RETURN_IF_ERROR(homes_.check_integrity());
  const auto broken = [](const std::string& what) { return Status(StatusCode::kInternal, what); };
  std::map<int32_t, int32_t> page_owner, summary_refs;
  for (int32_t index = 0; index < config_.max_sequences; ++index) {
    const Sequence& s = sequence(index);
    if (!s.attached) continue;
    for (const int32_t page : s.page_of_slot) {
      if (!page_owner.emplace(page, index).second) return broken(fmt::format("page {} has two owners", page));
    }
    for (const int32_t page : s.summary_pages) ++summary_refs[page];
    if (s.provisional_summary >= 0) ++summary_refs[s.provisional_summary];
    if (s.ready) OASIS_RETURN_IF_ERROR(check_maps(index));
  }
  const auto& pages = pages_.allocator();
  if (static_cast<int32_t>(page_owner.size()) + pages.available() + pages.deferred() != pages.count()) {
    return broken(fmt::format("{} pages owned, {} free, {} deferred of {}", page_owner.size(), pages.available(),
                              pages.deferred(), pages.count()));
  }
  for (const auto& [page, refs] : summary_refs) {
    if (summaries_.allocator().refs(page) != refs) {
      return broken(
          fmt::format("summary page {} has {} references, {} counted", page, summaries_.allocator().refs(page), refs));
    }
  }
  return {};
}

Status KvCore::check_maps(int32_t index) const {
  const Sequence& s = sequence(index);
  const auto broken = [&](int32_t l, int32_t h, const std::string& what) {
    return Status(StatusCode::kInternal, fmt::format("sequence {} layer {} head {}: {}", index, l, h, what));
  };
  if (static_cast<int32_t>(s.homes.size()) != s.sealed || static_cast<int32_t>(s.summary_pages.size()) != s.sealed) {
    return broken(-1, -1,
                  fmt::format("{} homes, {} summaries, {} sealed", s.homes.size(), s.summary_pages.size(), s.sealed));
  }
  if (!s.sparse) return {};
  bring_home(index);
  for (int32_t l = 0; l < config_.shape.layers; ++l) {
    for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
      const kernels::HeadMap& map = maps_[at(l, index, h)];
      int32_t resident = 0;
      for (int32_t slot = 0; slot < config_.slots(); ++slot) {
        const int32_t b = map.block_of_slot[slot];
        if (b < 0) continue;
        if (map.slot_of_block[b] != slot) return broken(l, h, fmt::format("slot {} and block {} disagree", slot, b));
        resident += map.last_predicted[slot] != kernels::HeadMap::kOpen;
      }
      if (resident > config_.resident_blocks) return broken(l, h, fmt::format("{} residents", resident));
      for (int32_t b = 0; b < config_.max_blocks; ++b) {
        const int32_t slot = map.slot_of_block[b];
        if (slot >= 0 && map.block_of_slot[slot] != b)
          return broken(l, h, fmt::format("block {} and slot {} disagree", b, slot));
      }
      for (const int32_t b : listed(index, l, h)) {
        if (map.slot_of_block[b] < 0) return broken(l, h, fmt::format("block {} is listed and owns no slot", b));
      }
    }
  }
  return {};
}

}  // namespace oasis::lookahead
