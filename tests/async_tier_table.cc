// Prints how long a step takes over tiers of growing latency: exact with perfect and with real predictions, bounded.
// Usage: async_tier_table [layer milliseconds [tokens]]
#include <fmt/format.h>

#include <cstdlib>

#include "async_tier.h"

int main(int argc, char** argv) {
  using namespace oasis;
  using async_tier::run;
  const double layer_seconds = (argc > 1 ? std::atof(argv[1]) : 10) / 1e3;
  const int32_t tokens = argc > 2 ? std::atoi(argv[2]) : 60;
  const async_tier::Attended perfect = run({.tokens = tokens}).attended;
  const double step = run({.layer_seconds = layer_seconds, .prediction = &perfect, .tokens = tokens}).median();
  fmt::print("{} layers, step {:.2f} ms without latency, {} steps, medians; L: a batch of reads, x: of that step\n\n",
             async_tier::kLayers, step * 1e3, tokens - 1);
  fmt::print(
      "| L | L ms | exact, perfect prediction | exact, real prediction | demand blocks a step | bounded | "
      "refused as absent a step |\n|---|---|---|---|---|---|---|\n");
  for (const double part : {0., .2, .4, .6, .8, .9, 1., 1.1, 1.25, 1.5, 2., 3.}) {
    const auto timed = [&](lookahead::FetchMode fetch, const async_tier::Attended* prediction) {
      return run({.fetch = fetch,
                  .layer_seconds = layer_seconds,
                  .latency_seconds = part * step,
                  .prediction = prediction,
                  .tokens = tokens});
    };
    const auto ideal = timed(lookahead::FetchMode::kExact, &perfect);
    const auto real = timed(lookahead::FetchMode::kExact, nullptr);
    const auto bounded = timed(lookahead::FetchMode::kBounded, nullptr);
    const auto per_step = [&](int64_t n) { return static_cast<double>(n) / (tokens - 1); };
    fmt::print("| {:.2f} | {:.1f} | {:.2f} x | {:.2f} x | {:.1f} | {:.2f} x | {:.1f} |\n", part, part * step * 1e3,
               ideal.median() / step, real.median() / step, per_step(real.demand), bounded.median() / step,
               per_step(bounded.stats.refused_absent));
  }
}
