#include "oasis/kv/tier_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "oasis/base/units.h"

namespace oasis::kv {
namespace {

constexpr std::string_view kMagic = "OasisKV tier file 1\n";
// After SIGKILL the kernel holds the lock until the dead process's last I/O is over.
constexpr auto kLockPatience = std::chrono::seconds(2);

struct alignas(TierFile::kAlign) Header {
  char bytes[TierFile::kHeaderBytes] = {};
};

std::string reason() { return std::strerror(errno); }

}  // namespace

Result<TierFile> TierFile::create(const std::string& path, int64_t bytes) {
  TierFile file;
  file.path_ = path;
  file.bytes_ = bytes;
  OASIS_RETURN_IF_ERROR(file.lock());
  OASIS_RETURN_IF_ERROR(file.take_over());
  OASIS_RETURN_IF_ERROR(file.write_header());
  OASIS_RETURN_IF_ERROR(file.reserve());
  return file;
}

// Opens and locks. The lock is on the very description that does the I/O, so that a successor cannot get it while a
// dead process's writes are in flight.
Status TierFile::lock() {
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (true) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (direct_ ? O_DIRECT : 0), 0600);
    if (fd_ < 0 && errno == EINVAL && direct_) {
      direct_ = false;
      continue;
    }
    if (fd_ < 0) {
      return io_error("--capacity-file {}: {}; name a file in a directory that exists and can be written to", path_,
                      reason());
    }
    struct stat mine;
    if (fstat(fd_, &mine) != 0) return io_error("--capacity-file {}: fstat: {}", path_, reason());
    if (!S_ISREG(mine.st_mode))
      return invalid_argument("--capacity-file {}: it is not a regular file; name another", path_);
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0) {
      // The last owner unlinks it before it unlocks: a file that lost its name meanwhile is not the one to use.
      if (is_named(path_)) return {};
    } else if (errno != EWOULDBLOCK && errno != EINTR) {
      return io_error("--capacity-file {}: flock: {}", path_, reason());
    } else if (std::chrono::steady_clock::now() > deadline) {
      return resource_exhausted("--capacity-file {}: it is in use by another process; name another or end that one",
                                path_);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    close(std::exchange(fd_, -1));
  }
}

bool TierFile::is_named(const std::string& path) const {
  struct stat mine, named;
  return fstat(fd_, &mine) == 0 && stat(path.c_str(), &named) == 0 && named.st_ino == mine.st_ino &&
         named.st_dev == mine.st_dev;
}

// Empties the file if it is ours to empty.
Status TierFile::take_over() {
  struct stat info;
  if (fstat(fd_, &info) != 0) return io_error("--capacity-file {}: fstat: {}", path_, reason());
  if (info.st_size > 0) {
    Header header;
    const ssize_t n = pread(fd_, header.bytes, sizeof(header), 0);
    if (n < 0) return io_error("--capacity-file {}: read: {}", path_, reason());
    if (n < static_cast<ssize_t>(kMagic.size()) || std::memcmp(header.bytes, kMagic.data(), kMagic.size()) != 0) {
      return invalid_argument("--capacity-file {}: it holds {} of something else; remove it or name another", path_,
                              format_bytes(static_cast<int64_t>(info.st_size)));
    }
    if (ftruncate(fd_, 0) != 0) return io_error("--capacity-file {}: truncate: {}", path_, reason());
  }
  ours_ = true;
  return {};
}

Status TierFile::write_header() {
  Header header;
  std::memcpy(header.bytes, kMagic.data(), kMagic.size());
  ssize_t n = pwrite(fd_, header.bytes, sizeof(header), 0);
  if (n < 0 && errno == EINVAL && direct_) {  // opened with O_DIRECT, but unable to do it
    direct_ = false;
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) & ~O_DIRECT);
    n = pwrite(fd_, header.bytes, sizeof(header), 0);
  }
  if (n == static_cast<ssize_t>(sizeof(header))) return {};
  if (n >= 0 || errno == ENOSPC || errno == EDQUOT) {
    return resource_exhausted("--capacity-file {}: {} asked for, but the disk is full; free space or ask for less",
                              path_, format_bytes(bytes_));
  }
  return io_error("--capacity-file {}: write: {}", path_, reason());
}

Status TierFile::reserve() {
  struct statvfs disk{};
  const bool known = fstatvfs(fd_, &disk) == 0;
  const auto block = static_cast<int64_t>(disk.f_frsize);
  const int64_t available = static_cast<int64_t>(disk.f_bavail) * block;
  const auto too_large = [&] {
    return resource_exhausted("--capacity-file {}: {} asked for, {} are free on its disk; free space or ask for less",
                              path_, format_bytes(bytes_), format_bytes(available));
  };
  // Asked first: some file systems fill the disk before they find out.
  if (known && bytes_ - kHeaderBytes > static_cast<int64_t>(disk.f_bfree) * block) return too_large();
  int result = 0;
  do {
    result = fallocate(fd_, 0, 0, bytes_);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return {};
  if (errno == ENOSPC || errno == EDQUOT) return too_large();
  if (errno == EFBIG) {
    return resource_exhausted(
        "--capacity-file {}: {} asked for, which is more than its disk or this process (ulimit -f) allows a file",
        path_, format_bytes(bytes_));
  }
  if (errno != EOPNOTSUPP && errno != ENOSYS) return io_error("--capacity-file {}: fallocate: {}", path_, reason());
  reserved_ = false;
  if (ftruncate(fd_, bytes_) != 0) return io_error("--capacity-file {}: truncate to {}: {}", path_, bytes_, reason());
  return {};
}

TierFile::TierFile(TierFile&& other) noexcept { *this = std::move(other); }

TierFile& TierFile::operator=(TierFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(direct_, other.direct_);
  std::swap(reserved_, other.reserved_);
  std::swap(ours_, other.ours_);
  return *this;
}

TierFile::~TierFile() {
  if (fd_ < 0) return;
  if (ours_) {
    std::error_code error;
    const std::string file = std::filesystem::canonical(path_, error);  // of a link, what it leads to
    // Whoever moved the file away may have put another in its place.
    if (!error && is_named(file)) unlink(file.c_str());
  }
  close(fd_);
}

}  // namespace oasis::kv
