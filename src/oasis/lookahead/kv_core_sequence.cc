// The life of a sequence in the core: creation, prefill, the switch to sparse, the end.
#include <algorithm>
#include <cstring>

#include "oasis/base/units.h"
#include "oasis/lookahead/kv_core.h"

namespace oasis::lookahead {

KvCore::KvCore(Device& device, CoreConfig config, kv::HomeStore& homes, kv::PagePool pages, kv::SummaryPool summaries)
    : config_(std::move(config)),
      homes_(homes),
      kernels_(kernels::kernels_for(device.backend())),
      stream_(device.foreground()),
      rules_device_(device.backend() == Backend::kCpu ? nullptr : make_cpu_device(0)),
      rules_(kernels::kernels_for(Backend::kCpu)),
      rules_stream_(rules_device_ ? rules_device_->foreground() : device.foreground()),
      pages_(std::move(pages)),
      summaries_(std::move(summaries)),
      policy_(make_policy(config_)),
      transfer_(std::make_unique<Transfer>(device, homes.tier(), config_)) {}

KvCore::~KvCore() = default;

Result<std::unique_ptr<KvCore>> KvCore::create(Device& device, CoreConfig config, kv::HomeStore& homes) {
  OASIS_RETURN_IF_ERROR(validate(config));
  if (config.shape.type != kv::KvType::kBf16 && device.backend() != Backend::kCpu) {
    return unsupported("--kv-dtype fp8: attention on a GPU reads bf16; run on the CPU or leave it at bf16");
  }
  if (config.score == BlockScore::kMinMax) config.beta = 1;
  OASIS_ASSIGN_OR_RETURN(auto pages, kv::PagePool::create(device, config.shape, config.pages));
  OASIS_ASSIGN_OR_RETURN(auto summaries, kv::SummaryPool::create(device, config.shape, config.summary_pages));
  std::unique_ptr<KvCore> core(new KvCore(device, std::move(config), homes, std::move(pages), std::move(summaries)));
  const CoreConfig& c = core->config_;
  OASIS_ASSIGN_OR_RETURN(core->map_memory_, device.allocate_pinned(static_cast<size_t>(map_bytes(c))));
  if (device.backend() != Backend::kCpu) {  // pinned memory is not zeroed
    std::memset(core->map_memory_.data(), 0, core->map_memory_.bytes());
  }
  const auto heads = static_cast<size_t>(c.max_sequences) * static_cast<size_t>(c.shape.kv_heads);
  const auto rows = static_cast<size_t>(c.max_sequences) * static_cast<size_t>(1 + c.max_draft_rows);
  const auto width = static_cast<size_t>(c.shape.kv_heads) * static_cast<size_t>(c.q_per_kv * c.shape.head_dim);
  const size_t score_bytes = heads * static_cast<size_t>(c.max_blocks) * sizeof(float);
  OASIS_ASSIGN_OR_RETURN(core->scores_, device.allocate(score_bytes));
  OASIS_ASSIGN_OR_RETURN(core->q_scoring_, device.allocate(rows * width * sizeof(float)));
  if (c.fetch == FetchMode::kExact) {
    const auto groups = static_cast<size_t>(c.max_draft_rows) + 1;
    OASIS_ASSIGN_OR_RETURN(core->row_scores_, device.allocate(groups * score_bytes));
  }
  core->allocate_state();
  return core;
}

int64_t KvCore::list_stride(const CoreConfig& c) {
  return std::max<int64_t>(c.dense_blocks, std::min(c.attend_blocks, c.max_blocks) + CoreConfig::kOpenSlots + 1);
}

// One after another in map_memory_, [layers, sequences, ..] each: the maps of all heads (slot_of_block, block_of_slot,
// last_predicted), P, its count, the list, its count, the spread. Every section begins on a border of 64 bytes.
std::vector<KvCore::MapSection> KvCore::map_sections(const CoreConfig& c) {
  const int64_t heads = c.shape.kv_heads;
  std::vector<MapSection> sections;
  int64_t offset = 0;
  for (const int64_t ints : {c.max_blocks + 2 * int64_t{c.slots()}, int64_t{c.resident_blocks}, int64_t{1},
                             2 * list_stride(c), int64_t{1}, int64_t{1}}) {
    sections.push_back({.offset = offset, .bytes = heads * ints * 4});
    offset += (int64_t{c.shape.layers} * c.max_sequences * sections.back().bytes + 63) / 64 * 64;
  }
  sections.push_back({.offset = offset, .bytes = 0});  // the end
  return sections;
}

int64_t KvCore::map_bytes(const CoreConfig& c) { return map_sections(c).back().offset; }

void KvCore::allocate_state() {
  const auto& c = config_;
  const auto sequences = static_cast<size_t>(c.max_sequences), heads = static_cast<size_t>(c.shape.kv_heads);
  const size_t all = static_cast<size_t>(c.shape.layers) * sequences * heads, one = sequences * heads;
  const auto resident = static_cast<size_t>(c.resident_blocks);
  list_stride_ = list_stride(c);
  const std::vector<MapSection> sections = map_sections(c);
  const auto section = [&](size_t i) { return reinterpret_cast<int32_t*>(map_memory_.data() + sections[i].offset); };
  maps_.resize(all);
  int32_t* next = section(0);
  for (auto& m : maps_) {
    m.slot_of_block = std::exchange(next, next + c.max_blocks);
    m.block_of_slot = std::exchange(next, next + c.slots());
    m.last_predicted = std::exchange(next, next + c.slots());
  }
  predicted_ = section(1);
  predicted_count_ = section(2);
  list_ = reinterpret_cast<kernels::ListEntry*>(section(3));
  list_count_ = section(4);
  spread_ = reinterpret_cast<float*>(section(5));

  sequences_.resize(sequences);
  summary_page_of_home_.assign(static_cast<size_t>(homes_.capacity()), -1);
  traces_.resize(all);
  tables_.resize(sequences), items_.resize(sequences);
  row_begin_.resize(sequences + 1), first_row_.resize(sequences);
  candidates_.resize(sequences), switching_.resize(sequences), verified_.resize(sequences);
  top_.resize(one * resident), predicted_scores_.resize(one * resident), top_count_.resize(one);
  fetches_.resize(one * resident), wanted_.resize(one * resident);
  fetch_count_.resize(one), wanted_count_.resize(one), select_stats_.resize(one * 4);
  next_list_.resize(one * static_cast<size_t>(list_stride_)), next_list_count_.resize(one);
  demand_.resize(one * resident), demand_count_.resize(one);
  present_.resize(sequences * static_cast<size_t>(c.max_blocks));
  stats_.layer_agreement_sum.resize(static_cast<size_t>(c.shape.layers));
  stats_.layer_agreement_count.resize(static_cast<size_t>(c.shape.layers));
}

KvCore::Wanted KvCore::wanted(const StepSequence& step) const {
  const Sequence& s = sequence(step.sequence);
  Wanted w{.summary_pages = block_of(s.position + 1) - s.sealed};
  if (s.sparse) return w;
  int32_t pages = block_of(s.position + step.rows - 1) + 1;
  if (switches(s)) {
    pages = std::max(pages, config_.slots());
    w.summary_pages += config_.fetch == FetchMode::kExact;
  }
  w.pages = std::max(0, pages - static_cast<int32_t>(s.page_of_slot.size()));
  return w;
}

bool KvCore::switches(const Sequence& s) const {
  return !s.sparse && block_of(s.position + 1) > config_.resident_blocks && config_.dense_blocks < s.max_blocks;
}

int64_t KvCore::fast_bytes() const {
  return pages_.bytes() + summaries_.bytes() + static_cast<int64_t>(map_memory_.bytes());
}

int64_t KvCore::fast_bytes_peak() const {
  return pages_.allocator().in_use_peak() * config_.shape.page_bytes() +
         summaries_.allocator().in_use_peak() * config_.shape.summary_page_bytes() +
         static_cast<int64_t>(map_memory_.bytes());
}

Status KvCore::attach(int32_t sequence, int32_t max_blocks, int32_t reserved_homes) {
  Sequence& s = seq(sequence);
  OASIS_CHECK(!s.attached, "sequence {} is attached already", sequence);
  if (max_blocks > config_.max_blocks) {
    return invalid_argument("a sequence of {} blocks: at most {} are possible here", max_blocks, config_.max_blocks);
  }
  s = Sequence{};
  s.attached = true;
  s.since = step_;
  s.max_blocks = max_blocks;
  s.reserved_homes = reserved_homes;
  s.page_of_slot.reserve(static_cast<size_t>(std::max(max_blocks, config_.slots())));
  s.summary_pages.reserve(static_cast<size_t>(max_blocks) + 1);
  s.homes.reserve(static_cast<size_t>(max_blocks));
  return {};
}

void KvCore::free_pages_of(Sequence& s) {
  for (const int32_t page : s.page_of_slot) pages_.allocator().unref(page, step_);
  s.page_of_slot.clear();
  s.summary_pages.resize(
      static_cast<size_t>(std::min<int64_t>(s.sealed, static_cast<int64_t>(s.summary_pages.size()))));
  for (size_t b = 0; b < s.summary_pages.size(); ++b) {
    const int32_t page = s.summary_pages[b];
    summaries_.allocator().unref(page, step_);
    if (summaries_.allocator().refs(page) == 0) summary_page_of_home_[static_cast<size_t>(s.homes[b])] = -1;
  }
  s.summary_pages.clear();
  if (s.provisional_summary >= 0) summaries_.allocator().unref(s.provisional_summary, step_);
  s.provisional_summary = -1;
}

void KvCore::detach(int32_t sequence) {
  Sequence& s = seq(sequence);
  OASIS_CHECK(s.attached, "sequence {} is not attached", sequence);
  if (away(sequence)) mirror_->forget(sequence);
  free_pages_of(s);
  for (const kv::HomeId home : s.homes) homes_.unref(home, step_);
  homes_.unreserve(s.reserved_homes);
  s = Sequence{};
}

void KvCore::settle() {
  transfer_->drain();
  if (mirror_) mirror_->drain();
  take_errors();
  pages_.allocator().release_through(step_);
  summaries_.allocator().release_through(step_);
  homes_.release_through(step_);
}

// -1: none is left.
int32_t KvCore::take_page() {
  const int32_t page = pages_.allocator().allocate();
  if (page >= 0 && config_.hooks.poison) pages_.poison(page);
  return page;
}

void KvCore::take_errors() {
  for (TransferError& e : transfer_->take_errors()) {
    Sequence& s = seq(e.sequence);
    const bool own = s.attached && (e.step < 0 || e.step > s.since);
    if (own && s.error.ok()) s.error = std::move(e.status);
  }
}

// The live summary page of the home, shared, or a new one. -1: none is left.
int32_t KvCore::take_summary_page(kv::HomeId home) {
  int32_t& page = summary_page_of_home_[static_cast<size_t>(home)];
  if (page >= 0) {
    summaries_.allocator().ref(page);
  } else {
    page = summaries_.allocator().allocate();
  }
  return page;
}

void KvCore::rehome(int32_t sequence, int32_t block, kv::HomeId home) {
  Sequence& s = seq(sequence);
  kv::HomeId& own = s.homes[static_cast<size_t>(block)];
  const int32_t page = s.summary_pages[static_cast<size_t>(block)];
  if (summary_page_of_home_[static_cast<size_t>(own)] == page) summary_page_of_home_[static_cast<size_t>(own)] = -1;
  if (summary_page_of_home_[static_cast<size_t>(home)] < 0) {
    summary_page_of_home_[static_cast<size_t>(home)] = page;
  } else if (summary_page_of_home_[static_cast<size_t>(home)] != page) {
    summaries_.allocator().unref(page, step_);
    s.summary_pages[static_cast<size_t>(block)] = take_summary_page(home);
  }
  homes_.unref(own, step_);
  own = home;
  if (away(sequence)) mirror_->moved(sequence, block);
}

// The sequence is to hold `tokens` tokens, none of them written yet: takes its pages, of which there must be enough, as
// of summary pages. Fails without side effects.
Status KvCore::start_prompt(Sequence& s, int32_t tokens, bool sparse, int32_t summaries) {
  const int32_t pages = pages_for(block_of(tokens - 1) + 1, sparse);
  if (free_pages() < pages || free_summary_pages() < summaries) {
    return resource_exhausted("prefill needs {} pages and {} summary pages; {} and {} are free", pages, summaries,
                              free_pages(), free_summary_pages());
  }
  s.sparse = sparse;
  s.position = tokens;
  s.sealed = block_of(tokens);
  for (int32_t i = 0; i < pages; ++i) s.page_of_slot.push_back(take_page());
  return {};
}

Status KvCore::begin_prefill(int32_t sequence, int32_t tokens, bool sparse, std::span<const kv::HomeId> prefix) {
  Sequence& s = seq(sequence);
  const int32_t sealed = block_of(tokens), open = open_end(tokens - 1, s.max_blocks);
  const bool provisional = sparse && config_.fetch == FetchMode::kExact;
  OASIS_CHECK(open <= s.max_blocks && sealed - static_cast<int32_t>(prefix.size()) <= s.reserved_homes,
              "{} tokens do not fit the admission", tokens);
  OASIS_RETURN_IF_ERROR(start_prompt(s, tokens, sparse, sealed + provisional));
  for (int32_t b = 0; b < sealed; ++b) {
    const bool shared = b < static_cast<int32_t>(prefix.size());
    s.homes.push_back(shared ? prefix[static_cast<size_t>(b)] : homes_.allocate_reserved());
    if (!shared) --s.reserved_homes;
    const bool live = summary_page_of_home_[static_cast<size_t>(s.homes.back())] >= 0;
    s.summary_pages.push_back(take_summary_page(s.homes.back()));
    if (shared && !live) summaries_.write(s.summary_pages.back(), homes_.tier().meta(s.homes.back()));
  }
  if (provisional) s.provisional_summary = summaries_.allocator().allocate();
  s.prefix_blocks = static_cast<int32_t>(prefix.size());
  return {};
}

Status KvCore::load_prefix(int32_t sequence, int32_t layer, const PrefillKv& kv) {
  const Sequence& s = seq(sequence);
  const auto& shape = config_.shape;
  const int64_t run = int64_t{shape.block_size} * shape.head_dim;  // elements of a block-head's K
  std::vector<kernels::Copy> copies;
  const auto piece = static_cast<int32_t>(std::max<int64_t>(1, homes_.tier().pinnable_parts() / 4));
  for (int32_t first = 0; first < s.prefix_blocks; first += piece) {
    std::vector<kv::PartKey> parts, acquired;
    copies.clear();
    for (int32_t b = first; b < std::min(s.prefix_blocks, first + piece); ++b) {
      parts.push_back({s.homes[static_cast<size_t>(b)], layer});
    }
    kv::FetchTicket ticket;
    homes_.tier().fetch(parts, ticket);
    const Status status = ticket.wait();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (const std::byte* from = homes_.tier().acquire(parts[i])) {
        acquired.push_back(parts[i]);
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          const std::byte* source = from + h * shape.block_head_bytes();
          const int64_t to = h * kv.kv_head_stride + (first + static_cast<int64_t>(i)) * run;
          copies.push_back({source, reinterpret_cast<std::byte*>(kv.k + to)});
        }
      }
    }
    kernels_.unpack(stream_, {.type = shape.type,
                              .copies = copies.data(),
                              .count = static_cast<int64_t>(copies.size()),
                              .block_size = shape.block_size,
                              .head_dim = shape.head_dim,
                              .v_offset = (kv.v - kv.k) * 2});
    stream_.synchronize();
    for (const kv::PartKey& part : acquired) homes_.tier().release(part);
    for (const kv::PartKey& part : parts) homes_.tier().release(part);  // the ticket's own pins
    OASIS_RETURN_IF_ERROR(status);
  }
  return {};
}

