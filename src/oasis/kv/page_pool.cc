#include "oasis/kv/page_pool.h"

#include <algorithm>
#include <utility>

#include "oasis/base/units.h"

namespace oasis::kv {
namespace {

// All bits set is NaN in bf16, and in FP8 with its scale.
constexpr uint8_t kNaNByte = 0xff;

Result<Buffer> allocate_pages(Device& device, const char* what, int32_t pages, int64_t page_bytes) {
  int64_t bytes = 0;
  if (pages < 1) return invalid_argument("{}: {} pages asked for, need at least 1", what, pages);
  if (__builtin_mul_overflow(int64_t{pages}, page_bytes, &bytes)) {
    return resource_exhausted("{}: {} pages of {} are more than 2^63 bytes; ask for fewer", what, pages,
                              format_bytes(page_bytes));
  }
  Result<Buffer> memory = device.allocate(static_cast<size_t>(bytes));
  if (!memory.ok()) {
    return Status(memory.status().code(), fmt::format("{} (--fast-memory): {} pages of {}: {}", what, pages,
                                                      format_bytes(page_bytes), memory.status().message()));
  }
  return memory;
}

}  // namespace

PageAllocator::PageAllocator(int32_t count) : count_(count), refs_(static_cast<size_t>(count), 0) {
  free_.reserve(static_cast<size_t>(count));
  for (int32_t page = count - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PageAllocator::allocate() {
  if (free_.empty()) return -1;
  const int32_t page = free_.back();
  free_.pop_back();
  refs_[static_cast<size_t>(page)] = 1;
  peak_ = std::max(peak_, count_ - available());
  return page;
}

void PageAllocator::ref(int32_t page) {
  int32_t& refs = refs_.at(static_cast<size_t>(page));
  OASIS_CHECK(refs > 0, "ref of page {}, which nobody holds", page);
  ++refs;
}

void PageAllocator::unref(int32_t page, int64_t step) {
  int32_t& refs = refs_.at(static_cast<size_t>(page));
  OASIS_CHECK(refs > 0, "unref of page {}, which nobody holds", page);
  if (--refs == 0) deferred_.push_back({page, step});
}

void PageAllocator::release_through(int64_t step) {
  std::erase_if(deferred_, [&](const Deferred& d) {
    if (d.step > step) return false;
    free_.push_back(d.page);
    return true;
  });
}

Status PageAllocator::check_integrity() const {
  std::vector<int> seen(static_cast<size_t>(count_), 0);
  const auto count = [&](int32_t page) {
    if (page >= 0 && page < count_) ++seen[static_cast<size_t>(page)];
    return page >= 0 && page < count_ && refs_[static_cast<size_t>(page)] == 0;
  };
  for (const int32_t page : free_) {
    if (!count(page)) return Status(StatusCode::kInternal, fmt::format("page {} is free and in use", page));
  }
  for (const Deferred& d : deferred_) {
    if (!count(d.page)) return Status(StatusCode::kInternal, fmt::format("page {} is deferred and in use", d.page));
  }
  for (int32_t page = 0; page < count_; ++page) {
    const int32_t refs = refs_[static_cast<size_t>(page)];
    const int times = seen[static_cast<size_t>(page)] + (refs > 0 ? 1 : 0);
    if (refs < 0 || times != 1) {
      return Status(StatusCode::kInternal, fmt::format("page {} is {} times free or deferred and has {} references",
                                                       page, seen[static_cast<size_t>(page)], refs));
    }
  }
  return {};
}

Result<PagePool> PagePool::create(Device& device, const KvShape& shape, int32_t pages) {
  OASIS_RETURN_IF_ERROR(validate(shape));
  OASIS_ASSIGN_OR_RETURN(Buffer memory, allocate_pages(device, "KV pages", pages, shape.page_bytes()));
  PagePool pool(device, shape, pages);
  pool.memory_ = std::move(memory);
  return pool;
}

kernels::PoolView PagePool::view(int32_t layer) const {
  OASIS_CHECK(layer >= 0 && layer < shape_.layers, "layer {} of {}", layer, shape_.layers);
  kernels::PoolView view;
  view.base = memory_.data() + int64_t{layer} * allocator_.count() * shape_.part_bytes();
  view.page_stride = shape_.part_bytes();
  view.head_stride = shape_.block_head_bytes();
  view.token_stride = shape_.head_dim * shape_.element_bytes();
  view.v_offset = shape_.block_size * view.token_stride;
  view.scale_offset = 2 * view.v_offset;
  view.type = shape_.type;
  return view;
}

void PagePool::poison(int32_t page) {
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    stream_->fill(view(layer).k(page, 0, 0), kNaNByte, static_cast<size_t>(shape_.part_bytes()));
  }
}

void PagePool::poison(int32_t page, int32_t layer, int32_t head) {
  stream_->fill(view(layer).k(page, head, 0), kNaNByte, static_cast<size_t>(shape_.block_head_bytes()));
}

Result<SummaryPool> SummaryPool::create(Device& device, const KvShape& shape, int32_t pages) {
  OASIS_RETURN_IF_ERROR(validate(shape));
  OASIS_ASSIGN_OR_RETURN(Buffer memory, allocate_pages(device, "summary pages", pages, shape.summary_page_bytes()));
  SummaryPool pool(device, shape, pages);
  pool.memory_ = std::move(memory);
  return pool;
}

kernels::SummaryView SummaryPool::view(int32_t layer) const {
  OASIS_CHECK(layer >= 0 && layer < shape_.layers, "layer {} of {}", layer, shape_.layers);
  kernels::SummaryView view;
  view.head_stride = shape_.summary_rows_bytes();
  view.page_stride = shape_.kv_heads * view.head_stride;
  view.base = memory_.data() + int64_t{layer} * allocator_.count() * view.page_stride;
  view.type = shape_.summary_type;
  return view;
}

void SummaryPool::read(int32_t page, std::byte* out) const {
  const int64_t bytes = shape_.kv_heads * shape_.summary_rows_bytes();
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    stream_->copy(out + layer * bytes, view(layer).rows(page, 0), static_cast<size_t>(bytes));
  }
}

void SummaryPool::write(int32_t page, const std::byte* in) {
  const int64_t bytes = shape_.kv_heads * shape_.summary_rows_bytes();
  for (int32_t layer = 0; layer < shape_.layers; ++layer) {
    stream_->copy(view(layer).rows(page, 0), in + layer * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace oasis::kv
