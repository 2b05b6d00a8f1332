#include "oasis/kv/tier.h"

namespace oasis::kv {

bool FetchTicket::done() const {
  std::lock_guard lock(mutex_);
  return left_ == 0;
}

Status FetchTicket::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return left_ == 0; });
  return status_;
}

void FetchTicket::start(int64_t parts) {
  {
    std::lock_guard lock(mutex_);
    OASIS_CHECK(left_ == -1, "a ticket is used for one batch");
    left_ = parts + 1;  // one for start itself, so that on_done cannot come before all parts are counted
  }
  finish(1, {});
}

void FetchTicket::finish(int64_t parts, const Status& status) {
  std::function<void()> on_done;
  {
    std::lock_guard lock(mutex_);
    OASIS_CHECK(left_ >= parts, "more parts finished than started");
    if (!status.ok() && status_.ok()) status_ = status;
    left_ -= parts;
    if (left_ > 0) return;
    on_done = std::move(on_done_);
    changed_.notify_all();  // under the lock: the waiter may destroy the ticket as soon as it has the lock
  }
  if (on_done) on_done();
}

}  // namespace oasis::kv