Status KvCore::finish_layer(int32_t sequence, int32_t layer, const PrefillKv& kv, const float* q_next) {
  Sequence& s = seq(sequence);
  const auto& shape = config_.shape;
  // The workspace as a pool: block b of head h is page b.
  const kernels::PoolView workspace{.base = reinterpret_cast<std::byte*>(kv.k),
                                    .page_stride = int64_t{shape.block_size} * shape.head_dim * 2,
                                    .head_stride = kv.kv_head_stride * 2,
                                    .token_stride = int64_t{shape.head_dim} * 2,
                                    .v_offset = (kv.v - kv.k) * 2};
  OASIS_RETURN_IF_ERROR(seal_prompt(s, layer, workspace));
  if (s.sparse) {
    rank_prompt(sequence, layer, q_next);
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      const size_t i = at(0, sequence, h);
      start_map(layer, sequence, h,
                {&top_[i * static_cast<size_t>(config_.resident_blocks)], static_cast<size_t>(top_count_[i])}, -1);
    }
  }
  fill_slots(sequence, layer, workspace);
  return {};
}

// What the prompt leaves in the sequence's slots of a layer: every block that has begun if it is dense, else those that
// own a slot.
void KvCore::fill_slots(int32_t sequence, int32_t layer, const kernels::PoolView& workspace) {
  const Sequence& s = seq(sequence);
  const auto heads = static_cast<size_t>(config_.shape.kv_heads), slots = s.page_of_slot.size();
  const kernels::PoolView pool = pages_.view(layer);
  std::vector<int32_t> blocks(slots * heads, -1);  // pages of the workspace
  std::vector<std::byte*> to(slots * heads);
  for (size_t slot = 0; slot < slots; ++slot) {
    for (size_t h = 0; h < heads; ++h) {
      const auto head = static_cast<int32_t>(h);
      const int32_t b = s.sparse ? maps_[at(layer, sequence, head)].block_of_slot[slot] : static_cast<int32_t>(slot);
      if (b < 0 || b > block_of(s.position - 1)) continue;  // free, or open and not begun
      blocks[slot * heads + h] = b;
      to[slot * heads + h] = pool.k(s.page_of_slot[slot], head, 0);
      stats_.warm_blocks += s.sparse && b < s.sealed;
    }
  }
  kernels_.seal(stream_, {.pool = workspace,
                          .block_size = config_.shape.block_size,
                          .head_dim = config_.shape.head_dim,
                          .kv_heads = config_.shape.kv_heads,
                          .entries = static_cast<int64_t>(slots),
                          .pages = blocks.data(),
                          .homes = to.data(),
                          .home_type = config_.shape.type});
}

