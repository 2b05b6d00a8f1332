// The fast tier's memory: pages of slots, and pages of summaries. Sized once, never grows.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/device/device.h"
#include "oasis/kernels/views.h"
#include "oasis/kv/shape.h"

namespace oasis::kv {

// Hands out page numbers 0 .. count-1. A page freed in step t may still be read or written by transfers of step t, so
// it comes back only when `release_through(t)` is called: deferred free by step number. Not thread-safe: the engine's
// thread owns it.
class PageAllocator {
 public:
  explicit PageAllocator(int32_t count);
  int32_t count() const { return count_; }
  int32_t available() const { return static_cast<int32_t>(free_.size()); }  // deferred ones not included
  int32_t deferred() const { return static_cast<int32_t>(deferred_.size()); }
  int32_t in_use_peak() const { return peak_; }  // deferred ones included
  // A page with one reference, or -1 when none is left.
  int32_t allocate();
  void ref(int32_t page);
  // Drops a reference; the last one defers the page to the end of `step`.
  void unref(int32_t page, int64_t step);
  int32_t refs(int32_t page) const { return refs_[static_cast<size_t>(page)]; }
  // Everything freed in steps <= step comes back.
  void release_through(int64_t step);
  // Every page is either free, deferred or referenced, and no page twice.
  Status check_integrity() const;

 private:
  struct Deferred {
    int32_t page;
    int64_t step;
  };
  int32_t count_, peak_ = 0;
  std::vector<int32_t> free_;
  std::vector<int32_t> refs_;
  std::vector<Deferred> deferred_;
};

// KV pages. Layer-major: base[layer] + page * page_stride + head * head_stride.
class PagePool {
 public:
  // Fails with the bytes asked for.
  static Result<PagePool> create(Device& device, const KvShape& shape, int32_t pages);
  PageAllocator& allocator() { return allocator_; }
  const PageAllocator& allocator() const { return allocator_; }
  kernels::PoolView view(int32_t layer) const;
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }
  // Test mode: fills the page (all layers and heads), or one slot, with NaN, in the order of the foreground stream.
  void poison(int32_t page);
  void poison(int32_t page, int32_t layer, int32_t head);

 private:
  PagePool(Device& device, const KvShape& shape, int32_t pages)
      : stream_(&device.foreground()), shape_(shape), allocator_(pages) {}
  Stream* stream_;
  KvShape shape_;
  PageAllocator allocator_;
  Buffer memory_;
};

// Summary pages, one a block, shared by the sequences that share the block (references in the allocator).
class SummaryPool {
 public:
  static Result<SummaryPool> create(Device& device, const KvShape& shape, int32_t pages);
  PageAllocator& allocator() { return allocator_; }
  const PageAllocator& allocator() const { return allocator_; }
  kernels::SummaryView view(int32_t layer) const;
  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }
  // Copies a page's rows (all layers and heads, shape.summary_page_bytes()) out to or in from a home record, after what
  // the foreground stream was given before; done on return.
  void read(int32_t page, std::byte* out) const;
  void write(int32_t page, const std::byte* in);

 private:
  SummaryPool(Device& device, const KvShape& shape, int32_t pages)
      : stream_(&device.foreground()), shape_(shape), allocator_(pages) {}
  Stream* stream_;
  KvShape shape_;
  PageAllocator allocator_;
  Buffer memory_;
};

}  // namespace oasis::kv
