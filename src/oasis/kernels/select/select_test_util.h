// What the tests of select share: a head's map in memory of its own, and one call with everything it needs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "oasis/kernels/backend_test_util.h"
#include "oasis/kernels/select/select.h"
#include "oasis/kernels/select/select_ref.h"

namespace oasis::kernels::select_test {

inline constexpr int64_t kOpenBlocks = 7;  // at most, in these tests
inline constexpr float kNoThreshold = -std::numeric_limits<float>::infinity();

// One head's map in memory of its own.
struct OwnedMap {
  std::vector<int32_t> slot_of_block, block_of_slot, last_predicted;

  OwnedMap(int32_t blocks, int32_t slots)
      : slot_of_block(static_cast<size_t>(blocks), -1),
        block_of_slot(static_cast<size_t>(slots), -1),
        last_predicted(static_cast<size_t>(slots), 12345) {}

  HeadMap view() { return {slot_of_block.data(), block_of_slot.data(), last_predicted.data()}; }

  void put(int32_t block, int32_t slot, int32_t last) {
    slot_of_block[static_cast<size_t>(block)] = slot;
    block_of_slot[static_cast<size_t>(slot)] = block;
    last_predicted[static_cast<size_t>(slot)] = last;
  }

  // Writes the same state into slots drawn at random, as a resumed sequence does.
  void scatter(const RefHead& head, std::mt19937& random) {
    std::fill(slot_of_block.begin(), slot_of_block.end(), -1);
    std::fill(block_of_slot.begin(), block_of_slot.end(), -1);
    std::vector<int32_t> order(block_of_slot.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    size_t next = 0;
    for (auto [block, last] : head.residents) put(block, order[next++], last);
    for (int32_t block : head.open) put(block, order[next++], HeadMap::kOpen);
  }

  // The state as sets; fails where map and inverse disagree.
  RefHead read() const {
    RefHead out;
    size_t mapped = 0;
    for (size_t slot = 0; slot < block_of_slot.size(); ++slot) {
      const int32_t block = block_of_slot[slot];
      if (block < 0) continue;
      EXPECT_EQ(slot_of_block[static_cast<size_t>(block)], static_cast<int32_t>(slot));
      if (last_predicted[slot] == HeadMap::kOpen) {
        out.open.insert(block);
      } else {
        out.residents[block] = last_predicted[slot];
      }
      ++mapped;
    }
    for (int32_t slot : slot_of_block) mapped -= slot >= 0;
    EXPECT_EQ(mapped, 0u);
    return out;
  }
};

// Everything that one call of select needs, for items x heads, with the outcome of each head.
struct Call {
  std::vector<SelectItem> items;
  std::vector<std::vector<HeadMap>> maps;
  int64_t heads;
  int64_t stride;
  std::vector<int32_t> predicted, predicted_count;
  std::vector<float> scores, spread;
  std::vector<Fetch> fetches, wanted;
  std::vector<int32_t> fetch_count, wanted_count, list_count, stats;
  std::vector<ListEntry> list;
  int64_t* budget = nullptr;

  Call(int64_t item_count, int64_t head_count, int64_t row)
      : items(static_cast<size_t>(item_count)), maps(items.size()), heads(head_count), stride(row) {
    const size_t n = items.size() * static_cast<size_t>(heads), m = n * static_cast<size_t>(stride);
    predicted.resize(m, -7);
    scores.resize(m);
    fetches.resize(m);
    wanted.resize(m);
    list.resize(m + n * kOpenBlocks);
    predicted_count.resize(n);
    spread.resize(n);
    fetch_count.resize(n, -1);
    wanted_count.resize(n, -1);
    list_count.resize(n, -1);
    stats.resize(n * 4, -1);
  }

  SelectParams params() {
    for (size_t i = 0; i < items.size(); ++i) items[i].maps = maps[i].data();
    return {.items = static_cast<int64_t>(items.size()),
            .kv_heads = heads,
            .item = items.data(),
            .predicted = predicted.data(),
            .predicted_scores = scores.data(),
            .predicted_count = predicted_count.data(),
            .predicted_stride = stride,
            .spread = spread.data(),
            .budget = budget,
            .fetches = fetches.data(),
            .fetch_count = fetch_count.data(),
            .wanted = wanted.data(),
            .wanted_count = wanted_count.data(),
            .fetch_stride = stride,
            .list = list.data(),
            .list_count = list_count.data(),
            .list_stride = stride + kOpenBlocks,
            .stats = stats.data()};
  }

  void predict(size_t at, const std::vector<int32_t>& p, const std::vector<float>& s) {
    std::copy(p.begin(), p.end(), predicted.begin() + static_cast<int64_t>(at) * stride);
    std::copy(s.begin(), s.end(), scores.begin() + static_cast<int64_t>(at) * stride);
    predicted_count[at] = static_cast<int32_t>(p.size());
  }

  std::vector<int32_t> blocks_of(const std::vector<Fetch>& from, const std::vector<int32_t>& count, size_t at) const {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < count[at]; ++i)
      out.push_back(from[at * static_cast<size_t>(stride) + static_cast<size_t>(i)].block);
    return out;
  }
  std::vector<int32_t> admitted(size_t at) const { return blocks_of(fetches, fetch_count, at); }
  std::vector<int32_t> wanted_blocks(size_t at) const { return blocks_of(wanted, wanted_count, at); }
  std::vector<int32_t> listed(size_t at) const {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < list_count[at]; ++i) {
      out.push_back(list[at * static_cast<size_t>(stride + kOpenBlocks) + static_cast<size_t>(i)].block);
    }
    return out;
  }
};

}  // namespace oasis::kernels::select_test
