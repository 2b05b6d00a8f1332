#include "oasis/kv/testing/faulty_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace oasis::kv::testing {

FaultyTier::FaultyTier(std::unique_ptr<Tier> inner, const TierConfig& config, const TierFaults& faults)
    : inner_(std::move(inner)),
      faults_(faults),
      layers_(config.shape.layers),
      part_bytes_(config.shape.part_bytes()),
      random_(faults.seed),
      parts_(static_cast<size_t>(inner_->homes()) * static_cast<size_t>(layers_)),
      present_(std::make_unique<std::atomic<uint8_t>[]>(parts_.size())) {
  OASIS_CHECK(faults.staged || inner_->addressable(), "only a staged double can stand before a staged tier");
  if (faults_.staged) timer_ = std::thread([this] { run(); });
}

FaultyTier::~FaultyTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (timer_.joinable()) timer_.join();
  for (Part& part : parts_) {
    for (FetchTicket* ticket : part.waiters) ticket->finish(1, Status(StatusCode::kCancelled, "the tier is closed"));
  }
}

void FaultyTier::fail_write_after(int64_t parts) {
  std::lock_guard lock(mutex_);
  writes_left_ = parts;
}

void FaultyTier::fail_read_after(int64_t parts) {
  std::lock_guard lock(mutex_);
  reads_left_ = parts;
}

void FaultyTier::evict_unpinned() {
  std::lock_guard lock(mutex_);
  for (; !lru_.empty(); ++evicted_) make_absent(lru_.front());
}

int64_t FaultyTier::pins() const {
  std::lock_guard lock(mutex_);
  return pins_;
}

std::string FaultyTier::describe() const {
  return fmt::format("test double over {}: {}, {} s a batch", inner_->describe(), faults_.staged ? "staged" : "direct",
                     faults_.batch_latency_seconds);
}

int64_t FaultyTier::pinnable_parts() const {
  return faults_.staged ? static_cast<int64_t>(parts_.size()) : inner_->pinnable_parts();
}

int64_t FaultyTier::index(PartKey key) const {
  OASIS_CHECK(key.home >= 0 && key.home < inner_->homes() && key.layer >= 0 && key.layer < layers_,
              "home {} layer {} of {} homes and {} layers", key.home, key.layer, inner_->homes(), layers_);
  return int64_t{key.home} * layers_ + key.layer;
}

double FaultyTier::random(double limit) { return std::uniform_real_distribution<double>(0, limit)(random_); }

