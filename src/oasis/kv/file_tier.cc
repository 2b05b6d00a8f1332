#include "oasis/kv/file_tier.h"

#include <algorithm>
#include <limits>

#include "oasis/base/units.h"

namespace oasis::kv {
namespace {

constexpr int64_t kMetaAlign = 64;
constexpr int64_t kMinFrames = 16;
// How long callers wait for pins of others to end, when no I/O can make room.
constexpr auto kPatience = std::chrono::seconds(1);

int64_t align_up(int64_t bytes, int64_t align) { return (bytes + align - 1) / align * align; }

int32_t reserve_of(int32_t frames) { return std::clamp(frames / 8, 4, 64); }

}  // namespace

Result<FileTier::Plan> FileTier::plan(const TierConfig& config, const FileTierConfig& file) {
  OASIS_RETURN_IF_ERROR(validate(config.shape));
  if (config.extra_bytes < 0) return invalid_argument("file tier: {} extra bytes a home", config.extra_bytes);
  Plan plan;
  plan.frame_bytes = align_up(config.shape.part_bytes(), TierFile::kAlign);
  plan.meta_bytes = config.shape.summary_page_bytes() + config.extra_bytes;
  plan.meta_stride = align_up(plan.meta_bytes, kMetaAlign);

  const int64_t home_file_bytes = config.shape.layers * plan.frame_bytes;
  int64_t homes = file.max_homes;
  if (file.file_bytes > 0) {
    homes = (file.file_bytes - TierFile::kHeaderBytes) / home_file_bytes;
    if (homes < 1) {
      return resource_exhausted("--capacity-file {}: {} hold no block; one and the header take {} ({} bytes)",
                                file.path, format_bytes(file.file_bytes),
                                format_bytes(home_file_bytes + TierFile::kHeaderBytes),
                                home_file_bytes + TierFile::kHeaderBytes);
    }
    if (file.max_homes > 0) homes = std::min<int64_t>(homes, file.max_homes);
  }
  if (homes < 1) return invalid_argument("--capacity-file {}: {} blocks asked for, need at least 1", file.path, homes);
  homes = std::min<int64_t>(homes, std::numeric_limits<int32_t>::max());
  if (__builtin_mul_overflow(homes, home_file_bytes, &plan.file_bytes)) {
    return resource_exhausted("--capacity-file {}: {} blocks of {} are more than 2^63 bytes", file.path, homes,
                              format_bytes(home_file_bytes));
  }
  plan.file_bytes += TierFile::kHeaderBytes;

  const int64_t parts = homes * config.shape.layers;
  const int64_t books = parts * static_cast<int64_t>(sizeof(Part) + 1) + homes;  // states, present and failed flags
  // A frame, its links and places in lists and queues.
  const int64_t frame_cost = plan.frame_bytes + static_cast<int64_t>(sizeof(Frame)) + 128;
  const int64_t fixed = homes * plan.meta_stride + books + 8;
  const int64_t frames = (file.memory_bytes - fixed) / frame_cost;
  if (frames < kMinFrames) {
    const int64_t least = fixed + kMinFrames * frame_cost;
    return resource_exhausted(
        "--capacity-memory {}: does not hold what is to be known of {} blocks in the file, {}, and a cache of {} parts "
        "of {}; it needs {} ({} bytes)",
        format_bytes(file.memory_bytes), homes, format_bytes(fixed), kMinFrames, format_bytes(plan.frame_bytes),
        format_bytes(least), least);
  }
  // More than one frame a part beside the reserve would never be used.
  const int64_t most = std::min<int64_t>(parts + 64, std::numeric_limits<int32_t>::max() - 1);
  plan.frames = static_cast<int32_t>(std::min(frames, std::max(most, kMinFrames)));
  plan.homes = static_cast<int32_t>(homes);
  plan.memory_bytes = fixed + plan.frames * frame_cost;
  return plan;
}

Result<std::unique_ptr<Tier>> make_file_tier_on(const TierConfig& config, const FileTierConfig& file,
                                                const IoBackendFactory& make_backend) {
  OASIS_ASSIGN_OR_RETURN(const FileTier::Plan plan, FileTier::plan(config, file));
  const int64_t arena_bytes = plan.frames * plan.frame_bytes + plan.homes * plan.meta_stride;
  OASIS_ASSIGN_OR_RETURN(HostArena arena, HostArena::create("the cache of --capacity-file (--capacity-memory)",
                                                            arena_bytes, config.device));
  OASIS_ASSIGN_OR_RETURN(TierFile tier_file, TierFile::create(file.path, plan.file_bytes));
  std::unique_ptr<IoBackend> backend = make_backend(tier_file.fd());
  return std::unique_ptr<Tier>(
      std::make_unique<FileTier>(config.shape, plan, std::move(tier_file), std::move(arena), std::move(backend)));
}

Result<std::unique_ptr<Tier>> make_file_tier(const TierConfig& config, const FileTierConfig& file) {
  return make_file_tier_on(config, file, make_io_backend);
}

FileTier::FileTier(const KvShape& shape, const Plan& plan, TierFile file, HostArena arena,
                   std::unique_ptr<IoBackend> backend)
    : shape_(shape),
      plan_(plan),
      reserve_(reserve_of(plan.frames)),
      file_(std::move(file)),
      arena_(std::move(arena)),
      backend_(std::move(backend)),
      parts_(static_cast<size_t>(int64_t{plan.homes} * shape.layers)),
      present_(std::make_unique<std::atomic<uint8_t>[]>(parts_.size())),
      home_failed_(std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(plan.homes))),
      frames_(static_cast<size_t>(plan.frames)),
      evictable_(plan.frames) {
  free_.reserve(frames_.size());
  for (int32_t f = plan.frames - 1; f >= 0; --f) free_.push_back(f);
  io_ = std::thread([this] { run(); });
}

