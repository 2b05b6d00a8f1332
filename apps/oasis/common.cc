#include "oasis/common.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

namespace oasis::app {
namespace {

volatile std::sig_atomic_t interrupts = 0;

}  // namespace

int fail(const Status& status) {
  fmt::print(stderr, "oasis: {}\n", status.message());
  return status.code() == StatusCode::kInvalidArgument ? kUsage : kFailed;
}

void watch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    interrupts = interrupts + 1;
    if (interrupts > 1) ::_exit(130);
  };
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupts > 0; }

Progress::Progress(std::string what) : what_(std::move(what)), shown_(::isatty(STDERR_FILENO) == 1) {}
Progress::~Progress() { clear(); }

void Progress::update(int64_t done, int64_t total) {
  if (!shown_ || total <= 0) return;
  const int percent = static_cast<int>(100 * done / total);
  if (percent == last_) return;
  last_ = percent;
  drawn_ = true;
  const int filled = percent * 30 / 100;
  fmt::print(stderr, "\r{} [{}{}] {:3}%  {} of {}", what_, std::string(static_cast<size_t>(filled), '#'),
             std::string(static_cast<size_t>(30 - filled), '.'), percent, done, total);
}

void Progress::clear() {
  if (drawn_) fmt::print(stderr, "\r\x1b[K");
  drawn_ = false;
  last_ = -1;
}

int64_t peak_rss_bytes() {
  struct rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace oasis::app