void FaultyTier::delay() {
  if (faults_.call_delay_seconds <= 0) return;
  double seconds = 0;
  {
    std::lock_guard lock(mutex_);
    seconds = random(faults_.call_delay_seconds);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

Status FaultyTier::home_status(HomeId home) const {
  const auto it = failed_.find(home);
  return it != failed_.end() ? it->second : inner_->status(home);
}

Status FaultyTier::status(HomeId home) const {
  index({home, 0});
  std::lock_guard lock(mutex_);
  return home_status(home);
}

void FaultyTier::fail_home(HomeId home, const Status& status) {
  failed_.emplace(home, status);
  for (int32_t layer = 0; layer < layers_; ++layer) {
    const int64_t part = index({home, layer});
    present_[static_cast<size_t>(part)] = 0;
    // Pinned ones stay as they are until they are released.
    const Part& p = parts_[static_cast<size_t>(part)];
    if (faults_.staged && p.state == State::kPresent && p.pins == 0) make_absent(part);
  }
}

Result<std::byte*> FaultyTier::begin_write(PartKey key) {
  delay();
  {
    std::lock_guard lock(mutex_);
    Part& part = parts_[static_cast<size_t>(index(key))];
    OASIS_CHECK(!part.writing && !part.written, "home {} layer {} is written twice; drop the home first", key.home,
                key.layer);
    OASIS_RETURN_IF_ERROR(home_status(key.home));
    part.writing = true;
  }
  Result<std::byte*> bytes = inner_->begin_write(key);
  if (!bytes.ok()) {
    std::lock_guard lock(mutex_);
    parts_[static_cast<size_t>(index(key))].writing = false;
  }
  return bytes;
}

void FaultyTier::end_write(PartKey key) {
  delay();
  inner_->end_write(key);
  std::lock_guard lock(mutex_);
  const int64_t i = index(key);
  Part& part = parts_[static_cast<size_t>(i)];
  OASIS_CHECK(part.writing, "end_write of home {} layer {} without begin_write", key.home, key.layer);
  part.writing = false;
  part.written = true;
  if (writes_left_ >= 0 && writes_left_-- == 0) {
    fail_home(key.home, io_error("injected: the write of home {} layer {} failed", key.home, key.layer));
  }
  if (!faults_.staged && !failed_.contains(key.home)) present_[static_cast<size_t>(i)] = 1;
}

bool FaultyTier::present(PartKey key) const {
  if (present_[static_cast<size_t>(index(key))].load(std::memory_order_relaxed) == 0) return false;
  return faults_.staged || inner_->present(key);
}

const std::byte* FaultyTier::acquire(PartKey key) {
  delay();
  const int64_t i = index(key);
  std::lock_guard lock(mutex_);
  if (present_[static_cast<size_t>(i)] == 0) return nullptr;
  if (!faults_.staged) {
    const std::byte* bytes = inner_->acquire(key);
    if (bytes) pin(i);
    return bytes;
  }
  pin(i);
  return parts_[static_cast<size_t>(i)].frame.get();
}

void FaultyTier::pin(int64_t i) {
  Part& part = parts_[static_cast<size_t>(i)];
  if (faults_.staged && part.pins == 0) lru_.erase(part.place);
  ++part.pins;
  ++pins_;
}

void FaultyTier::release(PartKey key) {
  delay();
  const int64_t i = index(key);
  std::lock_guard lock(mutex_);
  Part& part = parts_[static_cast<size_t>(i)];
  OASIS_CHECK(part.owed + part.pins > 0, "release of home {} layer {}, which nobody pinned", key.home, key.layer);
  --pins_;
  // What a failed fetch is owed goes first, so that nobody else's pin ends early.
  if (part.owed > 0) {
    --part.owed;
    return;
  }
  --part.pins;
  if (!faults_.staged) {
    inner_->release(key);
  } else if (part.pins == 0) {
    part.place = lru_.insert(lru_.end(), i);
    if (failed_.contains(key.home)) make_absent(i);
    trim();
  }
}

void FaultyTier::make_absent(int64_t i) {
  Part& part = parts_[static_cast<size_t>(i)];
  present_[static_cast<size_t>(i)] = 0;
  if (part.state == State::kPresent) {
    lru_.erase(part.place);
    --present_count_;
  }
  part.state = State::kAbsent;
  if (!part.frame) return;
  std::memset(part.frame.get(), 0xff, static_cast<size_t>(part_bytes_));  // NaN for whoever still reads it
  spare_.push_back(std::move(part.frame));
}

void FaultyTier::trim() {
  if (faults_.present_limit == 0) return;
  for (; present_count_ > faults_.present_limit && !lru_.empty(); ++evicted_) make_absent(lru_.front());
}

void FaultyTier::fetch(std::span<const PartKey> parts, FetchTicket& ticket) {
  delay();
  ticket.start(static_cast<int64_t>(parts.size()));
  int64_t pinned = 0, refused = 0;
  Status error;
  {
    std::lock_guard lock(mutex_);
    Batch batch;
    for (const PartKey key : parts) {
      Status status;
      if (join(index(key), &ticket, batch, status)) continue;
      ++(status.ok() ? pinned : refused);
      if (!status.ok() && error.ok()) error = status;
    }
    schedule(std::move(batch));
  }
  if (pinned > 0) ticket.finish(pinned, {});
  if (refused > 0) ticket.finish(refused, error);
}

void FaultyTier::prefetch(std::span<const PartKey> parts) {
  delay();
  if (!faults_.staged) return;
  std::lock_guard lock(mutex_);
  Batch batch;
  Status status;
  for (const PartKey key : parts) join(index(key), nullptr, batch, status);
  schedule(std::move(batch));
}

// Has the part brought, on its own way or with `batch`. False if that is settled at once: pinned, or refused
// (`status`).
bool FaultyTier::join(int64_t i, FetchTicket* ticket, Batch& batch, Status& status) {
  Part& part = parts_[static_cast<size_t>(i)];
  status = home_status(key(i).home);
  if (status.ok() && !part.written) status = not_found("home {} layer {} was never written", key(i).home, key(i).layer);
  if (!status.ok()) {
    if (!ticket) return false;
    ++part.owed;
    ++pins_;
    return false;
  }
  if (part.state == State::kPresent || !faults_.staged) {
    if (!faults_.staged) inner_->acquire(key(i));
    if (ticket) pin(i);
    return false;
  }
  if (part.state == State::kAbsent) {
    part.state = State::kComing;
    batch.parts.emplace_back(i, part.generation);
  }
  if (ticket) part.waiters.push_back(ticket);
  return true;
}

void FaultyTier::schedule(Batch batch) {
  if (batch.parts.empty()) return;
  ++batches_;
  const double seconds = faults_.batch_latency_seconds + random(faults_.batch_jitter_seconds);
  in_flight_.emplace(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)),
                     std::move(batch));
  changed_.notify_all();
}

