// The file of a file tier: made, locked and reserved at the start, unlinked at the end.
#pragma once

#include <cstdint>
#include <string>

#include "oasis/base/status.h"

namespace oasis::kv {

class TierFile {
 public:
  // The first block says whose file it is; the rest is the caller's.
  static constexpr int64_t kHeaderBytes = 4096;
  // Offsets, lengths and addresses of I/O are multiples of this.
  static constexpr int64_t kAlign = 4096;

  // Of `bytes` in all, reserved on the disk. A left-over of an earlier run (killed, say) is used again; any other file
  // that is not empty is an error, and so is one that another process holds.
  static Result<TierFile> create(const std::string& path, int64_t bytes);
  TierFile(TierFile&& other) noexcept;
  TierFile& operator=(TierFile&& other) noexcept;
  ~TierFile();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  bool direct() const { return direct_; }      // O_DIRECT: past the page cache
  bool reserved() const { return reserved_; }  // false: this file system cannot reserve, so that it may fill up later

 private:
  TierFile() = default;
  Status lock();
  bool is_named(const std::string& path) const;  // the open file, not another of that name
  Status take_over();
  Status write_header();
  Status reserve();

  std::string path_;
  int64_t bytes_ = 0;
  int fd_ = -1;
  bool direct_ = true, reserved_ = true;
  bool ours_ = false;  // locked and empty or made by us: may be unlinked
};

}  // namespace oasis::kv
