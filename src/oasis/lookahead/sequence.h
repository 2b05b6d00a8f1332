// What the core remembers of one sequence between steps, on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kv/home_store.h"

namespace oasis::lookahead {

struct Sequence {
  bool attached = false;
  bool ready = false;                // prefilled: may take part in steps
  bool sparse = false;               // else dense: slot = block, everything is read
  int32_t step = 0;                  // t: number of the next step, the sequence's own
  int32_t position = 0;              // p of the next step's x_t: tokens whose K/V are final
  int32_t advanced = 1;              // tokens that the last step advanced by
  int32_t sealed = 0;                // sealed blocks: 0 .. sealed-1
  int32_t predicted_candidates = 0;  // candidates when P was made (0: no P yet)
  int32_t prefix_blocks = 0;         // of those, blocks that came with a shared prefix
  int32_t reserved_homes = 0;        // set aside in the home store and not taken yet
  int32_t max_blocks = 0;            // admission's limit, open blocks included

  std::vector<int32_t> page_of_slot;   // [slots], sparse: R + 3; dense: one a block
  std::vector<int32_t> summary_pages;  // [sealed]; room for max_blocks, never moves
  std::vector<kv::HomeId> homes;       // [sealed]
  int32_t provisional_summary = -1;    // page for a block of the open window that is complete but not final (exact)
  int64_t since = -1;  // what is transferred for this index in steps up to this one is of a sequence that left
  Status error;        // why the sequence cannot go on; its other state is still consistent
};

// The part of one sequence in a step. Rows of a step lie side by side, sequences in ascending order of index.
struct StepSequence {
  int32_t sequence = 0;
  int32_t rows = 1;      // x_t and its draft rows
  int32_t verified = 1;  // rows that may count: x_t and the drafts that may be accepted; the rest are lookahead-only
};

// How far a sequence came in the step: 1 + accepted drafts.
struct StepOutcome {
  int32_t sequence = 0;
  int32_t advanced = 1;
};

}  // namespace oasis::lookahead
