// One decode step: the stages of a layer, in the order of the design's section 3.
#include "oasis/lookahead/kv_core.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace oasis::lookahead {
namespace {

class Timer {
 public:
  explicit Timer(double& total) : total_(total), begin_(std::chrono::steady_clock::now()) {}
  ~Timer() { total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& total_;
  std::chrono::steady_clock::time_point begin_;
};

// Finds a block in a list.
struct BlockOrder {
  bool operator()(const kernels::ListEntry& a, int32_t b) const { return a.block < b; }
  bool operator()(int32_t a, const kernels::ListEntry& b) const { return a < b.block; }
};

}  // namespace

// Blocks below this own a slot after a step at `position`: its own open block and those that the next step's rows can
// reach, block(p+1) .. block(p+2+2n), with n + 1 draft rows a step.
int32_t KvCore::open_end(int32_t position, int32_t max_blocks) const {
  return std::min(block_of(position + 2 * config_.max_draft_rows) + 1, max_blocks);
}

void KvCore::begin_step(std::span<const StepSequence> steps) {
  ++step_;
  policy_->begin_step();
  steps_.assign(steps.begin(), steps.end());
  positions_.clear(), row_table_.clear(), row_block_.clear(), sealing_.clear();
  std::fill(candidates_.begin(), candidates_.end(), 0);
  std::fill(switching_.begin(), switching_.end(), 0);
  std::fill(tables_.begin(), tables_.end(), kernels::BlockTable{});
  any_sparse_ = any_switching_ = false;
  step_wait_ = mirror_busy_ = 0;
  mirror_moved_ = 0;
  busy_before_ = transfer_->busy_seconds();
  moved_before_ = transfer_->moved();
  refused_before_ = stats_.refused_cap;
  agreement_step_ = config_.agreement_every > 0 && stats_.steps % config_.agreement_every == 0;
  int32_t next = 0;
  for (const StepSequence& st : steps_) {
    Sequence& s = seq(st.sequence);
    OASIS_CHECK(s.ready && st.rows >= 1 && st.verified >= 1 && st.verified <= st.rows, "sequence {} cannot step",
                st.sequence);
    for (; next <= st.sequence; ++next) row_begin_[static_cast<size_t>(next)] = static_cast<int32_t>(positions_.size());
    first_row_[static_cast<size_t>(st.sequence)] = static_cast<int32_t>(positions_.size());
    verified_[static_cast<size_t>(st.sequence)] = st.verified;
    for (int32_t r = 0; r < st.rows; ++r) {
      positions_.push_back(s.position + r);
      row_table_.push_back(st.sequence);
      row_block_.push_back(block_of(s.position + r));
    }
    OASIS_CHECK(row_block_.back() < s.max_blocks, "row at position {} lies past {} blocks", positions_.back(),
                s.max_blocks);
    const int32_t candidates = block_of(s.position + 1);
    for (int32_t b = s.sealed; b < candidates; ++b) {
      OASIS_CHECK(s.reserved_homes > 0, "sequence {} has no home left for block {}", st.sequence, b);
      --s.reserved_homes;
      s.homes.push_back(homes_.allocate_reserved());
      s.summary_pages.resize(static_cast<size_t>(b));  // drops a provisional page's entry
      s.summary_pages.push_back(take_summary_page(s.homes.back()));
      OASIS_CHECK(s.summary_pages.back() >= 0, "no summary page left for block {}", b);
      sealing_.emplace_back(st.sequence, b);
    }
    if (!s.sparse) {
      const auto owned = static_cast<int32_t>(s.page_of_slot.size());
      for (int32_t b = owned; b <= row_block_.back(); ++b) {
        s.page_of_slot.push_back(take_page());
        OASIS_CHECK(s.page_of_slot.back() >= 0, "no page left for block {}", b);
      }
      extend_dense_lists(st.sequence, owned);
      switching_[static_cast<size_t>(st.sequence)] = switches(s);
    }
    const bool switching = switching_[static_cast<size_t>(st.sequence)] != 0;
    any_sparse_ |= s.sparse;
    any_switching_ |= switching;
    if (s.sparse || switching) candidates_[static_cast<size_t>(st.sequence)] = candidates;
    tables_[static_cast<size_t>(st.sequence)].page_of_slot = s.page_of_slot.data();
  }
  for (; next <= config_.max_sequences; ++next)
    row_begin_[static_cast<size_t>(next)] = static_cast<int32_t>(positions_.size());
}

void KvCore::after_qkv(int32_t layer, const float* q, const float* q_next, const float* k, const float* v) {
  for (const StepSequence& st : steps_) {
    tables_[static_cast<size_t>(st.sequence)].maps =
        seq(st.sequence).sparse ? &maps_[at(layer, st.sequence, 0)] : nullptr;
  }
  append(layer, k, v);
  seal(layer);
  if (any_sparse_ || any_switching_) {
    Timer timer(stats_.predict_seconds);
    if (agreement_step_) measure_agreement(layer, q);
    if (policy_->mode() == FetchMode::kExact && any_sparse_) rank_verified_rows(layer, q);
    predict(layer, q, q_next);
  }
  const double waited = transfer_->wait(layer, step_ - 1);
  stats_.wait_seconds += waited;
  step_wait_ += waited;
  if (!any_sparse_) return;
  Timer timer(stats_.select_seconds);
  if (policy_->mode() == FetchMode::kExact) {
    fetch_demand(layer);
    write_row_lists(layer);
    if (keep_traces_) trace_rows(layer);
  }
  select(layer);
  if (keep_traces_) trace_select(layer);
}

void KvCore::append(int32_t layer, const float* k, const float* v) {
  if (config_.hooks.delay) config_.hooks.delay(Stage::kAppend, layer, step_);
  const auto rows = static_cast<int64_t>(positions_.size());
  const int64_t width = int64_t{config_.shape.kv_heads} * config_.shape.head_dim;
  row_pages_.resize(static_cast<size_t>(rows * config_.shape.kv_heads));
  rules_.locate(rules_stream_, {.tables = tables_.data(),
                                .table = row_table_.data(),
                                .block = row_block_.data(),
                                .rows = rows,
                                .kv_heads = config_.shape.kv_heads,
                                .pages = row_pages_.data()});
  kernels_.append(stream_, {.pool = pages_.view(layer),
                            .block_size = config_.shape.block_size,
                            .head_dim = config_.shape.head_dim,
                            .kv_heads = config_.shape.kv_heads,
                            .rows = rows,
                            .positions = positions_.data(),
                            .pages = row_pages_.data(),
                            .k = k,
                            .k_stride = width,
                            .v = v,
                            .v_stride = width});
}

// Every block whose tokens all lie at positions <= p: summary computed, block-heads written through to the home.
void KvCore::seal(int32_t layer) {
  if (sealing_.empty()) return;
  if (config_.hooks.delay) config_.hooks.delay(Stage::kWriteThrough, layer, step_);
  const size_t n = sealing_.size();
  std::vector<int32_t> table(n), block(n), summary(n);
  const auto heads = static_cast<size_t>(config_.shape.kv_heads);
  std::vector<std::byte*> home(n * heads);
  seal_pages_.resize(n * heads);
  for (size_t i = 0; i < n; ++i) {
    Sequence& s = seq(sealing_[i].first);
    table[i] = sealing_[i].first;
    block[i] = sealing_[i].second;
    summary[i] = s.summary_pages[static_cast<size_t>(block[i])];
    if (!s.error.ok()) continue;
    auto part = homes_.tier().begin_write({s.homes[static_cast<size_t>(block[i])], layer});
    if (part.ok()) {
      for (size_t h = 0; h < heads; ++h) {
        home[i * heads + h] = *part + static_cast<int64_t>(h) * config_.shape.block_head_bytes();
      }
    } else {
      s.error = part.status();  // this sequence ends at the step border; its block stays in its slot until then
    }
  }
  rules_.locate(rules_stream_, {.tables = tables_.data(),
                                .table = table.data(),
                                .block = block.data(),
                                .rows = static_cast<int64_t>(n),
                                .kv_heads = config_.shape.kv_heads,
                                .pages = seal_pages_.data()});
  kernels_.seal(stream_, {.pool = pages_.view(layer),
                          .block_size = config_.shape.block_size,
                          .head_dim = config_.shape.head_dim,
                          .kv_heads = config_.shape.kv_heads,
                          .beta = config_.beta,
                          .entries = static_cast<int64_t>(n),
                          .pages = seal_pages_.data(),
                          .summaries = summaries_.view(layer),
                          .summary_pages = summary.data(),
                          .homes = home.data(),
                          .home_type = config_.shape.type});
  stream_.synchronize();
  for (size_t i = 0; i < n; ++i) {
    if (home[i * heads]) homes_.tier().end_write({seq(table[i]).homes[static_cast<size_t>(block[i])], layer});
  }
}

void KvCore::add_scoring(const float* row) {
  const int64_t bytes = int64_t{config_.shape.kv_heads} * config_.q_per_kv * config_.shape.head_dim * 4;
  scoring_rows_.push_back({reinterpret_cast<const std::byte*>(row), q_scoring_.data() + scoring_rows() * bytes});
}

const float* KvCore::q_scoring() {
  kernels_.gather(stream_, {.copies = scoring_rows_.data(),
                            .count = scoring_rows(),
                            .bytes = int64_t{config_.shape.kv_heads} * config_.q_per_kv * config_.shape.head_dim * 4});
  return q_scoring_.as<float>();
}

// How much of P was right: against the top-K of x_t's own query over the same candidates.
void KvCore::measure_agreement(int32_t layer, const float* q) {
  const auto& c = config_;
  const int64_t width = int64_t{c.shape.kv_heads} * c.q_per_kv * c.shape.head_dim;
  std::vector<const int32_t*> pages(static_cast<size_t>(c.max_sequences));
  std::vector<int32_t> begin(static_cast<size_t>(c.max_sequences) + 1),
      candidates(static_cast<size_t>(c.max_sequences));
  begin_scoring();
  for (int32_t i = 0; i < c.max_sequences; ++i) {
    begin[static_cast<size_t>(i)] = scoring_rows();
    if (row_begin_[static_cast<size_t>(i)] == row_begin_[static_cast<size_t>(i) + 1]) continue;
    const Sequence& s = seq(i);
    if (!s.sparse || s.predicted_candidates == 0) continue;
    pages[static_cast<size_t>(i)] = s.summary_pages.data();
    candidates[static_cast<size_t>(i)] = s.predicted_candidates;
    add_scoring(q + first_row_[static_cast<size_t>(i)] * width);
  }
  begin[static_cast<size_t>(c.max_sequences)] = scoring_rows();
  kernels_.score(stream_, {.summaries = summaries_.view(layer),
                           .head_dim = c.shape.head_dim,
                           .kv_heads = c.shape.kv_heads,
                           .q_per_kv = c.q_per_kv,
                           .items = c.max_sequences,
                           .row_begin = begin.data(),
                           .candidates = candidates.data(),
                           .summary_pages = pages.data(),
                           .q = q_scoring(),
                           .q_stride = width,
                           .scores = scores_.as<float>(),
                           .score_stride = c.max_blocks});
  kernels_.topk(stream_, {.scores = scores_.as<float>(),
                          .score_stride = c.max_blocks,
                          .candidates = candidates.data(),
                          .items = c.max_sequences,
                          .heads = c.shape.kv_heads,
                          .k = c.attend_blocks,
                          .pin_first = c.score == BlockScore::kShrunk,
                          .blocks = top_.data(),
                          .block_stride = c.resident_blocks,
                          .count = top_count_.data()});
  for (int32_t i = 0; i < c.max_sequences; ++i) {
    if (candidates[static_cast<size_t>(i)] == 0) continue;
    for (int32_t h = 0; h < c.shape.kv_heads; ++h) {
      const size_t persistent = at(layer, i, h), scratch = at(0, i, h);
      const auto stride = static_cast<size_t>(c.resident_blocks);
      const int32_t* p = &predicted_[persistent * stride];
      const int32_t n = std::min(c.attend_blocks, predicted_count_[persistent]);
      std::vector<int32_t> sorted(p, p + n);
      std::sort(sorted.begin(), sorted.end());
      const kernels::ListEntry* list = &list_[persistent * static_cast<size_t>(list_stride_)];
      int32_t common = 0, covered = 0;
      for (int32_t j = 0; j < top_count_[scratch]; ++j) {
        const int32_t block = top_[scratch * stride + static_cast<size_t>(j)];
        common += std::binary_search(sorted.begin(), sorted.end(), block);
        covered += std::binary_search(list, list + list_count_[persistent], block, BlockOrder{});
      }
      const double agreement = n > 0 ? static_cast<double>(common) / n : 1;
      stats_.cover_sum += n > 0 ? static_cast<double>(covered) / n : 1;
      stats_.agreement_sum += agreement;
      ++stats_.agreement_count;
      stats_.layer_agreement_sum[static_cast<size_t>(layer)] += agreement;
      ++stats_.layer_agreement_count[static_cast<size_t>(layer)];
    }
  }
}

// P for the next step: the draft rows' queries, or x_t's rotated one position on where there is no draft.
void KvCore::predict(int32_t layer, const float* q, const float* q_next) {
  if (config_.hooks.delay) config_.hooks.delay(Stage::kPredict, layer, step_);
  const auto& c = config_;
  const int64_t width = int64_t{c.shape.kv_heads} * c.q_per_kv * c.shape.head_dim;
  std::vector<const int32_t*> pages(static_cast<size_t>(c.max_sequences));
  std::vector<int32_t> begin(static_cast<size_t>(c.max_sequences) + 1);
  begin_scoring();
  for (int32_t i = 0; i < c.max_sequences; ++i) {
    begin[static_cast<size_t>(i)] = scoring_rows();
    if (candidates_[static_cast<size_t>(i)] == 0) continue;
    pages[static_cast<size_t>(i)] = seq(i).summary_pages.data();
    const int32_t first = row_begin_[static_cast<size_t>(i)], end = row_begin_[static_cast<size_t>(i) + 1];
    if (end - first == 1) add_scoring(q_next + first * width);
    for (int32_t r = first + 1; r < end; ++r) add_scoring(q + r * width);
  }
  begin[static_cast<size_t>(c.max_sequences)] = scoring_rows();
  kernels_.score(stream_, {.summaries = summaries_.view(layer),
                           .head_dim = c.shape.head_dim,
                           .kv_heads = c.shape.kv_heads,
                           .q_per_kv = c.q_per_kv,
                           .items = c.max_sequences,
                           .row_begin = begin.data(),
                           .candidates = candidates_.data(),
                           .summary_pages = pages.data(),
                           .q = q_scoring(),
                           .q_stride = width,
                           .scores = scores_.as<float>(),
                           .score_stride = c.max_blocks});
  kernels_.topk(stream_, {.scores = scores_.as<float>(),
                          .score_stride = c.max_blocks,
                          .candidates = candidates_.data(),
                          .items = c.max_sequences,
                          .heads = c.shape.kv_heads,
                          .k = any_switching_ ? c.resident_blocks : c.attend_blocks,
                          .pin_first = c.score == BlockScore::kShrunk,
                          .blocks = top_.data(),
                          .block_scores = predicted_scores_.data(),
                          .block_stride = c.resident_blocks,
                          .count = top_count_.data()});
  for (const StepSequence& st : steps_) {
    if (candidates_[static_cast<size_t>(st.sequence)] == 0) continue;
    const bool switching = switching_[static_cast<size_t>(st.sequence)] != 0;
    const auto stride = static_cast<size_t>(c.resident_blocks);
    for (int32_t h = 0; h < c.shape.kv_heads; ++h) {
      const size_t scratch = at(0, st.sequence, h), persistent = at(layer, st.sequence, h);
      int32_t& count = top_count_[scratch];
      if (!switching) count = std::min(count, c.attend_blocks);
      if (keep_traces_) {
        trace_scores(traces_[persistent].scores, scores_.as<float>() + scratch * static_cast<size_t>(c.max_blocks),
                     candidates_[static_cast<size_t>(st.sequence)]);
      }
    }
    if (c.hooks.predict) {
      const size_t scratch = at(0, st.sequence, 0);
      c.hooks.predict(layer, step_, st.sequence, &top_[scratch * stride], &top_count_[scratch], c.resident_blocks);
    }
    for (int32_t h = 0; h < c.shape.kv_heads; ++h) {
      const size_t scratch = at(0, st.sequence, h), persistent = at(layer, st.sequence, h);
      std::copy_n(&top_[scratch * stride], top_count_[scratch], &predicted_[persistent * stride]);
      predicted_count_[persistent] = top_count_[scratch];
    }
  }
}

void KvCore::fill_present(int32_t layer) {
  for (const StepSequence& st : steps_) {
    const Sequence& s = seq(st.sequence);
    uint8_t* row = &present_[static_cast<size_t>(st.sequence) * static_cast<size_t>(config_.max_blocks)];
    for (size_t b = 0; b < s.homes.size(); ++b) row[b] = homes_.tier().present({s.homes[b], layer});
  }
}

// Diff of P against the residents: the head map, the next step's lists and the plan are written.
void KvCore::select(int32_t layer) {
  if (config_.hooks.delay) config_.hooks.delay(Stage::kSelect, layer, step_);
  const auto& c = config_;
  const bool staged = !homes_.tier().addressable();
  if (staged) fill_present(layer);
  std::fill(items_.begin(), items_.end(), kernels::SelectItem{});
  for (const StepSequence& st : steps_) {
    const Sequence& s = seq(st.sequence);
    if (!s.sparse) continue;
    const FetchLimits limits = policy_->limits(s.advanced);
    const int32_t candidates = candidates_[static_cast<size_t>(st.sequence)];
    kernels::SelectItem& item = items_[static_cast<size_t>(st.sequence)];
    item.maps = &maps_[at(layer, st.sequence, 0)];
    item.page_of_slot = s.page_of_slot.data();
    item.slots = c.slots();
    item.step = s.step;
    item.resident_limit = c.resident_blocks;
    item.attend_limit = c.attend_blocks;
    item.candidates = candidates;
    item.sealed_begin = s.sealed;
    item.open_end = open_end(s.position, s.max_blocks);
    item.cap = limits.cap;
    item.margin_threshold = limits.margin_threshold;
    item.wait_for_absent = limits.wait_for_absent;
    if (staged) item.present = &present_[static_cast<size_t>(st.sequence) * static_cast<size_t>(c.max_blocks)];
  }
  const auto stride = static_cast<size_t>(c.resident_blocks);
  rules_.select(rules_stream_, {.items = c.max_sequences,
                                .kv_heads = c.shape.kv_heads,
                                .item = items_.data(),
                                .predicted = &predicted_[at(layer, 0, 0) * stride],
                                .predicted_scores = predicted_scores_.data(),
                                .predicted_count = &predicted_count_[at(layer, 0, 0)],
                                .predicted_stride = c.resident_blocks,
                                .spread = &spread_[at(layer, 0, 0)],
                                .budget = policy_->budget(),
                                .fetches = fetches_.data(),
                                .fetch_count = fetch_count_.data(),
                                .wanted = wanted_.data(),
                                .wanted_count = wanted_count_.data(),
                                .fetch_stride = c.resident_blocks,
                                .list = next_list_.data(),
                                .list_count = next_list_count_.data(),
                                .list_stride = list_stride_,
                                .stats = select_stats_.data()});
  std::vector<kv::PartKey> wanted;
  for (const StepSequence& st : steps_) {
    Sequence& s = seq(st.sequence);
    if (!s.sparse) continue;
    for (int32_t h = 0; h < c.shape.kv_heads; ++h) {
      const size_t i = at(0, st.sequence, h);
      stats_.hits += select_stats_[i * 4];
      stats_.misses += select_stats_[i * 4 + 1];
      stats_.refused_cap += select_stats_[i * 4 + 2];
      stats_.refused_absent += select_stats_[i * 4 + 3];
      stats_.admitted += fetch_count_[i];
      for (int32_t j = 0; j < wanted_count_[i]; ++j) {
        const int32_t block = wanted_[i * stride + static_cast<size_t>(j)].block;
        wanted.push_back({s.homes[static_cast<size_t>(block)], layer});
        // Lost, not late: it would be refused for ever.
        if (s.error.ok()) s.error = homes_.tier().status(wanted.back().home);
      }
    }
  }
  if (!wanted.empty()) homes_.tier().prefetch(wanted);
}

void KvCore::attention(int32_t layer, const float* q, float* out) {
  if (config_.hooks.delay) config_.hooks.delay(Stage::kAttention, layer, step_);
  if (policy_->mode() == FetchMode::kExact && any_sparse_) {
    attend_row_lists(layer, q, out);
  } else {
    const int64_t width = int64_t{config_.shape.kv_heads} * config_.q_per_kv * config_.shape.head_dim;
    kernels_.attention(stream_, {.pool = pages_.view(layer),
                                 .block_size = config_.shape.block_size,
                                 .head_dim = config_.shape.head_dim,
                                 .kv_heads = config_.shape.kv_heads,
                                 .q_per_kv = config_.q_per_kv,
                                 .groups = config_.max_sequences,
                                 .row_begin = row_begin_.data(),
                                 .positions = positions_.data(),
                                 .entries = &list_[at(layer, 0, 0) * static_cast<size_t>(list_stride_)],
                                 .entry_count = &list_count_[at(layer, 0, 0)],
                                 .list_stride = list_stride_,
                                 .q = q,
                                 .q_stride = width,
                                 .out = out,
                                 .out_stride = width});
  }
  publish(layer);
}

// Attention is done with the victims: the next step's lists become current and the plan goes to the transfer.
void KvCore::publish(int32_t layer) {
  std::vector<TransferItem> plan;
  if (any_sparse_) {
    const auto stride = static_cast<size_t>(list_stride_);
    for (const StepSequence& st : steps_) {
      if (!seq(st.sequence).sparse) continue;
      for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
        const size_t from = at(0, st.sequence, h), to = at(layer, st.sequence, h);
        std::copy_n(&next_list_[from * stride], next_list_count_[from], &list_[to * stride]);
        list_count_[to] = next_list_count_[from];
      }
    }
    plan = fetch_items(layer, fetches_.data(), fetch_count_.data());
    stats_.blocks += static_cast<int64_t>(plan.size());
    stats_.bytes += static_cast<int64_t>(plan.size()) * config_.shape.block_head_bytes();
  }
  if (!plan.empty()) stream_.synchronize();
  transfer_->publish(layer, step_, std::move(plan));
}

