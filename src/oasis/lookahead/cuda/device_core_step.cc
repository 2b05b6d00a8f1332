// A step on the GPU: what is uploaded before it, the chain of kernels, what comes of it.
#include <algorithm>

#include "oasis/lookahead/cuda/device_core.h"

namespace oasis::lookahead {

kernels::StepTables DeviceCore::tables(const StepKind& kind) const {
  kernels::StepTables t = fixed_;
  t.batch = kind.batch;
  t.rows = kind.rows;
  return t;
}

StepKind DeviceCore::kind_of(int32_t batch, int32_t rows) const {
  return {.batch = batch,
          .rows = rows,
          .sparse = core_.any_sparse_ || core_.any_switching_,
          .measures = core_.any_sparse_ && core_.agreement_step_,
          .ranks_all = core_.any_switching_};
}

// The home that the block is written through to. The parts of one home lie at even distances.
Status DeviceCore::seal_into(int32_t sequence, int32_t block, kernels::StepItem& item) {
  const Sequence& s = core_.seq(sequence);
  kv::Tier& tier = core_.homes_.tier();
  const kv::HomeId home = s.homes[static_cast<size_t>(block)];
  std::byte* first = nullptr;
  for (int32_t layer = 0; layer < config_.shape.layers; ++layer) {
    auto part = tier.begin_write({home, layer});
    OASIS_RETURN_IF_ERROR(part.status());
    writing_.push_back({home, layer});
    if (layer == 0) first = *part;
    OASIS_CHECK(*part - first == layer * fixed_.home_layer_stride, "the parts of a home do not lie evenly");
  }
  item.seal_home = first;
  item.seal_meta = tier.meta(home);
  return {};
}

void DeviceCore::fill_item(const StepSequence& st, kernels::StepItem& item) {
  Sequence& s = core_.seq(st.sequence);
  const FetchLimits limits = core_.policy_->limits(s.advanced);
  item.rows = st.rows;
  item.position = s.position;
  item.step = s.step;
  item.sparse = s.sparse;
  item.candidates = core_.candidates_[static_cast<size_t>(st.sequence)];
  item.sealed_begin = s.sealed;
  item.open_end = core_.open_end(s.position, s.max_blocks);
  item.cap = std::min<int32_t>(limits.cap, static_cast<int32_t>(fixed_.fetch_stride));
  item.margin_threshold = limits.margin_threshold;
  int32_t& known = pages_known_[static_cast<size_t>(st.sequence)];
  const auto owned = static_cast<int32_t>(s.page_of_slot.size());
  if (!s.sparse && known < owned) {
    OASIS_CHECK(owned == known + 1, "{} new pages in one step", owned - known);
    item.dense_block = known;
    item.dense_page = s.page_of_slot[static_cast<size_t>(known)];
    known = owned;
  }
}

void DeviceCore::begin(cuda::CudaStream& stream, std::span<const StepSequence> steps, const StepKind& kind) {
  if (!kind.sparse) drain();
  for (const StepSequence& st : steps) {
    if (away(st.sequence)) continue;
    copy_state(st.sequence, true);
    upload_tables(st.sequence);
    away_[static_cast<size_t>(st.sequence)] = 1;
  }
  const auto staged = [&](const auto* device) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(device)>>;
    return reinterpret_cast<T*>(staged_ + (reinterpret_cast<const std::byte*>(device) - memory_.data()));
  };
  auto* items = staged(fixed_.items);
  std::fill_n(items, kind.batch, kernels::StepItem{});
  std::fill_n(staged(positions_), kind.batch * kind.rows, -1);
  std::fill_n(staged(next_positions_), kind.batch, 0);
  std::fill_n(staged(candidates_), kind.batch, 0);
  std::fill_n(staged(measured_candidates_), kind.batch, 0);
  writing_.clear();
  for (const StepSequence& st : steps) {
    kernels::StepItem& item = items[st.sequence];
    fill_item(st, item);
    for (int32_t r = 0; r < st.rows; ++r) staged(positions_)[st.sequence * kind.rows + r] = item.position + r;
    staged(next_positions_)[st.sequence] = item.position + 1;
    staged(candidates_)[st.sequence] = item.candidates;
    const Sequence& s = core_.seq(st.sequence);
    staged(measured_candidates_)[st.sequence] = s.sparse ? s.predicted_candidates : 0;
  }
  for (const auto& [sequence, block] : core_.sealing_) {
    kernels::StepItem& item = items[sequence];
    item.seal_block = block;
    item.seal_summary = core_.seq(sequence).summary_pages[static_cast<size_t>(block)];
    Status& error = core_.seq(sequence).error;
    if (error.ok()) error = seal_into(sequence, block, item);
  }
  int32_t scoring = 0;
  for (int32_t i = 0; i < kind.batch; ++i) {
    staged(score_begin_)[i] = items[i].score_begin = scoring;
    if (items[i].candidates > 0) scoring += std::max(1, items[i].rows - 1);
  }
  staged(score_begin_)[kind.batch] = scoring;
  if (const int64_t* budget = core_.policy_->budget()) *staged(budget_) = *budget;
  OASIS_CUDA_CHECK(cudaMemcpyAsync(memory_.data(), staged_, static_cast<size_t>(upload_bytes_), cudaMemcpyHostToDevice,
                                   stream.handle()));
}