// The timer's thread. Copies ahead of time, so that arrivals are punctual.
void FaultyTier::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (in_flight_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto first = in_flight_.begin();
    std::vector<std::pair<FetchTicket*, Status>> finished;
    if (first->first <= Clock::now()) {
      Batch batch = std::move(first->second);
      in_flight_.erase(first);
      while (batch.copied < batch.parts.size()) copy_next(batch);
      arrive(batch, finished);
    } else {
      const auto next = std::ranges::find_if(
          in_flight_, [](const auto& entry) { return entry.second.copied < entry.second.parts.size(); });
      if (next == in_flight_.end()) {
        changed_.wait_until(lock, first->first);
        continue;
      }
      copy_next(next->second);
    }
    lock.unlock();  // callers get their turn between parts
    for (const auto& [ticket, status] : finished) ticket->finish(1, status);
    lock.lock();
  }
}

void FaultyTier::copy_next(Batch& batch) {
  const auto [i, generation] = batch.parts[batch.copied++];
  Part& part = parts_[static_cast<size_t>(i)];
  if (part.generation != generation) return;
  const PartKey wanted = key(i);
  FetchTicket ticket;
  inner_->fetch({&wanted, 1}, ticket);
  const Status status = ticket.wait();
  if (const std::byte* bytes = inner_->acquire(wanted)) {
    if (spare_.empty()) spare_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(part_bytes_)));
    part.frame = std::move(spare_.back());
    spare_.pop_back();
    std::memcpy(part.frame.get(), bytes, static_cast<size_t>(part_bytes_));
    inner_->release(wanted);
  } else {
    fail_home(wanted.home, status);
  }
  inner_->release(wanted);  // the fetch's pin
}

void FaultyTier::arrive(const Batch& batch, std::vector<std::pair<FetchTicket*, Status>>& finished) {
  for (const auto& [i, generation] : batch.parts) {
    Part& part = parts_[static_cast<size_t>(i)];
    if (part.generation != generation) continue;
    const HomeId home = key(i).home;
    if (reads_left_ >= 0 && reads_left_-- == 0) {
      fail_home(home, io_error("injected: the read of home {} layer {} failed", home, key(i).layer));
    }
    const std::vector<FetchTicket*> waiters = std::exchange(part.waiters, {});
    const Status status = home_status(home);
    for (FetchTicket* ticket : waiters) finished.emplace_back(ticket, status);
    if (!status.ok()) {
      make_absent(i);
      part.owed += static_cast<int32_t>(waiters.size());
      pins_ += static_cast<int64_t>(waiters.size());
      continue;
    }
    part.state = State::kPresent;
    part.place = lru_.insert(lru_.end(), i);
    ++present_count_;
    ++parts_read_;
    for (size_t n = 0; n < waiters.size(); ++n) pin(i);
    present_[static_cast<size_t>(i)] = 1;
  }
  trim();
}

void FaultyTier::drop(HomeId home) {
  std::lock_guard lock(mutex_);
  for (int32_t layer = 0; layer < layers_; ++layer) {
    const int64_t i = index({home, layer});
    Part& part = parts_[static_cast<size_t>(i)];
    OASIS_CHECK(part.pins == 0 && part.owed == 0 && part.waiters.empty() && !part.writing,
                "home {} is dropped while layer {} has {} pins, {} releases owed, {} waiters{}", home, layer, part.pins,
                part.owed, part.waiters.size(), part.writing ? ", and is being written" : "");
    make_absent(i);
    part.written = false;
    ++part.generation;
  }
  failed_.erase(home);
  inner_->drop(home);
}

TierStats FaultyTier::stats() const {
  std::lock_guard lock(mutex_);
  TierStats stats = inner_->stats();
  if (!faults_.staged) return stats;
  stats.bytes_read = parts_read_ * part_bytes_;
  stats.parts_present = present_count_;
  stats.parts_evicted = evicted_;
  stats.read_batches = batches_;
  return stats;
}

}  // namespace oasis::kv::testing