// Summaries and write-through of the blocks that this prefill computed.
Status KvCore::seal_prompt(Sequence& s, int32_t layer, const kernels::PoolView& workspace) {
  const auto& shape = config_.shape;
  // A few blocks at a time: a staged tier pins a frame for each until it is written.
  constexpr int32_t kPiece = 16;
  for (int32_t first = s.prefix_blocks; first < s.sealed; first += kPiece) {
    const int32_t n = std::min(kPiece, s.sealed - first);
    std::vector<int32_t> pages;
    std::vector<std::byte*> homes;
    int32_t begun = 0;
    Status status;
    for (int32_t b = first; b < first + n; ++b) {
      auto part = homes_.tier().begin_write({s.homes[static_cast<size_t>(b)], layer});
      if (!part.ok()) {
        status = part.status();
        break;
      }
      ++begun;
      pages.insert(pages.end(), static_cast<size_t>(shape.kv_heads), b);
      for (int32_t h = 0; h < shape.kv_heads; ++h) homes.push_back(*part + h * shape.block_head_bytes());
    }
    kernels_.seal(stream_, {.pool = workspace,
                            .block_size = shape.block_size,
                            .head_dim = shape.head_dim,
                            .kv_heads = shape.kv_heads,
                            .beta = config_.beta,
                            .entries = begun,
                            .pages = pages.data(),
                            .summaries = summaries_.view(layer),
                            .summary_pages = &s.summary_pages[static_cast<size_t>(first)],
                            .homes = homes.data(),
                            .home_type = shape.type});
    stream_.synchronize();
    for (int32_t b = first; b < first + begun; ++b) {
      homes_.tier().end_write({s.homes[static_cast<size_t>(b)], layer});
    }
    OASIS_RETURN_IF_ERROR(status);
  }
  return {};
}