void DeviceCore::start_transfer(const StepKind& kind) {
  if (!kind.sparse) return;
  kernels::step_transfer(*transfer_stream_, ++step_, config_.shape.layers, copies_, copy_stride_,
                         config_.shape.block_head_bytes(), transfer_ctas_, flags_, stamps_);
  in_flight_ = true;
}

void DeviceCore::prologue(cuda::CudaStream& stream, const StepKind& kind) {
  kernels::step_prologue(stream, tables(kind), kind.sparse ? flags_ : nullptr);
  marks_.clear();
  mark(stream, kind, "");
}

void DeviceCore::mark(cuda::CudaStream& stream, const StepKind& kind, const char* name, int layer) {
  if (!config_.timeline || !kind.sparse) return;
  kernels::step_stamp(stream, stamps_, static_cast<int64_t>(marks_.size()), flags_);
  marks_.push_back({name, layer});
}

std::vector<TimelineSpan> DeviceCore::timeline() {
  drain();
  std::vector<int64_t> times(stamp_memory_.bytes() / sizeof(int64_t));
  device_.foreground().copy(times.data(), stamp_memory_.data(), stamp_memory_.bytes());
  device_.foreground().synchronize();
  const int64_t* transfers = times.data() + kernels::StepStamps::kSteps * stamps_.marks;
  std::vector<TimelineSpan> spans;
  for (int64_t step = std::max<int64_t>(1, step_ - 1); step <= step_ && !times.empty(); ++step) {
    const int64_t* at = times.data() + step % kernels::StepStamps::kSteps * stamps_.marks;
    for (size_t i = 1; i < marks_.size(); ++i) {
      spans.push_back({"step", marks_[i].name, step, marks_[i].layer, at[i - 1], at[i]});
    }
    const int32_t layers = config_.shape.layers;
    for (int32_t l = 0; l < layers; ++l) {
      const int64_t* copied = transfers + (step % kernels::StepStamps::kSteps * layers + l) * 2;
      spans.push_back({"transfer", "gather", step, l, copied[0], copied[1]});
    }
  }
  int64_t first = INT64_MAX;
  for (const TimelineSpan& s : spans) first = std::min(first, s.begin_ns);
  for (TimelineSpan& s : spans) s.begin_ns -= first, s.end_ns -= first;
  return spans;
}

void DeviceCore::after_qkv(cuda::CudaStream& stream, const StepKind& kind, int layer, kernels::QkvParams qkv) {
  const CoreConfig& c = config_;
  const kernels::StepTables t = tables(kind);
  qkv.q_scoring = kind.sparse ? q_scoring_ : nullptr;
  kernels::step_qkv(stream, t, layer, qkv);
  kernels::step_seal(stream, t, layer, c.beta);
  OASIS_CUDA_CHECK(cudaEventRecord(sealed_[static_cast<size_t>(layer)], stream.handle()));
  OASIS_CUDA_CHECK(cudaStreamWaitEvent(home_stream_->handle(), sealed_[static_cast<size_t>(layer)]));
  kernels::step_seal_home(*home_stream_, t, layer);
  OASIS_CUDA_CHECK(cudaEventRecord(home_[static_cast<size_t>(layer)], home_stream_->handle()));
  if (!kind.sparse) return;
  if (kind.measures) measure(stream, kind, layer, qkv.q);
  rank(stream, kind, layer,
       {.row_begin = score_begin_,
        .candidates = candidates_,
        .q = q_scoring_,
        .q_stride = width(),
        .k = kind.ranks_all ? c.resident_blocks : c.attend_blocks,
        .blocks = predicted_ + at(layer, 0) * c.resident_blocks,
        .block_scores = c.fetch == FetchMode::kAdaptive ? predicted_scores_ : nullptr,
        .block_stride = c.resident_blocks,
        .count = predicted_count_ + at(layer, 0)});
  if (c.forced_misses >= 0) {
    kernels::step_force_misses(stream, t, layer, c.forced_misses, predicted_ + at(layer, 0) * c.resident_blocks,
                               c.resident_blocks, predicted_count_ + at(layer, 0));
  }
  if (kind.ranks_all) kernels::step_clamp(stream, t, predicted_count_ + at(layer, 0));
}