FileTier::~FileTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  backend_->wake();
  io_.join();
  const Status closed(StatusCode::kCancelled, "the tier is closed");
  for (const Frame& frame : frames_) {
    for (FetchTicket* ticket : frame.waiters) ticket->finish(1, closed);
  }
  for (const Wanted& wanted : pending_) wanted.ticket->finish(1, closed);
}

std::string FileTier::describe() const {
  return fmt::format("file {}: {} homes in {} bytes{}, {}{}; {} frames of {} bytes in DRAM", file_.path(), plan_.homes,
                     file_.bytes(), file_.reserved() ? "" : " (not reserved: the disk may fill up)", backend_->name(),
                     file_.direct() ? " with O_DIRECT" : " through the page cache", plan_.frames, plan_.frame_bytes);
}

int64_t FileTier::index(PartKey key) const {
  OASIS_CHECK(key.home >= 0 && key.home < plan_.homes && key.layer >= 0 && key.layer < shape_.layers,
              "home {} layer {} of {} homes and {} layers", key.home, key.layer, plan_.homes, shape_.layers);
  return int64_t{key.home} * shape_.layers + key.layer;
}

PartKey FileTier::key(int64_t part) const {
  return {static_cast<HomeId>(part / shape_.layers), static_cast<int32_t>(part % shape_.layers)};
}

std::byte* FileTier::meta(HomeId home) {
  index({home, 0});
  return arena_.data() + plan_.frames * plan_.frame_bytes + home * plan_.meta_stride;
}

bool FileTier::present(PartKey key) const {
  return present_[static_cast<size_t>(index(key))].load(std::memory_order_relaxed) != 0;
}

void FileTier::tell(const FinishedList& finished) {
  for (const auto& [ticket, status] : finished) ticket->finish(1, status);
}

Result<std::byte*> FileTier::begin_write(PartKey key) {
  const int64_t i = index(key);
  std::unique_lock lock(mutex_);
  OASIS_CHECK(part(i).state == PartState::kUnwritten || failed(key.home),
              "home {} layer {} is written twice; drop the home first", key.home, key.layer);
  int32_t f = kNoFrame;
  for (auto deadline = Clock::now() + kPatience;;) {
    if (failed(key.home)) return failed_.at(key.home);
    f = take_frame(false);
    if (f != kNoFrame) break;
    if (!dirty_.empty()) deadline = Clock::now() + kPatience;
    if (Clock::now() >= deadline) {
      return resource_exhausted(
          "--capacity-memory {}: all {} parts of {} that it caches are in use, none is free to write home {} layer {}; "
          "raise it",
          format_bytes(plan_.memory_bytes), plan_.frames - reserve_, format_bytes(plan_.frame_bytes), key.home,
          key.layer);
    }
    room_.wait_until(lock, deadline);
  }
  frame(f).part = i;
  part(i).frame = f;
  part(i).state = PartState::kWriting;
  return data(f);
}

