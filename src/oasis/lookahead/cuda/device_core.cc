#include "oasis/lookahead/cuda/device_core.h"

#include <algorithm>

#include "oasis/device/carver.h"

namespace oasis::lookahead {
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
      c.hooks.poison || c.max_draft_rows + 1 > kMaxRows || c.shape.layers > kernels::StepFlags::kMaxLayers ||
      c.shape.kv_heads > 256) {
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
  t.list_stride = KvCore::list_stride(c);
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
  OASIS_ASSIGN_OR_RETURN(pinned_, device_.allocate_pinned(static_cast<size_t>(upload_bytes_) +
                                                          sizeof(kernels::StepFlags) + sizeof(int64_t)));
  staged_ = pinned_.data();
  flags_home_ = reinterpret_cast<kernels::StepFlags*>(staged_ + upload_bytes_);
  budget_home_ = reinterpret_cast<int64_t*>(flags_home_ + 1);

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
  t.block_head_bytes = c.shape.block_head_bytes();
  t.pool = core_.pages_.view(0);
  t.summaries = core_.summaries_.view(0);
  if (c.shape.layers > 1) {
    t.pool_layer_stride = core_.pages_.view(1).base - t.pool.base;
    t.summary_layer_stride = core_.summaries_.view(1).base - t.summaries.base;
  }
  if (c.timeline) {
    stamps_.marks = 8 * (int64_t{c.shape.layers} + 1);
    const int64_t transfer = 2 * int64_t{c.shape.layers};
    const auto bytes = static_cast<size_t>(kernels::StepStamps::kSteps * (stamps_.marks + transfer)) * sizeof(int64_t);
    OASIS_ASSIGN_OR_RETURN(stamp_memory_, device_.allocate(bytes));
    stamps_.step = stamp_memory_.as<int64_t>();
    stamps_.transfer = stamps_.step + kernels::StepStamps::kSteps * stamps_.marks;
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

// Where an addressable tier has the home's part of layer 0, for good.
std::byte* DeviceCore::first_part(kv::HomeId home) const {
  kv::Tier& tier = core_.homes_.tier();
  const std::byte* part = tier.acquire({home, 0});
  tier.release({home, 0});
  return const_cast<std::byte*>(part);
}

void DeviceCore::upload_tables(int32_t sequence) {
  const Sequence& s = core_.seq(sequence);
  Stream& stream = device_.foreground();
  stream.copy(fixed_.page_of_slot + int64_t{sequence} * fixed_.slot_stride, s.page_of_slot.data(),
              s.page_of_slot.size() * sizeof(int32_t));
  stream.copy(fixed_.summary_pages + int64_t{sequence} * config_.max_blocks, s.summary_pages.data(),
              s.summary_pages.size() * sizeof(int32_t));
  std::vector<std::byte*> homes;
  for (int32_t b = 0; b < s.sealed; ++b) homes.push_back(first_part(s.homes[static_cast<size_t>(b)]));
  stream.copy(fixed_.homes + int64_t{sequence} * config_.max_blocks, homes.data(), homes.size() * sizeof(homes[0]));
  pages_known_[static_cast<size_t>(sequence)] = static_cast<int32_t>(s.page_of_slot.size());
}

void DeviceCore::bring_home(int32_t sequence) {
  if (!away(sequence)) return;
  drain();
  copy_state(sequence, false);
  forget(sequence);
}

void DeviceCore::moved(int32_t sequence, int32_t block) {
  const Sequence& s = core_.seq(sequence);
  const auto b = static_cast<size_t>(block);
  Stream& stream = device_.foreground();
  std::byte* home = first_part(s.homes[b]);
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

}  // namespace oasis::lookahead
