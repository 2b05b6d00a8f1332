#include "oasis/lookahead/cuda/device_core.h"

#include <algorithm>
#include <cstring>

#include "oasis/base/units.h"

namespace oasis::lookahead {
namespace {

constexpr int64_t kAlign = 256;

// Hands out pieces of one allocation, or only counts them where there is no base.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  void take(T*& piece, int64_t count) {
    if (base_) piece = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

}  // namespace

DeviceCore::DeviceCore(Device& device, KvCore& core, int transfer_ctas)
    : device_(device),
      core_(core),
      config_(core.config_),
      kernels_(kernels::kernels_for(device.backend())),
      transfer_ctas_(transfer_ctas),
      away_(static_cast<size_t>(core.config_.max_sequences)),
      pages_known_(away_.size()) {
  int gpu = 0;
  OASIS_CUDA_CHECK(cudaGetDevice(&gpu));
  transfer_stream_ = std::make_unique<cuda::CudaStream>(gpu, true, transfer_ctas);
  home_stream_ = std::make_unique<cuda::CudaStream>(gpu, false, 0);
  for (auto* events : {&sealed_, &home_}) {
    events->resize(static_cast<size_t>(config_.shape.layers));
    for (cudaEvent_t& event : *events) OASIS_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
}

DeviceCore::~DeviceCore() {
  drain();
  core_.set_mirror(nullptr);
  for (auto* events : {&sealed_, &home_}) {
    for (cudaEvent_t event : *events) cudaEventDestroy(event);
  }
}

Result<std::unique_ptr<DeviceCore>> DeviceCore::create(Device& device, KvCore& core, int transfer_ctas) {
  const CoreConfig& c = core.config_;
  if (c.fetch == FetchMode::kExact || core.homes_.tier().layer_stride() == 0 || c.hooks.predict || c.hooks.delay ||
      c.hooks.poison || c.shape.type != kv::KvType::kBf16 || c.max_draft_rows + 1 > kMaxRows) {
    return unsupported("steps that need the host inside (exact fetching, a file tier, test hooks) are not captured");
  }
  std::unique_ptr<DeviceCore> d(new DeviceCore(device, core, transfer_ctas));
  OASIS_RETURN_IF_ERROR(d->allocate());
  core.set_mirror(d.get());
  return d;
}

int64_t DeviceCore::lay_out(std::byte* base) {
  const CoreConfig& c = config_;
  const int64_t sequences = c.max_sequences, heads = c.shape.kv_heads, layers = c.shape.layers;
  const int64_t one = sequences * heads, all = layers * one;
  kernels::StepTables& t = fixed_;
  t.slot_stride = std::max(c.slots(), c.dense_blocks);
  t.fetch_stride = std::min<int64_t>(
      c.resident_blocks, c.fetch == FetchMode::kAdaptive ? c.resident_blocks : int64_t{c.cap()} * c.max_draft_rows);
  t.fetch_stride = std::max<int64_t>(t.fetch_stride, 1);
  list_stride_ = t.list_stride = KvCore::list_stride(c);
  copy_stride_ = one * t.fetch_stride;
  Carver carve(base);
  // What one upload a step brings comes first.
  carve.take(positions_, sequences * kMaxRows);
  carve.take(next_positions_, sequences);
  carve.take(score_begin_, sequences + 1);
  carve.take(candidates_, sequences);
  carve.take(measured_candidates_, sequences);
  carve.take(budget_, 1);
  kernels::StepItem* items = nullptr;
  carve.take(items, sequences);
  t.items = items;
  upload_bytes_ = carve.bytes();
  carve.take(map_memory_, KvCore::map_bytes(c));
  carve.take(t.maps, all);
  carve.take(t.page_of_slot, sequences * t.slot_stride);
  carve.take(t.summary_pages, sequences * c.max_blocks);
  carve.take(t.homes, sequences * c.max_blocks);
  carve.take(t.select_items, layers * sequences);
  carve.take(t.fetches, all * t.fetch_stride);
  carve.take(t.fetch_count, all);
  carve.take(t.select_stats, all * 4);
  carve.take(flags_, 1);
  carve.take(scores_, one * c.max_blocks);
  carve.take(predicted_scores_, one * c.resident_blocks);
  carve.take(top_, one * c.attend_blocks);
  carve.take(top_count_, one);
  carve.take(q_scoring_, sequences * c.max_draft_rows * heads * c.q_per_kv * c.shape.head_dim);
  carve.take(summary_tables_, sequences);
  carve.take(copies_, layers * copy_stride_);
  carve.take(group_begin_, (kMaxRows + 1) * (sequences + 1));
  return carve.bytes();
}

Status DeviceCore::allocate() {
  const CoreConfig& c = config_;
  OASIS_ASSIGN_OR_RETURN(memory_, device_.allocate(static_cast<size_t>(lay_out(nullptr))));
  lay_out(memory_.data());
  OASIS_ASSIGN_OR_RETURN(pinned_,
                         device_.allocate_pinned(static_cast<size_t>(upload_bytes_) + sizeof(kernels::StepFlags)));
  staged_ = pinned_.data();
  flags_home_ = reinterpret_cast<kernels::StepFlags*>(staged_ + upload_bytes_);

  kernels::StepTables& t = fixed_;
  t.sequences = c.max_sequences, t.layers = c.shape.layers, t.kv_heads = c.shape.kv_heads, t.q_per_kv = c.q_per_kv;
  t.head_dim = c.shape.head_dim, t.block_size = c.shape.block_size, t.slots = c.slots();
  t.resident = c.resident_blocks, t.attended = c.attend_blocks, t.max_blocks = c.max_blocks;
  const auto sections = KvCore::map_sections(c);
  predicted_ = reinterpret_cast<int32_t*>(map_memory_ + sections[1].offset);
  predicted_count_ = reinterpret_cast<int32_t*>(map_memory_ + sections[2].offset);
  t.lists = reinterpret_cast<kernels::ListEntry*>(map_memory_ + sections[3].offset);
  t.list_count = reinterpret_cast<int32_t*>(map_memory_ + sections[4].offset);
  spread_ = reinterpret_cast<float*>(map_memory_ + sections[5].offset);
  t.home_layer_stride = core_.homes_.tier().layer_stride();
  t.pool = core_.pages_.view(0);
  t.summaries = core_.summaries_.view(0);
  if (c.shape.layers > 1) {
    t.pool_layer_stride = core_.pages_.view(1).base - t.pool.base;
    t.summary_layer_stride = core_.summaries_.view(1).base - t.summaries.base;
  }
  Stream& stream = device_.foreground();
  std::vector<kernels::HeadMap> maps = core_.maps_;
  const auto to_device = [&](int32_t*& p) {
    p = reinterpret_cast<int32_t*>(map_memory_ + (reinterpret_cast<std::byte*>(p) - core_.map_memory_.data()));
  };
  for (kernels::HeadMap& m : maps) to_device(m.slot_of_block), to_device(m.block_of_slot), to_device(m.last_predicted);
  stream.copy(t.maps, maps.data(), maps.size() * sizeof(maps[0]));
  std::vector<const int32_t*> tables;
  for (int64_t s = 0; s < c.max_sequences; ++s) tables.push_back(t.summary_pages + s * c.max_blocks);
  stream.copy(summary_tables_, tables.data(), tables.size() * sizeof(tables[0]));
  std::vector<int32_t> begin;
  for (int32_t rows = 0; rows <= kMaxRows; ++rows) {
    for (int32_t s = 0; s <= c.max_sequences; ++s) begin.push_back(s * rows);
  }
  stream.copy(group_begin_, begin.data(), begin.size() * sizeof(begin[0]));
  *flags_home_ = kernels::StepFlags{};
  stream.copy(flags_, flags_home_, sizeof *flags_home_);
  return {};
}

kernels::StepTables DeviceCore::tables(const StepKind& kind) const {
  kernels::StepTables t = fixed_;
  t.batch = kind.batch;
  t.rows = kind.rows;
  return t;
}

StepKind DeviceCore::kind_of(std::span<const StepSequence>, int32_t batch, int32_t rows) const {
  return {.batch = batch,
          .rows = rows,
          .sparse = core_.any_sparse_ || core_.any_switching_,
          .measures = core_.any_sparse_ && core_.agreement_step_,
          .ranks_all = core_.any_switching_};
}

// --- Sequences come and go

void DeviceCore::copy_state(int32_t sequence, bool up) {
  auto& stream = cuda::as_cuda(device_.foreground());
  const auto sections = KvCore::map_sections(config_);
  for (size_t i = 0; i + 1 < sections.size(); ++i) {
    const auto unit = static_cast<size_t>(sections[i].bytes);
    const size_t pitch = unit * static_cast<size_t>(config_.max_sequences);
    const int64_t offset = sections[i].offset + sequence * sections[i].bytes;
    std::byte* here = core_.map_memory_.data() + offset;
    std::byte* there = map_memory_ + offset;
    OASIS_CUDA_CHECK(cudaMemcpy2DAsync(up ? there : here, pitch, up ? here : there, pitch, unit,
                                       static_cast<size_t>(config_.shape.layers), cudaMemcpyDefault, stream.handle()));
  }
  stream.synchronize();
}

void DeviceCore::upload_tables(int32_t sequence) {
  const Sequence& s = core_.seq(sequence);
  Stream& stream = device_.foreground();
  kv::Tier& tier = core_.homes_.tier();
  stream.copy(fixed_.page_of_slot + int64_t{sequence} * fixed_.slot_stride, s.page_of_slot.data(),
              s.page_of_slot.size() * sizeof(int32_t));
  stream.copy(fixed_.summary_pages + int64_t{sequence} * config_.max_blocks, s.summary_pages.data(),
              s.summary_pages.size() * sizeof(int32_t));
  std::vector<std::byte*> homes;
  for (int32_t b = 0; b < s.sealed; ++b) {
    const kv::PartKey key{s.homes[static_cast<size_t>(b)], 0};
    homes.push_back(const_cast<std::byte*>(tier.acquire(key)));
    tier.release(key);
  }
  stream.copy(fixed_.homes + int64_t{sequence} * config_.max_blocks, homes.data(), homes.size() * sizeof(homes[0]));
  pages_known_[static_cast<size_t>(sequence)] = static_cast<int32_t>(s.page_of_slot.size());
}

void DeviceCore::bring_home(int32_t sequence) {
  if (!away(sequence)) return;
  drain();
  copy_state(sequence, false);
  away_[static_cast<size_t>(sequence)] = 0;
  forget(sequence);
}

void DeviceCore::moved(int32_t sequence, int32_t block) {
  const Sequence& s = core_.seq(sequence);
  const auto b = static_cast<size_t>(block);
  Stream& stream = device_.foreground();
  const kv::PartKey key{s.homes[b], 0};
  auto* home = const_cast<std::byte*>(core_.homes_.tier().acquire(key));
  core_.homes_.tier().release(key);
  const int64_t at = int64_t{sequence} * config_.max_blocks + block;
  stream.copy(fixed_.homes + at, &home, sizeof home);
  stream.copy(fixed_.summary_pages + at, &s.summary_pages[b], sizeof(int32_t));
}

// An index that nobody has: its lists are empty, so that a step with a larger batch reads nothing for it.
void DeviceCore::forget(int32_t sequence) {
  auto& stream = cuda::as_cuda(device_.foreground());
  const size_t unit = static_cast<size_t>(config_.shape.kv_heads) * sizeof(int32_t);
  OASIS_CUDA_CHECK(cudaMemset2DAsync(fixed_.list_count + at(0, sequence),
                                     unit * static_cast<size_t>(config_.max_sequences), 0, unit,
                                     static_cast<size_t>(config_.shape.layers), stream.handle()));
  away_[static_cast<size_t>(sequence)] = 0;
}

void DeviceCore::drain() {
  if (in_flight_) transfer_stream_->synchronize();
  in_flight_ = false;
}

// --- A step

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
                         config_.shape.block_head_bytes(), transfer_ctas_, flags_);
  in_flight_ = true;
}

