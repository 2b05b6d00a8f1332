#include "oasis/draft/ngram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "oasis/draft/ngram_index.h"

namespace oasis::draft {
namespace {

std::vector<int32_t> propose(Drafter& drafter, std::span<const int32_t> history, int want, int32_t sequence = 0) {
  static const auto device = make_cpu_device(1);
  std::vector<int32_t> drafts(want);
  ProposeItem item = {.sequence = sequence,
                      .history = history,
                      .first_position = int32_t(history.size()) - 2,
                      .rows = 1,
                      .want = want,
                      .drafts = drafts.data()};
  drafter.propose(device->foreground(), {&item, 1});
  drafts.resize(item.count);
  return drafts;
}

std::vector<int32_t> propose(const std::vector<int32_t>& history, int want) {
  const auto drafter = make_ngram({});
  EXPECT_TRUE(drafter->attach(0).ok());
  return propose(*drafter, history, want);
}

using Tokens = std::vector<int32_t>;

TEST(Ngram, CopiesWhatFollowedTheLongestSuffix) {
  // "1 2 3" came first, "2 3" and "3" later.
  EXPECT_EQ(propose({1, 2, 3, 40, 41, 2, 3, 50, 3, 60, 1, 2, 3}, 2), (Tokens{40, 41}));
}

TEST(Ngram, PrefersTheLatestOfEqualMatches) { EXPECT_EQ(propose({7, 8, 1, 7, 8, 2, 7, 8}, 1), (Tokens{2})); }

TEST(Ngram, FallsBackToShorterSuffixes) {
  EXPECT_EQ(propose({5, 6, 9, 1, 2, 5, 6}, 1), (Tokens{9}));
  EXPECT_EQ(propose({5, 6, 9, 1, 2, 6}, 1), (Tokens{9}));
}

TEST(Ngram, ProposesNothingAfterATokenThatIsNew) {
  EXPECT_EQ(propose({1, 2, 3, 4}, 3), Tokens{});
  EXPECT_EQ(propose({1}, 3), Tokens{});
}

TEST(Ngram, GoesOnWithItsOwnDraftsPastTheEnd) {
  EXPECT_EQ(propose({9, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
  EXPECT_EQ(propose({9, 4, 4}, 3), (Tokens{4, 4, 4}));
}

TEST(Ngram, ProposesNoMoreThanWanted) { EXPECT_EQ(propose({1, 2, 3, 1}, 0), Tokens{}); }

// Every step of a text of few tokens, by plain search.
Tokens search(std::span<const int32_t> history, int want) {
  const int n = static_cast<int>(history.size());
  for (int length = std::min(3, n - 1); length >= 1; --length)
    for (int end = n - 1; end >= length; --end)
      if (std::equal(history.end() - length, history.end(), history.begin() + end - length)) {
        Tokens text(history.begin(), history.end()), drafts;
        for (int i = 0; i < want; ++i) {
          drafts.push_back(text[end + i]);
          text.push_back(drafts.back());
        }
        return drafts;
      }
  return {};
}

TEST(Ngram, AgreesWithPlainSearchAtEveryStep) {
  for (const int vocabulary : {2, 7, 300}) {
    std::mt19937 random(vocabulary);
    Tokens text;
    for (int i = 0; i < 700; ++i) text.push_back(static_cast<int32_t>(random() % vocabulary));
    const auto drafter = make_ngram({});
    ASSERT_TRUE(drafter->attach(0).ok());
    for (size_t size = 1; size <= text.size(); size += 1 + random() % 3) {
      const auto history = std::span(text).first(size);
      ASSERT_EQ(propose(*drafter, history, 4), search(history, 4)) << "vocabulary " << vocabulary << " size " << size;
    }
  }
}

TEST(Ngram, KeepsSequencesApartAndForgetsThemWhenTheyLeave) {
  const auto drafter = make_ngram({.max_sequences = 2});
  ASSERT_TRUE(drafter->attach(0).ok() && drafter->attach(1).ok());
  EXPECT_EQ(propose(*drafter, Tokens{1, 2, 1}, 1, 0), (Tokens{2}));
  EXPECT_EQ(propose(*drafter, Tokens{1, 3, 1}, 1, 1), (Tokens{3}));
  drafter->detach(0);
  ASSERT_TRUE(drafter->attach(0).ok());
  EXPECT_EQ(propose(*drafter, Tokens{4, 5, 6, 7, 1}, 1, 0), Tokens{});
}

TEST(Ngram, GoesOnAfterPreemptionFromTheHistoryAlone) {
  const auto drafter = make_ngram({.max_sequences = 2});
  ASSERT_TRUE(drafter->attach(0).ok());
  propose(*drafter, Tokens{1, 2, 3, 4}, 1);
  const auto state = drafter->save(0);
  drafter->detach(0);
  ASSERT_TRUE(drafter->attach(1).ok() && drafter->restore(1, state).ok());
  EXPECT_EQ(propose(*drafter, Tokens{1, 2, 3, 4, 2, 3}, 2, 1), (Tokens{4, 2}));
}

}  // namespace
}  // namespace oasis::draft