// The R best blocks of each head by the last prompt token's query, into top_.
void KvCore::rank_prompt(int32_t sequence, int32_t layer, const float* q_next) {
  const auto& c = config_;
  const Sequence& s = seq(sequence);
  const int64_t width = int64_t{c.shape.kv_heads} * c.q_per_kv * c.shape.head_dim;
  const int32_t rows[] = {0, 1};
  const int32_t* pages = s.summary_pages.data();
  const size_t i = at(0, sequence, 0);
  kernels_.score(stream_, {.summaries = summaries_.view(layer),
                           .head_dim = c.shape.head_dim,
                           .kv_heads = c.shape.kv_heads,
                           .q_per_kv = c.q_per_kv,
                           .items = 1,
                           .row_begin = rows,
                           .candidates = &s.sealed,
                           .summary_pages = &pages,
                           .q = q_next,
                           .q_stride = width,
                           .scores = scores_.as<float>(),
                           .score_stride = c.max_blocks});
  if (keep_traces_) {
    for (int32_t h = 0; h < c.shape.kv_heads; ++h) {
      traces_[at(layer, sequence, h)] = {};
      trace_scores(traces_[at(layer, sequence, h)].scores, scores_.as<float>() + int64_t{h} * c.max_blocks, s.sealed);
    }
  }
  kernels_.topk(stream_, {.scores = scores_.as<float>(),
                          .score_stride = c.max_blocks,
                          .candidates = &s.sealed,
                          .items = 1,
                          .heads = c.shape.kv_heads,
                          .k = c.resident_blocks,
                          .pin_first = c.score == BlockScore::kShrunk,
                          .blocks = &top_[i * static_cast<size_t>(c.resident_blocks)],
                          .block_stride = c.resident_blocks,
                          .count = &top_count_[i]});
}

