// The I/O thread of the file tier: the one arbiter of the link.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "oasis/base/units.h"
#include "oasis/kv/file_tier.h"

namespace oasis::kv {
namespace {

// How long a fetch waits for frames when nothing moves, and how often that is looked at.
constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kForever = std::chrono::hours(1);

}  // namespace

void FileTier::run() {
  const auto part_bytes = static_cast<size_t>(shape_.part_bytes());
  std::vector<IoResult> results;
  while (true) {
    FinishedList finished;
    std::vector<IoRequest> requests;
    std::chrono::milliseconds timeout = kForever;
    {
      std::lock_guard lock(mutex_);
      if (stop_ && reads_in_flight_ + writes_in_flight_ == 0) return;
      if (!stop_) requests = collect();
      give_up_waiting(finished);
      if (!pending_.empty()) timeout = kLook;
      sleeping_ = true;
    }
    tell(finished);
    for (const IoRequest& request : requests) {
      // Nobody writes to a dirty frame, so no lock is needed.
      if (request.write) frame(static_cast<int32_t>(request.tag)).checksum = XXH3_64bits(request.data, part_bytes);
    }
    backend_->submit(requests);

    results.clear();
    backend_->wait(timeout, results);
    finished.clear();
    for (const auto& [tag, error] : results) {
      const auto f = static_cast<int32_t>(tag);
      const bool read = !frame(f).writes;  // set by this thread
      const uint64_t checksum = read && error == 0 ? XXH3_64bits(data(f), part_bytes) : frame(f).checksum;
      std::lock_guard lock(mutex_);
      finish_io(f, error, checksum, finished);
    }
    {
      std::lock_guard lock(mutex_);
      sleeping_ = false;
      grant(finished);
    }
    tell(finished);
  }
}

std::vector<IoRequest> FileTier::collect() {
  const int depth = backend_->depth();
  std::vector<IoRequest> requests;
  const int read_places = std::max(1, depth / 2);
  collect_from(awaited_, false, reads_in_flight_, read_places, requests);
  collect_from(hints_, false, reads_in_flight_, read_places, requests);
  // Half of the places stay free for reads that come while there are none.
  const int write_places = std::max(1, reads_in_flight_ > 0 ? depth / 8 : depth / 2);
  collect_from(writes_, true, writes_in_flight_, write_places, requests);
  return requests;
}

void FileTier::collect_from(std::deque<Queued>& queue, bool write, int& in_flight, int limit,
                            std::vector<IoRequest>& requests) {
  std::vector<Queued> later;
  while (in_flight < limit && !queue.empty()) {
    const Queued next = queue.front();
    queue.pop_front();
    Frame& fr = frame(next.frame);
    if (fr.ticket != next.ticket || fr.moving != kNoPart) continue;  // stale, or under way
    if (part(fr.part).in_flight) {
      later.push_back(next);  // an I/O of the home's former owner is still at this place of the file
      continue;
    }
    part(fr.part).in_flight = true;
    fr.moving = fr.part;
    fr.writes = write;
    ++in_flight;
    requests.push_back({.write = write,
                        .data = data(next.frame),
                        .bytes = plan_.frame_bytes,
                        .offset = TierFile::kHeaderBytes + fr.part * plan_.frame_bytes,
                        .tag = next.frame});
  }
  queue.insert(queue.begin(), later.begin(), later.end());
}

// A fetch whose frames are pinned by callers who wait themselves would wait for ever: it is refused.
void FileTier::give_up_waiting(FinishedList& finished) {
  if (pending_.empty()) return;
  if (reads_in_flight_ + writes_in_flight_ > 0) {
    pending_since_ = Clock::now();
    return;
  }
  if (Clock::now() - pending_since_ < kPatience) return;
  refuse(pending_.front(),
         resource_exhausted(
             "--capacity-memory {}: all {} parts of {} that it caches are in use, none is free for a read; raise it",
             format_bytes(plan_.memory_bytes), plan_.frames, format_bytes(plan_.frame_bytes)),
         finished);
  pending_.pop_front();
  pending_since_ = Clock::now();
}

Status FileTier::read_error(int64_t i, int error, uint64_t checksum) {
  const PartKey k = key(i);
  if (error == IoResult::kEndOfFile) {
    ++stats_.checksum_failures;
    return data_corruption("--capacity-file {} ends before home {} layer {}: somebody truncated it", file_.path(),
                           k.home, k.layer);
  }
  if (error != 0) {
    return io_error("--capacity-file {}: read of home {} layer {}: {}", file_.path(), k.home, k.layer,
                    std::strerror(error));
  }
  if (checksum == part(i).checksum) return {};
  ++stats_.checksum_failures;
  return data_corruption(
      "--capacity-file {}: home {} layer {} has checksum {:016x}, {:016x} was written: the file was changed "
      "or its disk is faulty",
      file_.path(), k.home, k.layer, checksum, part(i).checksum);
}

void FileTier::finish_io(int32_t f, int error, uint64_t checksum, FinishedList& finished) {
  Frame& fr = frame(f);
  const int64_t i = std::exchange(fr.moving, kNoPart);
  part(i).in_flight = false;
  --(fr.writes ? writes_in_flight_ : reads_in_flight_);
  if (error == 0) (fr.writes ? stats_.bytes_written : stats_.bytes_read) += plan_.frame_bytes;
  if (fr.part == kNoPart) {  // its home was dropped or failed meanwhile
    free_.push_back(f);
    room_.notify_all();
    return;
  }
  const HomeId home = key(i).home;
  if (failed(home)) {
    settle(f);
    return;
  }
  if (fr.writes) {
    if (error != 0) {
      fail_home(home,
                io_error("--capacity-file {}: write of home {} layer {}: {}", file_.path(), home, key(i).layer,
                         std::strerror(error)),
                finished);
      return;
    }
    part(i).checksum = checksum;
  } else if (const Status status = read_error(i, error, checksum); !status.ok()) {
    fail_home(home, status, finished);
    return;
  }
  if (dirty_.erase(fr.ticket)) written_.notify_all();
  fr.ticket = 0;
  part(i).state = PartState::kClean;
  if (!fr.writes) {
    fr.hint = false;
    set_present(i, true);
    fr.pins = static_cast<int32_t>(fr.waiters.size());
    for (FetchTicket* ticket : std::exchange(fr.waiters, {})) finished.push_back({ticket, {}});
  }
  settle(f);
}

}  // namespace oasis::kv
