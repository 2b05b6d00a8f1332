#include "oasis/kv/home_store.h"

#include <gtest/gtest.h>

#include <numeric>

#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::kv {
namespace {

constexpr int32_t kBlock = 4;
using Tokens = std::vector<int32_t>;

TierConfig small_config() {
  return {.shape = {.layers = 2, .kv_heads = 1, .head_dim = 8, .block_size = kBlock}, .extra_bytes = 8};
}

std::unique_ptr<Tier> small_dram(int32_t homes) {
  return make_dram_tier(small_config(), homes * dram_home_bytes(small_config())).value();
}

// `blocks` blocks and one token more, all different in value from those of other `seed`s.
Tokens some_tokens(int32_t blocks, int32_t seed) {
  Tokens tokens(static_cast<size_t>(blocks * kBlock + 1));
  std::iota(tokens.begin(), tokens.end(), seed * 1000);
  return tokens;
}

class HomeStoreTest : public ::testing::Test {
 protected:
  explicit HomeStoreTest(int32_t homes = 8)
      : store_(std::make_unique<HomeStore>(
            std::make_unique<testing::FaultyTier>(small_dram(homes), small_config(), testing::TierFaults{}), kBlock)),
        root_(prefix_root(1, small_config().shape, 2)) {}
  void TearDown() override { check(); }
  void check() { ASSERT_TRUE(store_->check_integrity().ok()) << store_->check_integrity().message(); }
  testing::FaultyTier& tier() { return static_cast<testing::FaultyTier&>(store_->tier()); }

  void write(HomeId home) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(tier().begin_write({home, layer}).ok());
      tier().end_write({home, layer});
    }
  }
  // Computes and publishes the blocks of `tokens` from `matched` on; `sparse_from`: the first sparse block.
  std::vector<HomeId> compute(const Tokens& tokens, std::vector<HomeId> chain = {}, size_t sparse_from = SIZE_MAX) {
    const size_t blocks = tokens.size() / kBlock;
    const auto missing = static_cast<int32_t>(blocks - chain.size());
    EXPECT_TRUE(store_->reserve(missing).value());
    while (chain.size() < blocks) {
      const HomeId home = store_->allocate_reserved();
      write(home);
      const size_t i = chain.size();
      const HomeId kept =
          store_->publish(home, i == 0 ? kNoHome : chain.back(), root_, std::span(tokens).subspan(i * kBlock, kBlock),
                          i < sparse_from ? Provenance::kDense : Provenance::kSparse);
      if (kept != home) store_->unref(home, step_);
      chain.push_back(kept);
    }
    return chain;
  }
  std::vector<HomeId> match(const Tokens& tokens, Provenance wanted = Provenance::kDense) {
    return store_->match(root_, tokens, wanted);
  }
  void give_up(const std::vector<HomeId>& homes) {
    for (const HomeId home : homes) store_->unref(home, step_);
    store_->release_through(step_++);
    check();
  }

  std::unique_ptr<HomeStore> store_;
  PrefixKey root_;
  int64_t step_ = 0;
};

