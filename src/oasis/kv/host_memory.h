// Host memory as the tiers take it: large, page-aligned, touched lazily.
#pragma once

#include <cstddef>
#include <cstdint>

#include "oasis/base/status.h"
#include "oasis/device/device.h"

namespace oasis::kv {

// The most bytes that this process can ever hold: the machine's memory, or less if its control group says so.
int64_t host_memory_limit_bytes();

// An anonymous mapping: zeroed, aligned to a page, given its memory as it is touched. Pinned for a GPU it is neither
// zeroed nor given lazily.
class HostArena {
 public:
  HostArena() = default;
  // Refuses what the machine or the control group cannot hold: memory that is touched lazily would fail by SIGKILL
  // later. With `device` (borrowed during the call) its kernels can read and write the memory in place; a GPU pins it.
  static Result<HostArena> create(const char* what, int64_t bytes, Device* device = nullptr);
  HostArena(HostArena&& other) noexcept;
  HostArena& operator=(HostArena&& other) noexcept;
  ~HostArena();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Buffer pinned_;  // what data_ points into, if a device gave it
};

}  // namespace oasis::kv