// The map of a sequence that becomes sparse: the ranked blocks are resident, the first K of them are P with
// last_predicted = predicted_step, the others -2 - rank; the open blocks own a slot. Blocks that can stay in the slot
// of their own number do. The next step's list is P and the open blocks.
void KvCore::start_map(int32_t layer, int32_t sequence, int32_t head, std::span<const int32_t> ranking,
                       int32_t predicted_step) {
  const Sequence& s = seq(sequence);
  const auto& c = config_;
  const int32_t slots = c.slots(), end = open_end(s.position - 1, s.max_blocks);
  kernels::HeadMap& map = maps_[at(layer, sequence, head)];
  std::fill_n(map.slot_of_block, c.max_blocks, -1);
  std::fill_n(map.block_of_slot, slots, -1);
  const auto put = [&](int32_t block, int32_t slot, int32_t last_predicted) {
    map.slot_of_block[block] = slot;
    map.block_of_slot[slot] = block;
    map.last_predicted[slot] = last_predicted;
  };
  const auto mark = [&](size_t rank) {
    return static_cast<int32_t>(rank) < c.attend_blocks ? predicted_step : -2 - static_cast<int32_t>(rank);
  };
  for (size_t r = 0; r < ranking.size(); ++r) {
    if (ranking[r] < slots) put(ranking[r], ranking[r], mark(r));
  }
  for (int32_t b = s.sealed; b < std::min(end, slots); ++b) put(b, b, kernels::HeadMap::kOpen);
  int32_t free = 0;
  const auto next_free = [&] {
    while (map.block_of_slot[free] >= 0) ++free;
    return free;
  };
  for (size_t r = 0; r < ranking.size(); ++r) {
    if (ranking[r] >= slots) put(ranking[r], next_free(), mark(r));
  }
  for (int32_t b = std::max(s.sealed, slots); b < end; ++b) put(b, next_free(), kernels::HeadMap::kOpen);

  const size_t i = at(layer, sequence, head);
  const auto predicted = std::min<size_t>(ranking.size(), static_cast<size_t>(c.attend_blocks));
  std::copy_n(ranking.begin(), predicted, &predicted_[i * static_cast<size_t>(c.resident_blocks)]);
  predicted_count_[i] = static_cast<int32_t>(predicted);
  spread_[i] = 0;
  std::vector<int32_t> blocks(ranking.begin(), ranking.begin() + static_cast<int64_t>(predicted));
  std::sort(blocks.begin(), blocks.end());
  for (int32_t b = s.sealed; b < end; ++b) blocks.push_back(b);
  set_list(layer, sequence, head, blocks);
}

