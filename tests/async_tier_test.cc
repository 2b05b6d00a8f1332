// Reads hide behind the step that asked for them. Loose limits, for noisy machines; async_tier_table prints the curve.
#include "async_tier.h"

#include <gtest/gtest.h>

namespace oasis::async_tier {
namespace {

constexpr double kLayerSeconds = .008;

Attended record_perfect_predictions() { return run({}).attended; }

TEST(AsyncTier, PerfectPredictionsHideReadsThatAreShorterThanTheStep) {
  const Attended perfect = record_perfect_predictions();
  const double step = run({.layer_seconds = kLayerSeconds, .prediction = &perfect}).median();
  for (const double part : {.4, .8}) {
    const Measured m = run({.layer_seconds = kLayerSeconds, .latency_seconds = part * step, .prediction = &perfect});
    EXPECT_EQ(m.demand, 0);
    EXPECT_GT(m.stats.admitted, 300);
    EXPECT_LT(m.median(), 1.25 * step) << "reads of " << part << " of a step";
  }
}

TEST(AsyncTier, LongerReadsCostWhatTheyAreLongerAndNoMore) {
  const Attended perfect = record_perfect_predictions();
  const double step = run({.layer_seconds = kLayerSeconds, .prediction = &perfect}).median();
  for (const double part : {1.5, 2.5}) {
    const Measured m =
        run({.layer_seconds = kLayerSeconds, .latency_seconds = part * step, .prediction = &perfect, .tokens = 25});
    EXPECT_GT(m.median(), .95 * part * step) << "reads of " << part << " steps";
    EXPECT_LT(m.median(), (part + .35) * step) << "reads of " << part << " steps";
  }
}

TEST(AsyncTier, BoundedStepsTakeTheSameTimeHoweverSlowTheTier) {
  const auto bounded = [](double latency) {
    return run({.fetch = lookahead::FetchMode::kBounded, .layer_seconds = kLayerSeconds, .latency_seconds = latency});
  };
  const Measured fast = bounded(0), slow = bounded(4 * fast.median());
  EXPECT_LT(slow.median(), 1.2 * fast.median());
  EXPECT_GT(slow.stats.refused_absent, fast.stats.refused_absent);
  EXPECT_GT(fast.stats.admitted, slow.stats.admitted);
}

// What was not predicted is read on the critical path, a batch a layer.
TEST(AsyncTier, ExactPaysForWhatWasNotPredicted) {
  const Measured fast = run({.layer_seconds = kLayerSeconds});
  const Measured slow = run({.layer_seconds = kLayerSeconds, .latency_seconds = kLayerSeconds, .tokens = 25});
  EXPECT_GT(slow.demand, 0);
  EXPECT_GT(slow.median(), fast.median() + .8 * kLayerSeconds);
  EXPECT_LT(slow.median(), fast.median() + 1.5 * kLayers * kLayerSeconds);
}

}  // namespace
}  // namespace oasis::async_tier