TEST_F(HomeStoreTest, MoreHomesThanTheTierHasIsAnErrorWithTheShortfall) {
  const Result<bool> reserved = store_->reserve(11);
  ASSERT_FALSE(reserved.ok());
  EXPECT_EQ(reserved.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(reserved.status().message().find("3 short"), std::string::npos) << reserved.status().message();
}

TEST_F(HomeStoreTest, AReservationThatDoesNotFitNowWaits) {
  EXPECT_TRUE(store_->reserve(6).value());
  EXPECT_FALSE(store_->reserve(3).value());
  store_->unreserve(1);
  EXPECT_TRUE(store_->reserve(3).value());
  store_->unreserve(8);
  EXPECT_EQ(store_->stats().free, 8);
}

TEST_F(HomeStoreTest, APublishedChainIsFoundByItsTokens) {
  const Tokens tokens = some_tokens(3, 1);
  const std::vector<HomeId> chain = compute(tokens);
  give_up(chain);
  EXPECT_EQ(store_->stats().cached, 3);
  EXPECT_EQ(match(tokens), chain);
  EXPECT_EQ(store_->stats().referenced, 3);
  give_up(chain);
}

TEST_F(HomeStoreTest, TheBlockOfTheLastTokenIsNeverMatched) {
  Tokens tokens = some_tokens(3, 1);
  give_up(compute(tokens));
  tokens.resize(3 * kBlock);
  const std::vector<HomeId> matched = match(tokens);
  EXPECT_EQ(matched.size(), 2u);
  give_up(matched);
  EXPECT_TRUE(match({}).empty());
  EXPECT_TRUE(match({1}).empty());
}

TEST_F(HomeStoreTest, ADifferentTokenEndsTheMatch) {
  Tokens tokens = some_tokens(3, 1);
  give_up(compute(tokens));
  tokens[kBlock + 2] = 77;
  const std::vector<HomeId> matched = match(tokens);
  EXPECT_EQ(matched.size(), 1u);
  give_up(matched);
}

TEST_F(HomeStoreTest, TheSameBlockAfterOtherTokensIsAnotherBlock) {
  Tokens a = some_tokens(2, 1), b = some_tokens(2, 2);
  std::copy(a.begin() + kBlock, a.end(), b.begin() + kBlock);
  give_up(compute(a));
  EXPECT_TRUE(match(b).empty());
}

TEST_F(HomeStoreTest, AnotherModelEncodingOrDrafterIsAnotherRoot) {
  KvShape shape = small_config().shape;
  EXPECT_EQ(prefix_root(1, shape, 2), root_);
  EXPECT_NE(prefix_root(2, shape, 2), root_);
  EXPECT_NE(prefix_root(1, shape, 3), root_);
  shape.type = KvType::kFp8E4M3;
  EXPECT_NE(prefix_root(1, shape, 2), root_);
  shape.type = KvType::kBf16;
  shape.block_size = 8;
  EXPECT_NE(prefix_root(1, shape, 2), root_);
}

TEST_F(HomeStoreTest, SealingABlockThatIsPublishedKeepsOneHome) {
  const Tokens tokens = some_tokens(2, 1);
  const std::vector<HomeId> first = compute(tokens), second = compute(tokens);
  EXPECT_EQ(first, second);
  EXPECT_EQ(store_->stats().referenced, 2);
  give_up(first);
  EXPECT_EQ(store_->stats().referenced, 2);
  give_up(second);
  EXPECT_EQ(store_->stats().cached, 2);
  EXPECT_EQ(store_->stats().free, 6);
}

TEST_F(HomeStoreTest, ADenseRequestMatchesDenseBlocksOnly) {
  const Tokens tokens = some_tokens(4, 1);
  const std::vector<HomeId> chain = compute(tokens, {}, 2);
  give_up(chain);
  const std::vector<HomeId> dense = match(tokens, Provenance::kDense);
  EXPECT_EQ(dense, std::vector(chain.begin(), chain.begin() + 2));
  give_up(dense);
  const std::vector<HomeId> sparse = match(tokens, Provenance::kSparse);
  EXPECT_EQ(sparse, chain);
  EXPECT_EQ(store_->provenance(sparse[1]), Provenance::kDense);
  EXPECT_EQ(store_->provenance(sparse[2]), Provenance::kSparse);
  give_up(sparse);
}

TEST_F(HomeStoreTest, ABlockAfterASparseOneIsSparseWhateverItsOwnAttentionWas) {
  const Tokens tokens = some_tokens(2, 1);
  std::vector<HomeId> chain = compute(Tokens(tokens.begin(), tokens.begin() + kBlock + 1), {}, 0);
  chain = compute(tokens, chain);  // dense, but after a sparse block
  EXPECT_EQ(store_->provenance(chain[1]), Provenance::kSparse);
  EXPECT_TRUE(match(tokens, Provenance::kDense).empty());
  give_up(chain);
}

TEST_F(HomeStoreTest, ASparseRequestPrefersDenseBlocksUnlessSparseOnesReachFurther) {
  const Tokens tokens = some_tokens(3, 1);
  const std::vector<HomeId> sparse = compute(tokens, {}, 0);
  const std::vector<HomeId> dense = compute(Tokens(tokens.begin(), tokens.begin() + 2 * kBlock + 1));
  Tokens shorter(tokens.begin(), tokens.begin() + 2 * kBlock + 1);
  EXPECT_EQ(match(shorter, Provenance::kSparse), dense);
  EXPECT_EQ(match(tokens, Provenance::kSparse), sparse);
  for (const auto& homes : {sparse, dense, sparse, dense}) give_up(homes);
}

TEST_F(HomeStoreTest, EvictionTakesTheLeastRecentlyUsedLeafFirst) {
  const Tokens a = some_tokens(4, 1), b = some_tokens(4, 2);
  give_up(compute(a));
  give_up(compute(b));
  give_up(match(a));  // b is the older one now
  EXPECT_TRUE(store_->reserve(3).value());
  std::vector<HomeId> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(store_->allocate_reserved());
  EXPECT_EQ(store_->stats().evictions, 3);
  const std::vector<HomeId> left = match(b);
  EXPECT_EQ(left.size(), 1u);
  EXPECT_EQ(match(a).size(), 4u);
}

TEST_F(HomeStoreTest, AMatchLeavesWhatReservationsCountOn) {
  const Tokens tokens = some_tokens(4, 1);
  give_up(compute(tokens));
  EXPECT_TRUE(store_->reserve(6).value());  // 4 free and 2 of the cached
  EXPECT_EQ(match(tokens).size(), 2u);
  check();
  for (int i = 0; i < 6; ++i) store_->allocate_reserved();
  EXPECT_EQ(store_->stats().referenced, 8);
}

TEST_F(HomeStoreTest, ABlockStaysPrivateWhenReservationsCountOnTheHomeThatHasIt) {
  const Tokens tokens = some_tokens(1, 1);
  const HomeId cached = compute(tokens).front();
  give_up({cached});
  EXPECT_TRUE(store_->reserve(8).value());
  const HomeId home = store_->allocate_reserved();
  write(home);
  EXPECT_EQ(store_->publish(home, kNoHome, root_, std::span(tokens).first(kBlock), Provenance::kDense), home);
  EXPECT_FALSE(store_->published(home));
  check();
  for (int i = 0; i < 7; ++i) store_->allocate_reserved();
  EXPECT_EQ(store_->stats().evictions, 1);
}

TEST_F(HomeStoreTest, AHomeGivenUpCanBeMatchedAgainBeforeItsStepIsOver) {
  const Tokens tokens = some_tokens(2, 1);
  const std::vector<HomeId> chain = compute(tokens);
  for (const HomeId home : chain) store_->unref(home, 5);
  EXPECT_EQ(store_->stats().deferred, 2);
  EXPECT_EQ(match(tokens), chain);
  store_->unref(chain[0], 6);
  store_->release_through(5);
  EXPECT_EQ(store_->stats().deferred, 1);
  EXPECT_EQ(store_->stats().referenced, 1);
  check();
  store_->unref(chain[1], 6);
  store_->release_through(6);
  EXPECT_EQ(store_->stats().cached, 2);
}

TEST_F(HomeStoreTest, AnUnpublishedHomeIsFreeOnceItsStepIsOver) {
  EXPECT_TRUE(store_->reserve(1).value());
  const HomeId home = store_->allocate_reserved();
  write(home);
  store_->unref(home, 3);
  store_->release_through(2);
  EXPECT_EQ(store_->stats().free, 7);
  store_->release_through(3);
  EXPECT_EQ(store_->stats().free, 8);
  EXPECT_FALSE(store_->tier().present({home, 0}));
}

// case 9
TEST_F(HomeStoreTest, ABlockWhoseWriteFailedIsNeverPublishedNorIsWhatFollows) {
  const Tokens tokens = some_tokens(3, 1);
  tier().fail_write_after(2);  // the second block's first layer
  EXPECT_TRUE(store_->reserve(3).value());
  std::vector<HomeId> chain;
  for (size_t i = 0; i < 3; ++i) {
    const HomeId home = store_->allocate_reserved();
    for (int32_t layer = 0; layer < 2; ++layer) {
      if (tier().begin_write({home, layer}).ok()) tier().end_write({home, layer});
    }
    const HomeId kept = store_->publish(home, i == 0 ? kNoHome : chain.back(), root_,
                                        std::span(tokens).subspan(i * kBlock, kBlock), Provenance::kDense);
    EXPECT_EQ(kept, home);
    chain.push_back(home);
  }
  EXPECT_TRUE(store_->published(chain[0]));
  EXPECT_FALSE(store_->published(chain[1]));
  EXPECT_FALSE(store_->published(chain[2]));
  EXPECT_EQ(match(tokens).size(), 1u);
  store_->unref(chain[0], step_);
  give_up(chain);
  EXPECT_EQ(store_->stats().free, 7);
}

// case 32
TEST_F(HomeStoreTest, ADamagedBlockIsAMissAndIsDroppedWithAllThatFollow) {
  auto staged =
      std::make_unique<testing::FaultyTier>(small_dram(8), small_config(), testing::TierFaults{.staged = true});
  store_ = std::make_unique<HomeStore>(std::move(staged), kBlock);
  const Tokens tokens = some_tokens(3, 1);
  const std::vector<HomeId> chain = compute(tokens);
  give_up(chain);
  tier().fail_read_after(0);
  FetchTicket ticket;
  const PartKey part{chain[1], 0};
  tier().fetch({&part, 1}, ticket);
  EXPECT_FALSE(ticket.wait().ok());
  tier().release(part);
  const std::vector<HomeId> matched = match(tokens);
  EXPECT_EQ(matched, std::vector{chain[0]});
  check();
  EXPECT_EQ(store_->stats().free, 7);
  EXPECT_TRUE(tier().status(chain[1]).ok());  // dropped: the home may be used again
  give_up(matched);
}

TEST_F(HomeStoreTest, ACacheThatIsClearedHoldsNothing) {
  give_up(compute(some_tokens(4, 1)));
  const std::vector<HomeId> held = compute(some_tokens(2, 2));
  store_->clear_cache();
  EXPECT_EQ(store_->stats().cached, 0);
  EXPECT_EQ(store_->stats().free, 6);
  check();
  give_up(held);
}

TEST_F(HomeStoreTest, AParentGivenUpBeforeItsChildStillMakesRoom) {
  const std::vector<HomeId> chain = compute(some_tokens(2, 1));
  store_->unref(chain[0], 0);
  store_->release_through(0);
  EXPECT_TRUE(store_->reserve(7).value());
  for (int i = 0; i < 7; ++i) store_->allocate_reserved();
  check();
  EXPECT_FALSE(store_->published(chain[1]));
}

TEST_F(HomeStoreTest, CountsHitsAndMissesInBlocks) {
  const Tokens tokens = some_tokens(3, 1);
  EXPECT_TRUE(match(tokens).empty());
  give_up(compute(tokens));
  give_up(match(tokens));
  EXPECT_EQ(store_->stats().prefix_misses, 3);
  EXPECT_EQ(store_->stats().prefix_hits, 3);
}

}  // namespace
}  // namespace oasis::kv
