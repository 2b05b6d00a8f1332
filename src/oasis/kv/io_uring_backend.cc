// Built only where liburing is found.
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "oasis/kv/io_backend.h"

namespace oasis::kv {
namespace {

constexpr int kDepth = 128;
constexpr uint64_t kWakeTag = ~uint64_t{0};

class UringBackend final : public IoBackend {
 public:
  explicit UringBackend(int fd) : fd_(fd), slots_(kDepth) {
    for (int slot = kDepth - 1; slot >= 0; --slot) free_.push_back(slot);
  }
  ~UringBackend() override {
    if (ring_made_) io_uring_queue_exit(&ring_);  // before event_'s memory goes: its read is still in flight
    if (event_fd_ >= 0) close(event_fd_);
  }

  Status open() {
    if (const int error = io_uring_queue_init(2 * kDepth, &ring_, 0); error < 0) {
      return unsupported("io_uring_setup: {}", std::strerror(-error));
    }
    ring_made_ = true;
    if (!(ring_.features & IORING_FEAT_EXT_ARG))
      return unsupported("this kernel's io_uring has no wait with a timeout");
    event_fd_ = eventfd(0, EFD_CLOEXEC);
    if (event_fd_ < 0) return unsupported("eventfd: {}", std::strerror(errno));
    await_wake();
    // Shows at once whether submission is allowed.
    if (const int n = io_uring_submit(&ring_); n != 1) return unsupported("io_uring_enter: {}", std::strerror(-n));
    return {};
  }

  std::string name() const override { return "io_uring"; }
  int depth() const override { return kDepth; }

  void submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      OASIS_CHECK(!free_.empty(), "more than {} requests in flight", kDepth);
      const int slot = free_.back();
      free_.pop_back();
      slots_[static_cast<size_t>(slot)] = {request, 0};
      prepare(slot);
    }
    if (!requests.empty()) io_uring_submit(&ring_);  // what it leaves behind goes with the next wait
  }

  void wait(std::chrono::milliseconds timeout, std::vector<IoResult>& done) override {
    __kernel_timespec time{timeout.count() / 1000, timeout.count() % 1000 * 1'000'000};
    io_uring_cqe* cqe = nullptr;
    io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &time, nullptr);
    unsigned head = 0, seen = 0;
    bool again = false;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      ++seen;
      if (cqe->user_data == kWakeTag) {
        await_wake();
        again = true;
      } else {
        again |= !complete(static_cast<int>(cqe->user_data), cqe->res, done);
      }
    }
    io_uring_cq_advance(&ring_, seen);
    if (again) io_uring_submit(&ring_);
  }

  void wake() override {
    const uint64_t one = 1;
    while (write(event_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

 private:
  struct Slot {
    IoRequest request;
    int64_t moved = 0;
  };

  io_uring_sqe* next_sqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    OASIS_CHECK(sqe, "the ring holds more than {} requests", 2 * kDepth);
    return sqe;
  }
  void await_wake() {
    io_uring_sqe* sqe = next_sqe();
    io_uring_prep_read(sqe, event_fd_, &event_, sizeof(event_), 0);
    io_uring_sqe_set_data64(sqe, kWakeTag);
  }
  void prepare(int slot) {
    const auto& [request, moved] = slots_[static_cast<size_t>(slot)];
    io_uring_sqe* sqe = next_sqe();
    const auto left = static_cast<unsigned>(request.bytes - moved);
    const auto offset = static_cast<uint64_t>(request.offset + moved);
    if (request.write) {
      io_uring_prep_write(sqe, fd_, request.data + moved, left, offset);
    } else {
      io_uring_prep_read(sqe, fd_, request.data + moved, left, offset);
    }
    io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(slot));
  }
  // False if the request goes on (interrupted, or part of it was moved).
  bool complete(int index, int moved, std::vector<IoResult>& done) {
    Slot& slot = slots_[static_cast<size_t>(index)];
    int error = 0;
    if (moved > 0) {
      slot.moved += moved;
    } else if (moved == 0) {
      error = slot.request.write ? ENOSPC : IoResult::kEndOfFile;
    } else if (moved == -EINVAL && !slot.request.write && slot.moved % 512 != 0) {
      error = IoResult::kEndOfFile;  // O_DIRECT cannot go on after a file that ends within a sector
    } else if (moved != -EINTR && moved != -EAGAIN) {
      error = -moved;
    }
    if (error == 0 && slot.moved < slot.request.bytes) {
      prepare(index);
      return false;
    }
    done.push_back({slot.request.tag, error});
    free_.push_back(index);
    return true;
  }

  const int fd_;
  io_uring ring_{};
  bool ring_made_ = false;
  int event_fd_ = -1;
  uint64_t event_ = 0;
  std::vector<Slot> slots_;
  std::vector<int> free_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend(int fd) {
  auto backend = std::make_unique<UringBackend>(fd);
  OASIS_RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace oasis::kv
