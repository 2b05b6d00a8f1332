// The prefix cache from one store to the next over the same file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "oasis/kv/file_tier_fixture.h"
#include "oasis/kv/home_store.h"

namespace oasis::kv {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int32_t kHomes = 24;

class HomeStoreLasting : public FileTierTest {
 protected:
  HomeStoreLasting() : block_(test_config().shape.block_size), root_(prefix_root(1, test_config().shape, 2)) {}
  ~HomeStoreLasting() override {
    store_.reset();
    std::filesystem::remove(path_);
    std::filesystem::remove(index());
  }
  std::string index() const { return path_ + ".index"; }
  const PrefixKey identity_{7, 9};

  // A new run: the homes that it found.
  int32_t run(int32_t homes = kHomes, const PrefixKey& identity = {7, 9}) {
    store_.reset();
    auto tier = make_file_tier(test_config(), config(homes, 16));
    EXPECT_TRUE(tier.ok()) << tier.status().message();
    store_ = std::make_unique<HomeStore>(std::move(*tier), block_);
    const int32_t found = store_->restore(identity, root_);
    EXPECT_EQ(store_->stats().cached, found);
    EXPECT_TRUE(store_->check_integrity().ok()) << store_->check_integrity().message();
    return found;
  }
  void save() { ASSERT_TRUE(store_->save(identity_).ok()); }

  Tokens tokens(int32_t blocks, int32_t seed) const {
    Tokens all(static_cast<size_t>(blocks * block_ + 1));
    std::iota(all.begin(), all.end(), seed * 1000);
    return all;
  }
  static int64_t bytes_of(int32_t seed, int32_t block, int32_t layer) { return seed * 100 + block * 10 + layer; }
  // Computes, publishes and gives up `blocks` blocks; returns their homes.
  std::vector<HomeId> cache(int32_t blocks, int32_t seed) {
    const Tokens all = tokens(blocks, seed);
    std::vector<HomeId> chain;
    EXPECT_TRUE(store_->reserve(blocks).value());
    for (int32_t b = 0; b < blocks; ++b) {
      const HomeId home = store_->allocate_reserved();
      for (int32_t layer = 0; layer < kLayers; ++layer)
        write_part(store_->tier(), {home, layer}, bytes_of(seed, b, layer));
      std::memset(store_->tier().meta(home), seed * 16 + b, static_cast<size_t>(store_->tier().meta_bytes()));
      const auto block = std::span(all).subspan(static_cast<size_t>(b * block_), static_cast<size_t>(block_));
      EXPECT_EQ(store_->publish(home, b == 0 ? kNoHome : chain.back(), root_, block, Provenance::kDense), home);
      chain.push_back(home);
    }
    give_up(chain);
    return chain;
  }
  void give_up(const std::vector<HomeId>& homes) {
    for (const HomeId home : homes) store_->unref(home, 0);
    store_->release_through(0);
  }
  // How many blocks are matched and read well; the others' store forgets.
  int32_t good(int32_t blocks, int32_t seed) {
    const std::vector<HomeId> chain = store_->match(root_, tokens(blocks, seed), Provenance::kDense);
    int32_t count = 0;
    for (int32_t b = 0; b < static_cast<int32_t>(chain.size()); ++b) {
      const HomeId home = chain[static_cast<size_t>(b)];
      EXPECT_EQ(static_cast<int32_t>(*store_->tier().meta(home)), seed * 16 + b);
      bool all = true;
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        FetchTicket ticket;
        const PartKey key{home, layer};
        store_->tier().fetch(std::vector{key}, ticket);
        const bool ok = ticket.wait().ok();
        if (ok) {
          EXPECT_TRUE(holds(store_->tier().acquire(key), bytes_of(seed, b, layer)));
          store_->tier().release(key);
        }
        store_->tier().release(key);
        all &= ok;
      }
      count += all;
    }
    give_up(chain);
    EXPECT_TRUE(store_->check_integrity().ok()) << store_->check_integrity().message();
    return count;
  }
  void flip(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.good());
  }

  const int32_t block_;
  const PrefixKey root_;
  std::unique_ptr<HomeStore> store_;
};

TEST_F(HomeStoreLasting, WhatWasCachedIsThereInTheNextRunAndInTheOneAfter) {
  EXPECT_EQ(run(), 0);
  cache(5, 1);
  cache(3, 2);
  save();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run(), 8);
    EXPECT_EQ(good(5, 1), 5);
    EXPECT_EQ(good(3, 2), 3);
    EXPECT_EQ(store_->stats().prefix_misses, 0);
    save();
  }
  struct stat info;
  ASSERT_EQ(stat(index().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(HomeStoreLasting, WithNothingCachedNothingIsLeftBehind) {
  run();
  save();
  store_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(index()));
}

// case 32
TEST_F(HomeStoreLasting, ADamagedPartIsAMiss) {
  run();
  const std::vector<HomeId> chain = cache(5, 1);
  save();
  store_.reset();
  change_byte({chain[2], kLayers - 1}, 17);
  EXPECT_EQ(run(), 5);
  EXPECT_EQ(good(5, 1), 4);
  EXPECT_EQ(good(5, 1), 2);  // it, and what builds on it, have left
}

TEST_F(HomeStoreLasting, ADamagedRecordCostsItsBlockAndWhatBuildsOnIt) {
  run();
  cache(5, 1);
  save();
  const auto size = static_cast<int64_t>(std::filesystem::file_size(index()));
  const int64_t record = size / 5;  // the head is far smaller than a record
  flip(index(), size - record / 2);
  EXPECT_EQ(run(), 4);
  flip(index(), size - record / 2);
  flip(index(), size - 3 * record - record / 2);
  EXPECT_EQ(run(), 1);
  std::filesystem::resize_file(index(), static_cast<uintmax_t>(size - 2 * record));
  EXPECT_EQ(run(), 1);
}

TEST_F(HomeStoreLasting, ADamagedHeadOrAnotherIdentityCountsForNothing) {
  run();
  cache(5, 1);
  save();
  EXPECT_EQ(run(kHomes, {7, 8}), 0);
  EXPECT_EQ(run(), 0);                    // given up
  for (const int64_t at : {3, 20, 35}) {  // magic, identity, record size
    cache(2, 1);
    save();
    flip(index(), at);
    EXPECT_EQ(run(), 0);
  }
}

// case 34
TEST_F(HomeStoreLasting, ARunThatSavesNothingCostsOnlyWhatItOverwrote) {
  run();
  cache(5, 1);
  save();
  EXPECT_EQ(run(), 5);
  cache(kHomes - 2, 2);  // room for all but two: the last blocks of the others are evicted
  store_->tier().flush();
  EXPECT_EQ(run(), 5);  // as after a crash: the index is the old one
  EXPECT_EQ(good(5, 1), 2);
}

TEST_F(HomeStoreLasting, ASmallerFileKeepsWhatLiesInIt) {
  run();
  cache(5, 1);
  save();
  EXPECT_EQ(run(3), 3);
  EXPECT_EQ(good(5, 1), 3);
}

}  // namespace
}  // namespace oasis::kv
