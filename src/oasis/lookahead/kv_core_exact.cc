// The exact policy: every verified row attends the top-K by its own query; what prefetch missed is fetched before
// attention.
#include <algorithm>

#include "oasis/lookahead/kv_core.h"

namespace oasis::lookahead {

// The groups of the step, in row order: one a verified row of a sparse sequence (the lookahead-only rows share the last
// one's), one a dense sequence. Scores every verified row's own candidates: blocks 0 .. floor(q/block)-1, those of the
// open window that are complete before q included, scored from the keys in their slots.
void KvCore::rank_verified_rows(int32_t layer, const float* q) {
  const auto& c = config_;
  const int64_t width = int64_t{c.shape.kv_heads} * c.q_per_kv * c.shape.head_dim;
  group_row_begin_.clear(), group_sequence_.clear();
  begin_scoring();
  std::vector<int32_t> candidates, begin, table, block, summary;
  std::vector<const int32_t*> pages;
  for (const StepSequence& st : steps_) {
    Sequence& s = seq(st.sequence);
    const int32_t first = first_row_[static_cast<size_t>(st.sequence)];
    const int32_t groups = s.sparse ? st.verified : 1;
    for (int32_t r = 0; r < groups; ++r) {
      group_row_begin_.push_back(first + r);
      group_sequence_.push_back(st.sequence);
      begin.push_back(scoring_rows());
      candidates.push_back(s.sparse ? block_of(s.position + r) : 0);
      pages.push_back(nullptr);
      if (s.sparse) add_scoring(q + (first + r) * width);
    }
    // A block that is complete before the last verified row without being final: at most one, since block size > draft
    // rows.
    const int32_t final_blocks = block_of(s.position + 1), complete = block_of(s.position + st.verified - 1);
    if (s.sparse && complete > final_blocks) {
      s.summary_pages.resize(static_cast<size_t>(final_blocks));
      s.summary_pages.push_back(s.provisional_summary);
      table.push_back(st.sequence), block.push_back(final_blocks), summary.push_back(s.provisional_summary);
    }
    for (int32_t r = 0; r < groups; ++r) pages[pages.size() - 1 - static_cast<size_t>(r)] = s.summary_pages.data();
  }
  group_row_begin_.push_back(static_cast<int32_t>(positions_.size()));
  begin.push_back(scoring_rows());
  if (!block.empty()) {
    seal_pages_.resize(block.size() * static_cast<size_t>(c.shape.kv_heads));
    rules_.locate(rules_stream_, {.tables = tables_.data(),
                                  .table = table.data(),
                                  .block = block.data(),
                                  .rows = static_cast<int64_t>(block.size()),
                                  .kv_heads = c.shape.kv_heads,
                                  .pages = seal_pages_.data()});
    kernels_.seal(stream_, {.pool = pages_.view(layer),
                            .block_size = c.shape.block_size,
                            .head_dim = c.shape.head_dim,
                            .kv_heads = c.shape.kv_heads,
                            .beta = c.beta,
                            .entries = static_cast<int64_t>(block.size()),
                            .pages = seal_pages_.data(),
                            .summaries = summaries_.view(layer),
                            .summary_pages = summary.data()});
  }
  const auto groups = static_cast<int64_t>(candidates.size());
  const auto heads = static_cast<size_t>(c.shape.kv_heads);
  const auto n = static_cast<size_t>(groups) * heads;
  row_top_.resize(n * static_cast<size_t>(c.attend_blocks));
  row_top_count_.resize(n);
  kernels_.score(stream_, {.summaries = summaries_.view(layer),
                           .head_dim = c.shape.head_dim,
                           .kv_heads = c.shape.kv_heads,
                           .q_per_kv = c.q_per_kv,
                           .items = groups,
                           .row_begin = begin.data(),
                           .candidates = candidates.data(),
                           .summary_pages = pages.data(),
                           .q = q_scoring(),
                           .q_stride = width,
                           .scores = row_scores_.as<float>(),
                           .score_stride = c.max_blocks});
  kernels_.topk(stream_, {.scores = row_scores_.as<float>(),
                          .score_stride = c.max_blocks,
                          .candidates = candidates.data(),
                          .items = groups,
                          .heads = c.shape.kv_heads,
                          .k = c.attend_blocks,
                          .pin_first = c.score == BlockScore::kShrunk,
                          .blocks = row_top_.data(),
                          .block_stride = c.attend_blocks,
                          .count = row_top_count_.data()});
  if (!c.hooks.rank) return;
  for (size_t g = 0; g < group_sequence_.size(); ++g) {
    if (candidates[g] == 0) continue;
    c.hooks.rank({.core = *this,
                  .layer = layer,
                  .sequence = group_sequence_[g],
                  .q = q + group_row_begin_[g] * width,
                  .candidates = candidates[g],
                  .blocks = &row_top_[g * heads * static_cast<size_t>(c.attend_blocks)],
                  .counts = &row_top_count_[g * heads],
                  .stride = c.attend_blocks});
  }
}

// T = the union of the verified rows' lists, rows in order while T fits R in every head. T becomes resident; what was
// not is fetched now.
void KvCore::fetch_demand(int32_t layer) {
  const auto& c = config_;
  const auto heads = static_cast<size_t>(c.shape.kv_heads), stride = static_cast<size_t>(c.resident_blocks);
  std::fill(items_.begin(), items_.end(), kernels::SelectItem{});
  std::vector<int32_t> unions(heads * stride), counts(heads);
  for (size_t g = 0; g < group_sequence_.size();) {
    const int32_t sequence = group_sequence_[g];
    size_t end = g;
    while (end < group_sequence_.size() && group_sequence_[end] == sequence) ++end;
    const Sequence& s = seq(sequence);
    if (s.sparse) {
      const int32_t candidates = candidates_[static_cast<size_t>(sequence)];
      std::fill(counts.begin(), counts.end(), 0);
      int32_t fitted = 0;
      for (size_t row = g; row < end && fitted < verified_[static_cast<size_t>(sequence)]; ++row) {
        auto grown = counts;
        bool fits = true;
        for (size_t h = 0; h < heads && fits; ++h) {
          int32_t* t = &unions[h * stride];
          const size_t at_row = row * heads + h;
          for (int32_t j = 0; j < row_top_count_[at_row] && fits; ++j) {
            const int32_t b = row_top_[at_row * static_cast<size_t>(c.attend_blocks) + static_cast<size_t>(j)];
            if (b >= s.sealed || std::find(t, t + grown[h], b) != t + grown[h]) continue;
            fits = grown[h] < c.resident_blocks;
            if (fits) t[grown[h]++] = b;
          }
        }
        if (!fits) break;
        counts = grown;
        ++fitted;
      }
      OASIS_CHECK(fitted >= 1, "the first row's {} blocks do not fit {} residents", c.attend_blocks, c.resident_blocks);
      verified_[static_cast<size_t>(sequence)] = fitted;
      for (size_t h = 0; h < heads; ++h) {
        const size_t i = at(0, sequence, static_cast<int32_t>(h));
        std::copy_n(&unions[h * stride], counts[h], &demand_[i * stride]);
        demand_count_[i] = counts[h];
      }
      kernels::SelectItem& item = items_[static_cast<size_t>(sequence)];
      item.maps = &maps_[at(layer, sequence, 0)];
      item.page_of_slot = s.page_of_slot.data();
      item.slots = c.slots();
      item.step = s.step;
      item.resident_limit = c.resident_blocks;
      item.attend_limit = c.attend_blocks;
      item.candidates = candidates;
      item.sealed_begin = s.sealed;
      item.open_end = open_end(s.position, s.max_blocks);
      item.cap = c.resident_blocks;
      item.wait_for_absent = true;
    }
    g = end;
  }
  rules_.demand(rules_stream_, {.items = c.max_sequences,
                                .kv_heads = c.shape.kv_heads,
                                .item = items_.data(),
                                .predicted = demand_.data(),
                                .predicted_count = demand_count_.data(),
                                .predicted_stride = c.resident_blocks,
                                .fetches = fetches_.data(),
                                .fetch_count = fetch_count_.data(),
                                .fetch_stride = c.resident_blocks});
  auto items = fetch_items(layer, fetches_.data(), fetch_count_.data());
  if (items.empty()) return;
  stats_.demand += static_cast<int64_t>(items.size());
  stats_.blocks += static_cast<int64_t>(items.size());
  stats_.bytes += static_cast<int64_t>(items.size()) * c.shape.block_head_bytes();
  stream_.synchronize();
  transfer_->run_now(std::move(items));
}

// Each row's own list, from the row's query alone: its top-K and the block it lies in on top. The last group adds the
// open blocks that its lookahead-only rows lie in. Rows that did not fit read what the last fitting row reads.
void KvCore::write_row_lists(int32_t layer) {
  const auto& c = config_;
  const auto heads = static_cast<size_t>(c.shape.kv_heads), stride = static_cast<size_t>(list_stride_);
  row_list_.resize(group_sequence_.size() * heads * stride);
  row_list_count_.resize(group_sequence_.size() * heads);
  for (size_t g = 0; g < group_sequence_.size(); ++g) {
    const int32_t sequence = group_sequence_[g];
    const Sequence& s = seq(sequence);
    const int32_t row = group_row_begin_[g] - first_row_[static_cast<size_t>(sequence)];
    const int32_t last_row = group_row_begin_[g + 1] - 1 - first_row_[static_cast<size_t>(sequence)];
    for (size_t h = 0; h < heads; ++h) {
      kernels::ListEntry* list = &row_list_[(g * heads + h) * stride];
      int32_t& count = row_list_count_[g * heads + h];
      if (!s.sparse) {
        const size_t i = at(layer, sequence, static_cast<int32_t>(h));
        std::copy_n(&list_[i * stride], list_count_[i], list);
        count = list_count_[i];
        continue;
      }
      const int32_t fitted = std::min(row, verified_[static_cast<size_t>(sequence)] - 1);
      const size_t source = (g - static_cast<size_t>(row - fitted)) * heads + h;
      const int32_t* top = &row_top_[source * static_cast<size_t>(c.attend_blocks)];
      std::vector<int32_t> blocks(top, top + row_top_count_[source]);
      const int32_t first_open = block_of(s.position + fitted), last_open = block_of(s.position + last_row);
      for (int32_t b = first_open; b <= last_open; ++b) blocks.push_back(b);
      std::sort(blocks.begin(), blocks.end());
      const kernels::HeadMap& map = maps_[at(layer, sequence, static_cast<int32_t>(h))];
      OASIS_CHECK(static_cast<int64_t>(blocks.size()) <= list_stride_, "a list of {} blocks", blocks.size());
      count = 0;
      for (const int32_t b : blocks) {
        const int32_t slot = map.slot_of_block[b];
        OASIS_CHECK(slot >= 0, "block {} is listed and not resident", b);
        list[count++] = {.block = b, .page = s.page_of_slot[static_cast<size_t>(slot)]};
      }
    }
  }
}

void KvCore::attend_row_lists(int32_t layer, const float* q, float* out) {
  const int64_t width = int64_t{config_.shape.kv_heads} * config_.q_per_kv * config_.shape.head_dim;
  kernels_.attention(stream_, {.pool = pages_.view(layer),
                               .block_size = config_.shape.block_size,
                               .head_dim = config_.shape.head_dim,
                               .kv_heads = config_.shape.kv_heads,
                               .q_per_kv = config_.q_per_kv,
                               .groups = static_cast<int64_t>(group_sequence_.size()),
                               .row_begin = group_row_begin_.data(),
                               .positions = positions_.data(),
                               .entries = row_list_.data(),
                               .entry_count = row_list_count_.data(),
                               .list_stride = list_stride_,
                               .q = q,
                               .q_stride = width,
                               .out = out,
                               .out_stride = width});
}

}  // namespace oasis::lookahead
