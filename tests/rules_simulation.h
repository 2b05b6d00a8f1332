// The rules of residency of one (sequence, layer, KV head), simulated from a recorded run: scores and acceptances go
// in, everything else must come out as the engine had it. Written from section 5 of the design over plain lists of
// (block, last predicted); shares no code with the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::rules {

// Under `exact`: a row that may count, with the scores of its own query.
struct VerifiedRow {
  int32_t position = 0;       // q
  std::vector<float> scores;  // [floor(q / block_size)]
};

struct TraceStep {
  int32_t t = 0;                // the sequence's own decode step
  int32_t position = 0;         // p of x_t
  int32_t advanced = 1;         // tokens that the previous step advanced; 1 in the first step after the start
  std::vector<float> scores;    // [floor((p + 1) / block_size)]: of the predicting rows, their maximum
  std::vector<int32_t> absent;  // blocks whose part is not in the addressable tier (bounded)
  // exact:
  std::vector<VerifiedRow> verified;  // x_t first
  int32_t rows_taken = -1;  // how many of them fit in every head and layer up to this one; -1: this head decides alone
};

// A sequence becomes sparse after prefill or at the end of a dense step, whose prediction decides what is resident.
struct TraceStart {
  int32_t position = 0;         // of the last token whose K and V are final
  std::vector<float> scores;    // [floor((position + 1) / block_size)]
  int32_t last_predicted = -1;  // given to the blocks of P: -1 after prefill, t after dense step t
};

struct Trace {
  int32_t k = 0;
  int32_t r = 0;
  int32_t c = 0;  // bounded: block-heads a head and token advanced
  bool exact = false;
  bool pin_first = true;  // block 0 is always in P and ranks first
  int32_t block_size = 16;
  int32_t accepted_at_most = 0;    // n: draft tokens that one step may accept; a step has at most n + 1 draft rows
  int32_t max_blocks = INT32_MAX;  // open blocks included
  TraceStart start;
  std::vector<TraceStep> steps;
};

struct Resident {
  int32_t block = 0;
  int32_t last_predicted = 0;
  bool operator==(const Resident&) const = default;
};

// What a step must have left behind.
struct StepResult {
  int32_t rows_fitted = 0;                      // exact: verified rows whose blocks fit R
  std::vector<std::vector<int32_t>> row_lists;  // exact: what each of them reads, ascending
  std::vector<int32_t> demanded;                // exact: fetched before attention; row by row, each in rank order
  std::vector<int32_t> demand_victims;          // in the order they go
  std::vector<int32_t> predicted;               // P in rank order
  std::vector<int32_t> admitted;                // in rank order
  std::vector<int32_t> wanted;                  // absent ones among the first misses, for which reads are started
  std::vector<int32_t> victims;                 // in the order they go
  std::vector<Resident> residents;              // ascending blocks
  std::vector<int32_t> list;                    // attended at the next step unless exact, ascending
};

struct Simulated {
  StepResult start;  // only predicted, residents and list
  std::vector<StepResult> steps;
};

// An error says where the trace contradicts itself.
Result<Simulated> simulate(const Trace& trace);

}  // namespace oasis::rules
