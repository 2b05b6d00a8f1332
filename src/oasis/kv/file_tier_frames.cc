// Who gets a frame, and what becomes of it. All of this runs under the tier's lock.
#include "oasis/kv/file_tier.h"

namespace oasis::kv {

void FileTier::set_present(int64_t i, bool present) {
  const uint8_t was = present_[static_cast<size_t>(i)].exchange(present, std::memory_order_relaxed);
  stats_.parts_present += int{present} - int{was};
}

// A frame that belongs to nobody, or none. Writers and prefetches leave the reserve alone.
int32_t FileTier::take_frame(bool for_fetch) {
  const auto beyond_reserve = static_cast<int64_t>(free_.size()) - reserve_;
  if (beyond_reserve <= 0 && !evictable_.empty()) evict_oldest();
  if (free_.empty() || (!for_fetch && static_cast<int64_t>(free_.size()) <= reserve_)) return kNoFrame;
  const int32_t f = free_.back();
  free_.pop_back();
  return f;
}

void FileTier::evict_oldest() {
  const int32_t f = evictable_.oldest();
  const int64_t i = frame(f).part;
  free_frame(f);
  part(i).state = PartState::kOnFile;
  ++stats_.parts_evicted;
}

void FileTier::free_frame(int32_t f) {
  Frame& fr = frame(f);
  if (evictable_.contains(f)) evictable_.remove(f);
  if (fr.part != kNoPart) {
    set_present(fr.part, false);
    part(fr.part).frame = kNoFrame;
    part(fr.part).state = PartState::kUnwritten;
    fr.part = kNoPart;
  }
  if (dirty_.erase(fr.ticket)) written_.notify_all();
  fr.ticket = 0;
  fr.hint = false;
  if (fr.moving != kNoPart) return;  // finish_io comes back to it
  free_.push_back(f);
  room_.notify_all();
}

void FileTier::settle(int32_t f) {
  Frame& fr = frame(f);
  if (fr.pins > 0 || part(fr.part).state != PartState::kClean) return;
  evictable_.push(f);
  if (static_cast<int64_t>(free_.size()) < reserve_) evict_oldest();
  room_.notify_all();
}

void FileTier::pin(int64_t i) {
  const int32_t f = part(i).frame;
  if (evictable_.contains(f)) evictable_.remove(f);
  ++frame(f).pins;
}

void FileTier::start_read(int64_t i, int32_t f, bool hint) {
  part(i).frame = f;
  part(i).state = PartState::kReading;
  Frame& fr = frame(f);
  fr.part = i;
  fr.ticket = next_ticket_++;
  fr.hint = hint;
  (hint ? hints_ : awaited_).push_back({f, fr.ticket});
}

void FileTier::refuse(const Wanted& wanted, const Status& status, FinishedList& finished) {
  ++owed_[wanted.part];
  finished.push_back({wanted.ticket, status});
}

// Serves waiting fetches in order, as far as there are frames.
void FileTier::grant(FinishedList& finished) {
  for (; !pending_.empty(); pending_.pop_front(), pending_since_ = Clock::now()) {
    const Wanted wanted = pending_.front();
    const PartKey k = key(wanted.part);
    Part& p = part(wanted.part);
    if (failed(k.home)) {
      refuse(wanted, failed_.at(k.home), finished);
      continue;
    }
    switch (p.state) {
      case PartState::kUnwritten:
      case PartState::kWriting:
        refuse(wanted, not_found("home {} layer {} was never written", k.home, k.layer), finished);
        break;
      case PartState::kDirty:
      case PartState::kClean:
        pin(wanted.part);
        finished.push_back({wanted.ticket, {}});
        break;
      case PartState::kOnFile: {
        const int32_t f = take_frame(true);
        if (f == kNoFrame) return;
        start_read(wanted.part, f, false);
        frame(f).waiters.push_back(wanted.ticket);
        break;
      }
      case PartState::kReading: {
        Frame& fr = frame(p.frame);
        fr.waiters.push_back(wanted.ticket);
        if (std::exchange(fr.hint, false)) awaited_.push_back({p.frame, fr.ticket});  // ahead of other hints
        break;
      }
    }
  }
}

void FileTier::fail_home(HomeId home, const Status& status, FinishedList& finished) {
  if (failed(home)) return;
  failed_.emplace(home, status);
  home_failed_[static_cast<size_t>(home)].store(1, std::memory_order_relaxed);
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    const int64_t i = index({home, layer});
    set_present(i, false);
    Part& p = part(i);
    if (p.frame == kNoFrame || p.state == PartState::kWriting) continue;  // end_write will see it
    Frame& fr = frame(p.frame);
    for (FetchTicket* ticket : std::exchange(fr.waiters, {})) refuse({i, ticket}, status, finished);
    if (fr.pins == 0) {
      free_frame(p.frame);
      continue;
    }
    // Readers keep their bytes; the last release frees the frame. What was not written never will be.
    if (dirty_.erase(fr.ticket)) written_.notify_all();
    fr.ticket = 0;
    p.state = PartState::kClean;
  }
}

bool FileTier::must_wake() { return std::exchange(sleeping_, false); }

}  // namespace oasis::kv
