// Random use of HomeStore beside a model that keeps whole prefixes in plain lists and searches them all.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "oasis/kv/home_store.h"
#include "oasis/kv/testing/faulty_tier.h"

namespace oasis::kv {
namespace {

constexpr int32_t kBlock = 4, kHomes = 24, kMostBlocks = 6;
using Tokens = std::vector<int32_t>;

TierConfig config() { return {.shape = {.layers = 1, .kv_heads = 1, .head_dim = 4, .block_size = kBlock}}; }

// A published block: all tokens up to its end, and the provenance of each block ("dds").
struct Name {
  Tokens tokens;
  std::string provenance;
  bool operator==(const Name&) const = default;
  bool begins(const Name& other) const {
    return provenance.size() < other.provenance.size() && other.provenance.starts_with(provenance) &&
           std::equal(tokens.begin(), tokens.end(), other.tokens.begin());
  }
};

class Model {
 public:
  struct Record {
    int refs = 0;
    std::optional<int64_t> deferred;
    std::optional<Name> name;
    bool bad = false;
    int64_t last_used = 0;
  };

  int cached() const {
    return static_cast<int>(std::ranges::count_if(records_, [](const auto& r) { return is_cached(r.second); }));
  }
  int referenced() const {
    return static_cast<int>(std::ranges::count_if(records_, [](const auto& r) { return r.second.refs > 0; }));
  }
  int deferred() const {
    return static_cast<int>(
        std::ranges::count_if(records_, [](const auto& r) { return r.second.deferred.has_value(); }));
  }
  int free() const { return kHomes - static_cast<int>(records_.size()); }
  int slack() const { return free() + cached() - reserved; }

  std::vector<HomeId> match(const Tokens& tokens, Provenance wanted) {
    const size_t most = tokens.empty() ? 0 : (tokens.size() - 1) / kBlock;
    std::vector<HomeId> best;
    // Longer first; of equals, more dense first.
    for (size_t blocks = most; blocks > 0 && best.empty(); --blocks) {
      for (size_t dense = blocks + 1; dense-- > 0 && best.empty();) {
        if (wanted == Provenance::kDense && dense < blocks) break;
        for (size_t end = 1; end <= blocks; ++end) {
          const HomeId home =
              find({Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end * kBlock)),
                    std::string(std::min(end, dense), 'd') + std::string(end - std::min(end, dense), 's')});
          if (home == kNoHome) {
            best.clear();
            break;
          }
          best.push_back(home);
        }
      }
    }
    for (size_t i = 0; i < best.size(); ++i) {
      if (is_cached(records_[best[i]]) && slack() == 0)
        best.resize(i);
      else
        take(best[i]);
    }
    return best;
  }
  HomeId find(const Name& name) const {
    for (const auto& [home, record] : records_) {
      if (record.name == name) return home;
    }
    return kNoHome;
  }
  void take(HomeId home) {
    ++records_[home].refs;
    records_[home].deferred.reset();
  }
  void evict_if_full() {
    if (free() > 0) return;
    HomeId victim = kNoHome;
    for (const auto& [home, record] : records_) {
      const bool leaf = std::ranges::none_of(records_, [&, &mine = record](const auto& r) {
        return r.second.name && mine.name && mine.name->begins(*r.second.name);
      });
      if (is_cached(record) && leaf && (victim == kNoHome || record.last_used < records_[victim].last_used))
        victim = home;
    }
    ASSERT_NE(victim, kNoHome);
    records_.erase(victim);
  }
  void unref(HomeId home, int64_t step) {
    Record& record = records_.at(home);
    if (--record.refs > 0) return;
    record.deferred = step;
    record.last_used = ++clock_;
  }
  void release_through(int64_t step) {
    for (auto it = records_.begin(); it != records_.end();) {
      std::optional<int64_t>& deferred = it->second.deferred;
      const bool over = deferred && *deferred <= step;
      if (over) deferred.reset();
      it = over && !it->second.name ? records_.erase(it) : std::next(it);
    }
  }
  static bool is_cached(const Record& record) { return record.refs == 0 && !record.deferred; }

  int reserved = 0;
  std::map<HomeId, Record> records_;  // of homes that are not free
 private:
  int64_t clock_ = 0;
};

struct Sequence {
  Tokens tokens;  // of the blocks in `homes`, then those to come
  std::string provenance;
  std::vector<HomeId> homes;
  int reserved = 0;
  bool sparse = false;
};

