#include "oasis/kv/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "oasis/base/units.h"

namespace oasis::kv {
namespace {

// Of control group v2 at `group` ("/a/b"), walking up to the root; no limit found: the largest int64_t.
int64_t control_group_limit(std::string group) {
  int64_t limit = std::numeric_limits<int64_t>::max();
  while (true) {
    std::ifstream file("/sys/fs/cgroup" + group + "/memory.max");
    int64_t bytes = 0;
    if (file >> bytes && bytes > 0) limit = std::min(limit, bytes);  // "max" does not parse
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

}  // namespace

int64_t host_memory_limit_bytes() {
  int64_t limit = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) limit = std::min(limit, control_group_limit(line.substr(3)));
  }
  int64_t v1 = 0;
  if (std::ifstream("/sys/fs/cgroup/memory/memory.limit_in_bytes") >> v1 && v1 > 0) limit = std::min(limit, v1);
  return limit;
}

Result<HostArena> HostArena::create(const char* what, int64_t bytes, Device* device) {
  const int64_t limit = host_memory_limit_bytes();
  if (bytes > limit) {
    return resource_exhausted("{}: {} are more than the {} of memory that this process may have; ask for less", what,
                              format_bytes(bytes), format_bytes(limit));
  }
  HostArena arena;
  arena.bytes_ = std::max<int64_t>(bytes, 1);
  if (device && device->backend() != Backend::kCpu) {
    OASIS_ASSIGN_OR_RETURN(arena.pinned_, device->allocate_pinned(static_cast<size_t>(arena.bytes_)));
    arena.data_ = arena.pinned_.data();
    return arena;
  }
  void* data = mmap(nullptr, static_cast<size_t>(arena.bytes_), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return resource_exhausted("{}: mmap of {}: {}; ask for less", what, format_bytes(bytes), std::strerror(errno));
  }
  arena.data_ = static_cast<std::byte*>(data);
  madvise(data, static_cast<size_t>(arena.bytes_), MADV_HUGEPAGE);  // fewer TLB misses in gathers; advice only
  return arena;
}

HostArena::HostArena(HostArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      pinned_(std::move(other.pinned_)) {}

HostArena& HostArena::operator=(HostArena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(pinned_, other.pinned_);
  return *this;
}

HostArena::~HostArena() {
  if (data_ && pinned_.bytes() == 0) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace oasis::kv