void KvCore::set_list(int32_t layer, int32_t sequence, int32_t head, std::span<const int32_t> blocks) {
  const Sequence& s = seq(sequence);
  const size_t i = at(layer, sequence, head);
  OASIS_CHECK(static_cast<int64_t>(blocks.size()) <= list_stride_, "a list of {} blocks, room for {}", blocks.size(),
              list_stride_);
  kernels::ListEntry* list = &list_[i * static_cast<size_t>(list_stride_)];
  for (size_t j = 0; j < blocks.size(); ++j) {
    const int32_t slot = s.sparse ? maps_[i].slot_of_block[blocks[j]] : blocks[j];
    list[j] = {.block = blocks[j], .page = s.page_of_slot[static_cast<size_t>(slot)]};
  }
  list_count_[i] = static_cast<int32_t>(blocks.size());
}

void KvCore::extend_dense_lists(int32_t sequence, int32_t first_block) {
  if (away(sequence)) return;  // the step's first kernel does it
  const Sequence& s = seq(sequence);
  const auto blocks = static_cast<int32_t>(s.page_of_slot.size());
  OASIS_CHECK(blocks <= list_stride_, "a dense sequence of {} blocks, room for {}", blocks, list_stride_);
  for (int32_t l = 0; l < config_.shape.layers; ++l) {
    for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
      const size_t i = at(l, sequence, h);
      for (int32_t b = first_block; b < blocks; ++b) {
        list_[i * static_cast<size_t>(list_stride_) + static_cast<size_t>(b)] = {
            .block = b, .page = s.page_of_slot[static_cast<size_t>(b)]};
      }
      list_count_[i] = blocks;
    }
  }
}

