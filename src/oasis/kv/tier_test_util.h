// For the tests of tiers: a small shape, parts filled with a pattern, and a storm of concurrent calls.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "oasis/kv/tier.h"

namespace oasis::kv {

constexpr int32_t kLayers = 2;

inline TierConfig test_config() {
  return {.shape = {.layers = kLayers, .kv_heads = 2, .head_dim = 16, .block_size = 16}, .extra_bytes = 40};
}

// A part's pattern differs in every word and for every seed.
inline uint32_t pattern(int64_t seed, int64_t word) {
  return static_cast<uint32_t>(seed * 2654435761 + word * 40503 + 17);
}

inline void fill(std::byte* bytes, int64_t seed) {
  for (int64_t word = 0; word < test_config().shape.part_bytes() / 4; ++word) {
    const uint32_t value = pattern(seed, word);
    std::memcpy(bytes + 4 * word, &value, 4);
  }
}

inline bool holds(const std::byte* bytes, int64_t seed) {
  for (int64_t word = 0; word < test_config().shape.part_bytes() / 4; ++word) {
    const uint32_t value = pattern(seed, word);
    if (std::memcmp(bytes + 4 * word, &value, 4) != 0) return false;
  }
  return true;
}

inline void write_part(Tier& tier, PartKey key, int64_t seed) {
  Result<std::byte*> bytes = tier.begin_write(key);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  fill(*bytes, seed);
  tier.end_write(key);
}

// A path in the temporary folder that no other test uses.
inline std::string temp_path() {
  static std::atomic<int> count = 0;
  return ::testing::TempDir() + fmt::format("oasis_kv_test.{}.{}", getpid(), count++);
}

template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// One writer drops and rewrites homes while readers prefetch, fetch, acquire and check them, for at least `rounds`. A
// home's lock stands for its references: it is dropped and rewritten while nobody holds it.
inline void hammer(Tier& tier, uint64_t seed, int rounds) {
  constexpr int kReaders = 2;
  const int32_t homes = std::min(tier.homes(), 24);
  std::vector<std::shared_mutex> held(static_cast<size_t>(homes));
  std::vector<std::atomic<int64_t>> version(static_cast<size_t>(homes));  // 0: not written
  std::atomic<bool> stop = false;
  std::atomic<int64_t> checked = 0, wrong = 0;
  const auto read = [&](uint64_t reader_seed) {
    std::mt19937_64 random(reader_seed);
    while (!stop) {
      const auto home = static_cast<size_t>(random() % static_cast<uint64_t>(homes));
      std::shared_lock lock(held[home]);
      if (version[home] == 0) continue;
      std::vector<PartKey> parts;
      for (int32_t layer = 0; layer < kLayers; ++layer) parts.push_back({static_cast<HomeId>(home), layer});
      const int64_t expected = version[home] * 100 + static_cast<int64_t>(home);
      const auto check = [&](PartKey key) {
        const std::byte* bytes = tier.acquire(key);
        if (!bytes) return false;
        if (!holds(bytes, expected + key.layer)) ++wrong;
        tier.release(key);
        ++checked;
        return true;
      };
      switch (random() % 3) {
        case 0:
          tier.prefetch(parts);
          break;
        case 1:
          if (tier.present(parts[0])) check(parts[0]);
          break;
        default: {
          FetchTicket ticket;
          tier.fetch(parts, ticket);
          const Status status = ticket.wait();
          EXPECT_TRUE(status.ok()) << status.message();
          for (const PartKey key : parts) EXPECT_TRUE(check(key));
          for (const PartKey key : parts) tier.release(key);
        }
      }
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) readers.emplace_back(read, seed + 1 + static_cast<uint64_t>(i));
  std::mt19937_64 random(seed);
  for (int round = 1; round <= rounds || (checked < rounds / 4 && round < 100 * rounds); ++round) {
    const auto home = static_cast<size_t>(random() % static_cast<uint64_t>(homes));
    std::lock_guard lock(held[home]);
    if (version[home] != 0) tier.drop(static_cast<HomeId>(home));
    version[home] = 0;
    if (random() % 8 == 0) continue;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      write_part(tier, {static_cast<HomeId>(home), layer}, round * 100 + static_cast<int64_t>(home) + layer);
    }
    version[home] = round;
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(checked, 0);
}

}  // namespace oasis::kv
