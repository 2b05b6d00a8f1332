#include "oasis/common.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace oasis::app {
namespace {

volatile std::sig_atomic_t asked_by = 0;
int output_error = 0;  // errno of the first write to stdout that failed

}  // namespace

int fail(const Status& status) {
  return fail(status, status.code() == StatusCode::kInvalidArgument ? kUsage : kFailed);
}

int fail(const Status& status, int code) {
  complain(status.message());
  return code;
}

void complain(std::string_view message) {
  std::string line = "oasis: ";
  for (const char c : message) {  // names out of files and command lines may hold what moves a terminal's cursor
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // where nobody can hear it, the exit code still tells
}

void hold_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

void write_out(std::string_view text) {
  if (output_error != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    output_error = errno;
  }
}

bool output_lost() { return output_error != 0; }

int finish_output(int code) {
  if (output_error == 0 && std::fflush(stdout) != 0) output_error = errno;
  if (output_error == 0) return code;
  if (output_error == EPIPE) return 128 + SIGPIPE;  // the reader has seen enough: `| head -1`
  return fail(io_error("cannot write to standard output: {}", std::strerror(output_error)), kFailed);
}

void watch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) {
    if (asked_by != 0) ::_exit(128 + signal);
    asked_by = signal;
  };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup;
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);  // under nohup it stays ignored
}

int interrupted() { return asked_by; }
void forget_interrupt() { asked_by = 0; }

Progress::Progress(std::string what) : what_(std::move(what)), shown_(::isatty(STDERR_FILENO) == 1) {}
Progress::~Progress() { clear(); }

void Progress::update(int64_t done, int64_t total) {
  if (!shown_ || total <= 0) return;
  const int percent = static_cast<int>(100 * done / total);
  if (percent == last_) return;
  last_ = percent;
  drawn_ = true;
  const int filled = percent * 30 / 100;
  const std::string bar = fmt::format("\r{} [{:.<30}] {:3}%  {} of {}", what_,
                                      std::string(static_cast<size_t>(filled), '#'), percent, done, total);
  std::fputs(bar.c_str(), stderr);
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
  last_ = -1;
}

int64_t peak_rss_bytes() {
  struct rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace oasis::app