class HomeStoreModel : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    auto tier = std::make_unique<testing::FaultyTier>(
        make_dram_tier(config(), kHomes * dram_home_bytes(config())).value(), config(), testing::TierFaults{});
    tier_ = tier.get();
    store_ = std::make_unique<HomeStore>(std::move(tier), kBlock);
    root_ = prefix_root(1, config().shape, 0);
    random_.seed(GetParam());
  }
  size_t below(size_t n) { return random_() % n; }

  void start() {
    Sequence s{.sparse = below(2) == 0};
    for (size_t i = 0, blocks = 1 + below(kMostBlocks); i < blocks; ++i) {
      s.tokens.insert(s.tokens.end(), kBlock, static_cast<int32_t>(below(2)));
    }
    s.tokens.push_back(7);
    const Provenance wanted = s.sparse ? Provenance::kSparse : Provenance::kDense;
    s.homes = store_->match(root_, s.tokens, wanted);
    ASSERT_EQ(s.homes, model_.match(s.tokens, wanted));
    for (const HomeId home : s.homes) s.provenance += store_->provenance(home) == Provenance::kDense ? 'd' : 's';
    const int missing = static_cast<int>(s.tokens.size() / kBlock - s.homes.size());
    const bool fits = missing <= model_.slack();
    ASSERT_EQ(store_->reserve(missing).value(), fits);
    if (fits) {
      model_.reserved += s.reserved = missing;
      sequences_.push_back(s);
    } else {
      end(s);
    }
  }
  void grow(Sequence& s) {
    if (s.reserved == 0) return;
    model_.evict_if_full();
    const HomeId home = store_->allocate_reserved();
    ASSERT_FALSE(model_.records_.contains(home));
    Model::Record& record = model_.records_[home];
    record.refs = 1;
    --s.reserved;
    --model_.reserved;
    record.bad = below(12) == 0;
    if (record.bad) tier_->fail_write_after(0);
    ASSERT_TRUE(tier_->begin_write({home, 0}).ok());
    tier_->end_write({home, 0});

    const size_t block = s.homes.size();
    const bool sparse = s.sparse && (below(2) == 0 || s.provenance.ends_with('s'));
    Name name{Tokens(s.tokens.begin(), s.tokens.begin() + static_cast<std::ptrdiff_t>((block + 1) * kBlock)),
              s.provenance + (sparse ? 's' : 'd')};
    const HomeId parent = block == 0 ? kNoHome : s.homes.back();
    const HomeId kept = store_->publish(home, parent, root_, std::span(s.tokens).subspan(block * kBlock, kBlock),
                                        sparse ? Provenance::kSparse : Provenance::kDense);
    HomeId expected = home;
    if (!record.bad && (block == 0 || model_.records_.at(parent).name)) {
      const HomeId twin = model_.find(name);
      if (twin == kNoHome) {
        record.name = name;
      } else if (!Model::is_cached(model_.records_.at(twin)) || model_.slack() > 0) {
        model_.take(twin);
        expected = twin;
      }
    }
    ASSERT_EQ(kept, expected);
    if (kept != home) {
      store_->unref(home, step_);
      model_.unref(home, step_);
    }
    s.homes.push_back(kept);
    s.provenance = name.provenance;
  }
  void end(const Sequence& s) {
    store_->unreserve(s.reserved);
    model_.reserved -= s.reserved;
    for (const HomeId home : s.homes) {
      store_->unref(home, step_);
      model_.unref(home, step_);
    }
  }
  void compare() {
    const Status intact = store_->check_integrity();
    ASSERT_TRUE(intact.ok()) << intact.message();
    const HomeStoreStats stats = store_->stats();
    ASSERT_EQ(stats.free, model_.free());
    ASSERT_EQ(stats.cached, model_.cached());
    ASSERT_EQ(stats.referenced, model_.referenced());
    ASSERT_EQ(stats.deferred, model_.deferred());
    ASSERT_EQ(stats.reserved, model_.reserved);
  }

  testing::FaultyTier* tier_ = nullptr;
  std::unique_ptr<HomeStore> store_;
  PrefixKey root_;
  std::mt19937_64 random_;
  Model model_;
  std::vector<Sequence> sequences_;
  int64_t step_ = 0;
};

// case 59: what was taken is given back, to the last home.
TEST_P(HomeStoreModel, AgreesThroughTenThousandRandomCallsAndLeavesNothing) {
  for (int call = 0; call < 10000; ++call) {
    const size_t pick = sequences_.empty() ? 0 : below(sequences_.size());
    switch (below(8)) {
      case 0:
        start();
        break;
      case 1:
        if (sequences_.empty()) break;
        end(sequences_[pick]);
        sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(pick));
        break;
      case 2:
        ++step_;
        store_->release_through(step_ - 2);
        model_.release_through(step_ - 2);
        break;
      default:
        if (!sequences_.empty()) grow(sequences_[pick]);
    }
    if (HasFatalFailure()) return;
    compare();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(store_->stats().prefix_hits, 1000);
  EXPECT_GT(store_->stats().evictions, 100);
  for (const Sequence& s : sequences_) end(s);
  store_->release_through(step_);
  store_->clear_cache();
  EXPECT_EQ(store_->stats().free, kHomes);
  EXPECT_EQ(store_->stats().reserved, 0);
  EXPECT_EQ(tier_->pins(), 0);
  EXPECT_TRUE(store_->check_integrity().ok());
}

INSTANTIATE_TEST_SUITE_P(Seeds, HomeStoreModel, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace oasis::kv