void KvCore::finish_prefill(int32_t sequence) {
  Sequence& s = seq(sequence);
  for (int32_t b = s.prefix_blocks; b < s.sealed; ++b) {
    summaries_.read(s.summary_pages[static_cast<size_t>(b)], homes_.tier().meta(s.homes[static_cast<size_t>(b)]));
  }
  if (!s.sparse) extend_dense_lists(sequence, 0);
  s.predicted_candidates = s.sparse ? s.sealed : 0;
  s.ready = true;
}

// At the end of the step that outgrew the dense limit: keeps the R best by that step's prediction, frees the rest,
// fetches nothing. Called before the position moves on.
void KvCore::become_sparse(int32_t sequence) {
  bring_home(sequence);
  Sequence& s = seq(sequence);
  const int32_t slots = config_.slots();
  while (static_cast<int32_t>(s.page_of_slot.size()) < slots) {
    s.page_of_slot.push_back(take_page());
    OASIS_CHECK(s.page_of_slot.back() >= 0, "no page left for the switch to sparse");
  }
  const auto owned = static_cast<int32_t>(s.page_of_slot.size());
  std::vector<kernels::Copy> copies;
  s.sparse = true;
  ++s.position;  // start_map counts from the last final token
  for (int32_t l = 0; l < config_.shape.layers; ++l) {
    for (int32_t h = 0; h < config_.shape.kv_heads; ++h) {
      const size_t i = at(l, sequence, h);
      const int32_t* p = &predicted_[i * static_cast<size_t>(config_.resident_blocks)];
      const std::vector<int32_t> ranking(p, p + predicted_count_[i]);
      start_map(l, sequence, h, ranking, s.step);
      for (int32_t slot = 0; slot < slots; ++slot) {
        const int32_t b = maps_[i].block_of_slot[slot];
        if (b < 0 || b == slot || b >= owned) continue;
        const kernels::PoolView pool = pages_.view(l);
        copies.push_back({pool.k(s.page_of_slot[static_cast<size_t>(b)], h, 0),
                          pool.k(s.page_of_slot[static_cast<size_t>(slot)], h, 0)});
      }
    }
  }
  kernels_.gather(stream_, {.copies = copies.data(),
                            .count = static_cast<int64_t>(copies.size()),
                            .bytes = config_.shape.block_head_bytes()});
  --s.position;
  for (int32_t b = slots; b < owned; ++b) pages_.allocator().unref(s.page_of_slot[static_cast<size_t>(b)], step_);
  s.page_of_slot.resize(static_cast<size_t>(std::min(owned, slots)));
  if (config_.fetch == FetchMode::kExact) {
    s.provisional_summary = summaries_.allocator().allocate();
    OASIS_CHECK(s.provisional_summary >= 0, "no summary page left for the switch to sparse");
  }
}

}  // namespace oasis::lookahead