void DeviceCore::prologue(cuda::CudaStream& stream, const StepKind& kind) {
  kernels::step_prologue(stream, tables(kind), kind.sparse ? flags_ : nullptr);
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
  kernels_.score(stream, {.summaries = core_.summaries_.view(layer),
                          .head_dim = c.shape.head_dim,
                          .kv_heads = c.shape.kv_heads,
                          .q_per_kv = c.q_per_kv,
                          .items = kind.batch,
                          .row_begin = score_begin_,
                          .candidates = candidates_,
                          .summary_pages = summary_tables_,
                          .q = q_scoring_,
                          .q_stride = int64_t{c.shape.kv_heads} * c.q_per_kv * c.shape.head_dim,
                          .scores = scores_,
                          .score_stride = c.max_blocks});
  kernels_.topk(stream, {.scores = scores_,
                         .score_stride = c.max_blocks,
                         .candidates = candidates_,
                         .items = kind.batch,
                         .heads = c.shape.kv_heads,
                         .k = kind.ranks_all ? c.resident_blocks : c.attend_blocks,
                         .pin_first = c.score == BlockScore::kShrunk,
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

// Against the top-K of x_t's own query over the candidates that P was chosen from. Row 0 of each item is x_t's.
void DeviceCore::measure(cuda::CudaStream& stream, const StepKind& kind, int layer, const float* q) {
  const CoreConfig& c = config_;
  kernels_.score(stream, {.summaries = core_.summaries_.view(layer),
                          .head_dim = c.shape.head_dim,
                          .kv_heads = c.shape.kv_heads,
                          .q_per_kv = c.q_per_kv,
                          .items = kind.batch,
                          .row_begin = group_begin_ + (c.max_sequences + 1),
                          .candidates = measured_candidates_,
                          .summary_pages = summary_tables_,
                          .q = q,
                          .q_stride = int64_t{kind.rows} * c.shape.kv_heads * c.q_per_kv * c.shape.head_dim,
                          .scores = scores_,
                          .score_stride = c.max_blocks});
  kernels_.topk(stream, {.scores = scores_,
                         .score_stride = c.max_blocks,
                         .candidates = measured_candidates_,
                         .items = kind.batch,
                         .heads = c.shape.kv_heads,
                         .k = c.attend_blocks,
                         .pin_first = c.score == BlockScore::kShrunk,
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
  const int64_t width = int64_t{c.shape.kv_heads} * c.q_per_kv * c.shape.head_dim;
  kernels_.attention(stream, {.pool = core_.pages_.view(layer),
                              .block_size = c.shape.block_size,
                              .head_dim = c.shape.head_dim,
                              .kv_heads = c.shape.kv_heads,
                              .q_per_kv = c.q_per_kv,
                              .groups = kind.batch,
                              .max_group_rows = kind.rows,
                              .row_begin = group_begin_ + kind.rows * (c.max_sequences + 1),
                              .positions = positions_,
                              .entries = fixed_.lists + at(layer, 0) * list_stride_,
                              .entry_count = fixed_.list_count + at(layer, 0),
                              .list_stride = list_stride_,
                              .q = q,
                              .q_stride = width,
                              .out = out,
                              .out_stride = width});
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
}

void DeviceCore::end() {
  for (const kv::PartKey key : writing_) core_.homes_.tier().end_write(key);
  writing_.clear();
  if (config_.serial) drain();
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
  if (now.timed_out != 0) {
    for (const StepSequence& st : core_.steps_) {
      Status& error = core_.seq(st.sequence).error;
      if (error.ok()) {
        error =
            Status(StatusCode::kInternal,
                   fmt::format("the transfer of layer {} did not end within its time limit: the GPU or the link to it "
                               "is stuck",
                               now.timed_out - 1));
      }
    }
  }
  last_ = now;
}

}  // namespace oasis::lookahead