// The best k blocks of every item and head, by the item's rows of q.
void DeviceCore::rank(cuda::CudaStream& stream, const StepKind& kind, int layer, const Ranking& r) {
  const CoreConfig& c = config_;
  kernels_.score(stream, {.summaries = core_.summaries_.view(layer),
                          .head_dim = c.shape.head_dim,
                          .kv_heads = c.shape.kv_heads,
                          .q_per_kv = c.q_per_kv,
                          .items = kind.batch,
                          .row_begin = r.row_begin,
                          .candidates = r.candidates,
                          .summary_pages = summary_tables_,
                          .q = r.q,
                          .q_stride = r.q_stride,
                          .scores = scores_,
                          .score_stride = c.max_blocks});
  kernels_.topk(stream, {.scores = scores_,
                         .score_stride = c.max_blocks,
                         .candidates = r.candidates,
                         .items = kind.batch,
                         .heads = c.shape.kv_heads,
                         .k = r.k,
                         .pin_first = c.score == BlockScore::kShrunk,
                         .blocks = r.blocks,
                         .block_scores = r.block_scores,
                         .block_stride = r.block_stride,
                         .count = r.count});
}

// Against the top-K of x_t's own query over the candidates that P was chosen from. Row 0 of each item is x_t's.
void DeviceCore::measure(cuda::CudaStream& stream, const StepKind& kind, int layer, const float* q) {
  const CoreConfig& c = config_;
  rank(stream, kind, layer,
       {.row_begin = group_begin_ + (c.max_sequences + 1),
        .candidates = measured_candidates_,
        .q = q,
        .q_stride = kind.rows * width(),
        .k = c.attend_blocks,
        .blocks = top_,
        .block_stride = c.attend_blocks,
        .count = top_count_});
  kernels::step_agreement(stream, tables(kind), layer,
                          {.candidates = measured_candidates_,
                           .top = top_,
                           .top_count = top_count_,
                           .top_stride = c.attend_blocks,
                           .predicted = predicted_ + at(layer, 0) * c.resident_blocks,
                           .predicted_count = predicted_count_ + at(layer, 0),
                           .predicted_stride = c.resident_blocks},
                          flags_);
}

void DeviceCore::attention(cuda::CudaStream& stream, const StepKind& kind, int layer, const float* q, float* out) {
  const CoreConfig& c = config_;
  if (kind.sparse) kernels::step_wait(stream, layer, flags_);
  mark(stream, kind, "wait", layer);
  kernels_.attention(stream, {.pool = core_.pages_.view(layer),
                              .block_size = c.shape.block_size,
                              .head_dim = c.shape.head_dim,
                              .kv_heads = c.shape.kv_heads,
                              .q_per_kv = c.q_per_kv,
                              .groups = kind.batch,
                              .max_group_rows = kind.rows,
                              .row_begin = group_begin_ + kind.rows * (c.max_sequences + 1),
                              .positions = positions_,
                              .entries = fixed_.lists + at(layer, 0) * fixed_.list_stride,
                              .entry_count = fixed_.list_count + at(layer, 0),
                              .list_stride = fixed_.list_stride,
                              .q = q,
                              .q_stride = width(),
                              .out = out,
                              .out_stride = width()});
}