std::vector<TransferItem> KvCore::fetch_items(int32_t layer, const kernels::Fetch* fetches,
                                              const int32_t* counts) const {
  std::vector<TransferItem> items;
  const kernels::PoolView pool = pages_.view(layer);
  for (const StepSequence& st : steps_) {
    const Sequence& s = sequence(st.sequence);
    if (!s.sparse) continue;
    for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
      const size_t i = at(0, st.sequence, h);
      for (int32_t j = 0; j < counts[i]; ++j) {
        const kernels::Fetch& f = fetches[i * static_cast<size_t>(config_.resident_blocks) + static_cast<size_t>(j)];
        items.push_back({.part = {s.homes[static_cast<size_t>(f.block)], layer},
                         .offset = h * config_.shape.block_head_bytes(),
                         .to = pool.k(s.page_of_slot[static_cast<size_t>(f.slot)], h, 0),
                         .sequence = st.sequence});
      }
    }
  }
  return items;
}

int32_t KvCore::verified(int32_t sequence) const { return verified_[static_cast<size_t>(sequence)]; }

void KvCore::end_step(std::span<const StepOutcome> outcomes, double seconds) {
  OASIS_CHECK(outcomes.size() == steps_.size(), "{} outcomes of {} sequences", outcomes.size(), steps_.size());
  for (const auto& [sequence, block] : sealing_) {
    if (away(sequence)) continue;  // sealed on the device, home record and all
    const Sequence& s = seq(sequence);
    summaries_.read(s.summary_pages[static_cast<size_t>(block)],
                    homes_.tier().meta(s.homes[static_cast<size_t>(block)]));
  }
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const StepOutcome& o = outcomes[i];
    OASIS_CHECK(o.sequence == steps_[i].sequence, "outcomes come in the order of the step");
    Sequence& s = seq(o.sequence);
    OASIS_CHECK(o.advanced >= 1 && o.advanced <= verified(o.sequence), "advanced by {} of {} rows", o.advanced,
                verified(o.sequence));
    s.sealed = block_of(s.position + 1);
    s.summary_pages.resize(static_cast<size_t>(s.sealed));
    s.predicted_candidates = candidates_[static_cast<size_t>(o.sequence)];
    if (switching_[static_cast<size_t>(o.sequence)]) become_sparse(o.sequence);
    s.position += o.advanced;
    s.advanced = o.advanced;
    ++s.step;
  }
  take_errors();
  ++stats_.steps;
  const double busy = transfer_->busy_seconds() - busy_before_ + mirror_busy_;
  stats_.transfer_seconds += busy;
  policy_->end_step({.seconds = seconds,
                     .wait_seconds = step_wait_,
                     .transfer_seconds = busy,
                     .fetched = transfer_->moved() - moved_before_ + mirror_moved_,
                     .refused = stats_.refused_cap - refused_before_,
                     .block_head_bytes = config_.shape.block_head_bytes()});
  // This step has waited for the last step's transfers, layer by layer, so what was freed then is at rest.
  pages_.allocator().release_through(step_ - 1);
  summaries_.allocator().release_through(step_ - 1);
  homes_.release_through(step_ - 1);
}

}  // namespace oasis::lookahead