void FileTier::end_write(PartKey key) {
  const int64_t i = index(key);
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    OASIS_CHECK(part(i).state == PartState::kWriting, "end_write of home {} layer {} without begin_write", key.home,
                key.layer);
    const int32_t f = part(i).frame;
    if (failed(key.home)) {
      free_frame(f);
      return;
    }
    part(i).state = PartState::kDirty;
    frame(f).ticket = next_ticket_++;
    dirty_.insert(frame(f).ticket);
    writes_.push_back({f, frame(f).ticket});
    set_present(i, true);
    wake = must_wake();
  }
  if (wake) backend_->wake();
}

const std::byte* FileTier::acquire(PartKey key) {
  const int64_t i = index(key);
  if (!present_[static_cast<size_t>(i)].load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard lock(mutex_);
  if (!present_[static_cast<size_t>(i)].load(std::memory_order_relaxed)) return nullptr;
  pin(i);
  return data(part(i).frame);
}

void FileTier::release(PartKey key) {
  const int64_t i = index(key);
  FinishedList finished;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    // What a failed fetch is owed goes first, so that nobody else's pin ends early.
    if (const auto owed = owed_.find(i); owed != owed_.end()) {
      if (--owed->second == 0) owed_.erase(owed);
      return;
    }
    const int32_t f = part(i).frame;
    OASIS_CHECK(f != kNoFrame && frame(f).pins > 0, "release of home {} layer {}, which nobody pinned", key.home,
                key.layer);
    if (--frame(f).pins > 0) return;
    settle(f);
    grant(finished);
    wake = must_wake();
  }
  if (wake) backend_->wake();
  tell(finished);
}

void FileTier::fetch(std::span<const PartKey> parts, FetchTicket& ticket) {
  const auto count = static_cast<int64_t>(parts.size());
  ticket.start(count);
  if (count == 0) return;
  FinishedList finished;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    const int64_t tickets = next_ticket_;
    if (pending_.empty()) pending_since_ = Clock::now();
    for (const PartKey key : parts) {
      const Wanted wanted{index(key), &ticket};
      if (count <= pinnable_parts()) {
        pending_.push_back(wanted);
      } else {
        refuse(
            wanted,
            resource_exhausted("--capacity-memory {}: {} parts are wanted at once, {} of {} fit; raise it",
                               format_bytes(plan_.memory_bytes), count, plan_.frames, format_bytes(plan_.frame_bytes)),
            finished);
      }
    }
    grant(finished);
    if (next_ticket_ > tickets) ++stats_.read_batches;
    wake = must_wake();
  }
  if (wake) backend_->wake();
  tell(finished);
}

void FileTier::prefetch(std::span<const PartKey> parts) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (!pending_.empty()) return;  // frames are short, and somebody waits for them
    const int64_t tickets = next_ticket_;
    for (const PartKey key : parts) {
      const int64_t i = index(key);
      if (part(i).state != PartState::kOnFile || failed(key.home)) continue;
      const int32_t f = take_frame(false);
      if (f == kNoFrame) break;
      start_read(i, f, true);
    }
    if (next_ticket_ == tickets) return;
    ++stats_.read_batches;
    wake = must_wake();
  }
  if (wake) backend_->wake();
}

void FileTier::drop(HomeId home) {
  FinishedList finished;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      const int64_t i = index({home, layer});
      Part& p = part(i);
      const int32_t f = p.frame;
      OASIS_CHECK(!owed_.contains(i) && p.state != PartState::kWriting &&
                      (f == kNoFrame || (frame(f).pins == 0 && frame(f).waiters.empty())),
                  "home {} is dropped while layer {} is pinned, awaited or being written", home, layer);
      if (f != kNoFrame) free_frame(f);
      p.state = PartState::kUnwritten;
    }
    failed_.erase(home);
    home_failed_[static_cast<size_t>(home)].store(0, std::memory_order_relaxed);
    grant(finished);
    wake = must_wake();
  }
  if (wake) backend_->wake();
  tell(finished);
}

Status FileTier::status(HomeId home) const {
  index({home, 0});
  if (!failed(home)) return {};
  std::lock_guard lock(mutex_);
  const auto it = failed_.find(home);
  return it == failed_.end() ? Status() : it->second;
}

void FileTier::flush() {
  std::unique_lock lock(mutex_);
  const int64_t last = next_ticket_;
  written_.wait(lock, [&] { return dirty_.empty() || *dirty_.begin() >= last; });
}

TierStats FileTier::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace oasis::kv
