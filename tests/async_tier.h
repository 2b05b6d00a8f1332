// An engine over a tier that takes a given time for every batch of reads: how long its steps take.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "oasis/engine/engine.h"

namespace oasis::async_tier {

// What each step attended: by (step of the sequence, layer, head), from an exact run.
using Attended = std::map<std::tuple<int64_t, int32_t, int32_t>, std::vector<int32_t>>;

struct Setup {
  lookahead::FetchMode fetch = lookahead::FetchMode::kExact;
  // The foreground takes at least so long a layer: a hook sleeps before the keys are appended, where the projections
  // are. From a plan's publication to its wait it is a step less the layer's own predict, select and attention.
  double layer_seconds = 0;
  double latency_seconds = 0;            // of a batch of reads
  const Attended* prediction = nullptr;  // P of step t: what step t + 1 attended; null: the engine's own
  int32_t tokens = 40;
};

struct Measured {
  std::vector<double> step_seconds;
  double median() const;
  Attended attended;
  lookahead::CoreStats stats;
  int64_t demand = 0;  // after the first step, whose blocks prefill ranked
};

constexpr int32_t kLayers = 3;

// One sequence of a tiny model (3 layers), with everything absent from the fast and the addressable tier at first and
// R = K, so that every step reads.
Measured run(const Setup& setup);

}  // namespace oasis::async_tier