// Select comes after attention here: its list is only read by the next step, so one list a head is enough.
void DeviceCore::finish_layer(cuda::CudaStream& stream, const StepKind& kind, int layer) {
  if (!kind.sparse) return;
  const CoreConfig& c = config_;
  const kernels::StepTables& t = fixed_;
  const int64_t first = at(layer, 0);
  kernels_.select(stream, {.items = kind.batch,
                           .kv_heads = c.shape.kv_heads,
                           .item = t.select_items + int64_t{layer} * c.max_sequences,
                           .max_slots = c.slots(),
                           .max_blocks = c.max_blocks,
                           .predicted = predicted_ + first * c.resident_blocks,
                           .predicted_scores = c.fetch == FetchMode::kAdaptive ? predicted_scores_ : nullptr,
                           .predicted_count = predicted_count_ + first,
                           .predicted_stride = c.resident_blocks,
                           .spread = c.fetch == FetchMode::kAdaptive ? spread_ + first : nullptr,
                           .budget = c.fetch == FetchMode::kAdaptive ? budget_ : nullptr,
                           .fetches = t.fetches + first * t.fetch_stride,
                           .fetch_count = t.fetch_count + first,
                           .fetch_stride = t.fetch_stride,
                           .list = t.lists + first * t.list_stride,
                           .list_count = t.list_count + first,
                           .list_stride = t.list_stride,
                           .stats = t.select_stats + first * 4});
  OASIS_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), home_[static_cast<size_t>(layer)]));
  kernels::step_publish(stream, tables(kind), layer, copies_ + layer * copy_stride_, flags_);
}

void DeviceCore::epilogue(cuda::CudaStream& stream, const StepKind& kind) {
  OASIS_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), home_.back()));
  if (!kind.sparse) return;
  kernels::step_epilogue(stream, tables(kind), flags_);
  OASIS_CUDA_CHECK(cudaMemcpyAsync(flags_home_, flags_, sizeof *flags_home_, cudaMemcpyDeviceToHost, stream.handle()));
  OASIS_CUDA_CHECK(
      cudaMemcpyAsync(budget_home_, budget_, sizeof *budget_home_, cudaMemcpyDeviceToHost, stream.handle()));
}

void DeviceCore::end() {
  for (const kv::PartKey key : writing_) core_.homes_.tier().end_write(key);
  writing_.clear();
  if (config_.serial) drain();
  if (int64_t* budget = core_.policy_->budget(); budget && in_flight_) *budget = *budget_home_;
  const kernels::StepFlags now = in_flight_ || config_.serial ? *flags_home_ : last_;
  CoreStats& stats = core_.stats_;
  stats.hits += now.totals[0] - last_.totals[0];
  stats.misses += now.totals[1] - last_.totals[1];
  stats.refused_cap += now.totals[2] - last_.totals[2];
  stats.refused_absent += now.totals[3] - last_.totals[3];
  stats.admitted +=
      (now.totals[1] - now.totals[2] - now.totals[3]) - (last_.totals[1] - last_.totals[2] - last_.totals[3]);
  stats.blocks += now.copied - last_.copied;
  stats.bytes += (now.copied - last_.copied) * config_.shape.block_head_bytes();
  for (size_t l = 0; l < static_cast<size_t>(config_.shape.layers); ++l) {
    const int64_t count = now.measured[l] - last_.measured[l];
    const double agreement = now.agreement[l] - last_.agreement[l];
    stats.agreement_sum += agreement;
    stats.agreement_count += count;
    stats.cover_sum += now.cover[l] - last_.cover[l];
    stats.layer_agreement_sum[l] += agreement;
    stats.layer_agreement_count[l] += count;
  }
  core_.step_wait_ = static_cast<double>(now.waited_ns - last_.waited_ns) * 1e-9;
  stats.wait_seconds += core_.step_wait_;
  core_.mirror_busy_ = static_cast<double>(now.transfer_ns - last_.transfer_ns) * 1e-9;
  core_.mirror_moved_ = now.copied - last_.copied;
  if (now.timed_out != 0) recover(now);
  last_ = now;
  last_.timed_out = 0;
}

// A transfer gave up: the sequences of the step fail. Their slots may still be written until both streams have drained;
// then the flags start anew, and the engine goes on.
void DeviceCore::recover(const kernels::StepFlags& now) {
  for (const StepSequence& st : core_.steps_) {
    Status& error = core_.seq(st.sequence).error;
    if (!error.ok()) continue;
    error =
        Status(StatusCode::kInternal,
               fmt::format("the transfer of layer {} did not end within its time limit: the GPU or the link to it is "
                           "stuck",
                           now.timed_out - 1));
  }
  device_.foreground().synchronize();
  drain();
  kernels::StepFlags flags = now;
  flags.timed_out = 0;
  for (int l = 0; l < kernels::StepFlags::kMaxLayers; ++l) {
    flags.planned[l] = flags.done[l] = step_;
    flags.plan_count[l] = flags.plan_fill[l] = 0;
    flags.plan_ticket[l] = flags.done_ticket[l] = 0;
  }
  device_.foreground().copy(flags_, &flags, sizeof flags);
}

}  // namespace oasis::lookahead
