#include "oasis/draft/eagle3_cache.h"

#include <algorithm>
#include <cstring>

namespace oasis::draft {

Result<Eagle3Cache> Eagle3Cache::create(Device& device, const CacheShape& shape) {
  Eagle3Cache cache;
  cache.shape_ = shape;
  cache.stream_ = &device.foreground();
  cache.sequences_.resize(static_cast<size_t>(shape.max_sequences));
  OASIS_ASSIGN_OR_RETURN(cache.memory_, device.allocate(static_cast<size_t>(shape.bytes())));
  return cache;
}

kernels::PoolView Eagle3Cache::view() const {
  const int64_t row_bytes = shape_.kv.head_dim * shape_.kv.element_bytes();
  return {.base = memory_.data(),
          .page_stride = shape_.kv.page_bytes(),
          .head_stride = shape_.kv.block_head_bytes(),
          .token_stride = row_bytes,
          .v_offset = shape_.kv.block_size * row_bytes,
          .type = shape_.kv.type};
}

void Eagle3Cache::attach(int32_t sequence) { at(sequence) = {.attached = true}; }

void Eagle3Cache::detach(int32_t sequence) { at(sequence) = {}; }

void Eagle3Cache::advance(int32_t sequence, int32_t first, int32_t rows) {
  Sequence& s = at(sequence);
  OASIS_CHECK(s.attached, "sequence {} is not attached to the drafter", sequence);
  if (s.next_row == 0 && first % shape_.kv.block_size == 0) {
    s.begin_block = first / shape_.kv.block_size;
  } else {
    OASIS_CHECK(first <= s.next_row, "sequence {}: a row at {} comes after a gap, {} is next", sequence, first,
                s.next_row);
  }
  s.next_row = first + rows;
}

int32_t Eagle3Cache::first_block(int32_t sequence, int32_t position) const {
  return std::max(at(sequence).begin_block, position / shape_.kv.block_size - shape_.window_blocks + 1);
}

float* Eagle3Cache::feature(int32_t sequence, int32_t block) const {
  const int64_t pages = int64_t{shape_.max_sequences} * shape_.ring_pages();
  auto* features = reinterpret_cast<float*>(memory_.data() + pages * shape_.kv.page_bytes());
  const int64_t slot = int64_t{sequence} * shape_.kept_features() + block % shape_.kept_features();
  return features + slot * shape_.feature_dim;
}

void Eagle3Cache::keep_feature(Stream& stream, int32_t sequence, int32_t position, const float* values) {
  if ((position + 1) % shape_.kv.block_size != 0) return;
  stream.copy(feature(sequence, position / shape_.kv.block_size), values,
              static_cast<size_t>(shape_.feature_dim) * sizeof(float));
}

void Eagle3Cache::read_record(int32_t sequence, int32_t block, std::byte* record) const {
  const Sequence& s = at(sequence);
  OASIS_CHECK(block >= s.begin_block && (block + 1) * shape_.kv.block_size <= s.next_row &&
                  block > s.next_row / shape_.kv.block_size - shape_.kept_features(),
              "sequence {}: block {} is not at hand, its next row is {}", sequence, block, s.next_row);
  const int64_t page_bytes = shape_.kv.page_bytes(), row_bytes = shape_.kv.head_dim * shape_.kv.element_bytes();
  stream_->copy(record, page_data(sequence, block), static_cast<size_t>(page_bytes));
  for (int64_t run = 1; run <= 2 * shape_.kv.kv_heads; ++run)  // K and V of each head: [block_size, d]
    std::memset(record + (run * shape_.kv.block_size - 1) * row_bytes, 0, static_cast<size_t>(row_bytes));
  stream_->copy(record + page_bytes, feature(sequence, block), static_cast<size_t>(shape_.feature_dim) * sizeof(float));
}

const float* Eagle3Cache::write_record(int32_t sequence, int32_t block, const std::byte* record) {
  stream_->copy(page_data(sequence, block), record, static_cast<size_t>(shape_.kv.page_bytes()));
  float* last = feature(sequence, block);
  stream_->copy(last, record + shape_.kv.page_bytes(), static_cast<size_t>(shape_.feature_dim) * sizeof(float));
  return last;
}

namespace {

struct SavedHeader {
  int32_t begin_block, next_row, first_block, blocks;
};

}  // namespace

std::vector<std::byte> Eagle3Cache::save(int32_t sequence) const {
  const Sequence& s = at(sequence);
  const int32_t first = first_block(sequence, s.next_row), open = s.next_row / shape_.kv.block_size;
  const SavedHeader header = {s.begin_block, s.next_row, first, open - first + 1};
  const auto page_bytes = static_cast<size_t>(shape_.kv.page_bytes());
  std::vector<std::byte> state(sizeof(header) + static_cast<size_t>(header.blocks) * page_bytes);
  std::memcpy(state.data(), &header, sizeof(header));
  for (int32_t i = 0; i < header.blocks; ++i)
    stream_->copy(state.data() + sizeof(header) + static_cast<size_t>(i) * page_bytes, page_data(sequence, first + i),
                  page_bytes);
  return state;
}

Status Eagle3Cache::restore(int32_t sequence, std::span<const std::byte> state) {
  SavedHeader header{};
  if (state.size() < sizeof(header))
    return data_corruption("a saved draft state of {} bytes is shorter than its header", state.size());
  std::memcpy(&header, state.data(), sizeof(header));
  const int32_t open = header.next_row / shape_.kv.block_size;
  const auto page_bytes = static_cast<size_t>(shape_.kv.page_bytes());
  if (header.begin_block < 0 || header.next_row < 0 ||
      header.first_block != std::max(header.begin_block, open - shape_.window_blocks + 1) ||
      header.blocks != open - header.first_block + 1 || header.blocks < 1 ||
      state.size() != sizeof(header) + static_cast<size_t>(header.blocks) * page_bytes)
    return data_corruption("a saved draft state of {} bytes ({} blocks, next row {}) does not fit this drafter",
                           state.size(), header.blocks, header.next_row);
  at(sequence) = {.attached = true, .begin_block = header.begin_block, .next_row = header.next_row};
  for (int32_t i = 0; i < header.blocks; ++i)
    stream_->copy(page_data(sequence, header.first_block + i),
                  state.data() + sizeof(header) + static_cast<size_t>(i) * page_bytes, page_bytes);
  return {};
}

}  // namespace oasis::draft
