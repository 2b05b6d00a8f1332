// Where draft tokens come from. A drafter proposes the tokens after the newest one of each sequence; the engine lets
// them ride through the target model, as lookahead rows and, in accept mode, as candidates for acceptance.
//
// Drafts are deterministic (argmax, or a copy of earlier text), so rejection sampling against the target is exact
// without a draft distribution: accept draft d with probability p(d), else sample from p without d.
//
// Life of a sequence: attach; load_block for the blocks of a shared prefix, absorb for the other prompt rows, in order;
// then once a step propose with the rows that the target has verified; detach. Rows pair the feature of position p with
// the token at p + 1 (facts: EAGLE-3 shift) and are taken in without gaps. All calls come from the engine's thread,
// fold_tap during a step, the others between steps; sequences are named by their stable index in [0, max_sequences).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/device/device.h"
#include "oasis/model/device_weights.h"

namespace oasis::draft {

// What a drafter is made for.
struct DrafterOptions {
  int32_t max_sequences = 1;
  int32_t max_rows = 512;                   // of one absorb, and of one item of propose
  int32_t block_size = 16;                  // the engine's
  model::DeviceWeights* weights = nullptr;  // the target's, where the head's are put too; null: the device is the CPU
};

// What a drafter takes, known before anything is allocated.
struct DrafterPlan {
  int64_t fast_bytes = 0;     // in the fast tier
  int64_t scratch_bytes = 0;  // of activations
  int64_t weight_bytes = 0;   // of its own weights, mapped from their files
  int64_t home_bytes = 0;     // of each home record
  int64_t feature_dim = 0;    // floats a row
};

struct ProposeItem {
  int32_t sequence = 0;
  // All tokens of the sequence, the newest (just sampled) included; history[p] is position p.
  std::span<const int32_t> history;
  // Rows verified by the target since the last call: positions first_position .. first_position + rows - 1, where
  // first_position + rows == history.size() - 1. Their next tokens are history[first_position + 1 ..].
  int32_t first_position = 0;
  int32_t rows = 0;                 // at least 1 where proposals are wanted
  const float* features = nullptr;  // [rows, feature_dim()], fused; null if the drafter wants none
  int32_t want = 0;                 // at most this many proposals, up to block_size (0: only take in the rows)
  int32_t* drafts = nullptr;        // [want], written
  int32_t count = 0;                // written: how many there are
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::string name() const = 0;

  // Taps: the residual stream before these target layers, in ascending order; a tap at `layers` means after the last
  // layer (before the final norm). Empty if the drafter wants no features.
  virtual std::span<const int> tap_layers() const { return {}; }
  virtual int64_t feature_dim() const { return 0; }
  // Folds tap number `tap` (index into tap_layers()) of some rows into their fused features: tap 0 writes, later ones
  // add, so they come in order.
  virtual void fold_tap(Stream&, int /*tap*/, const float* /*x [rows, hidden]*/, int64_t /*rows*/,
                        float* /*features [rows, feature_dim]*/) {}

  // Bytes in the fast tier, per home record (draft KV of a block and the fused feature of its last token), and of
  // activations.
  virtual int64_t fast_bytes() const { return 0; }
  virtual int64_t home_bytes() const { return 0; }
  virtual int64_t scratch_bytes() const { return 0; }
  // Distinguishes home records of different drafters; part of the prefix key.
  virtual uint64_t fingerprint() const { return 0; }

  virtual Status attach(int32_t sequence) = 0;
  virtual void detach(int32_t sequence) = 0;

  // Prompt rows whose next token is known: positions first .. first + rows - 1, next_tokens[i] = token at first + i
  // + 1. At most max_rows rows a call.
  virtual void absorb(Stream&, int32_t /*sequence*/, int32_t /*first*/, int32_t /*rows*/, const float* /*features*/,
                      const int32_t* /*next_tokens*/) {}
  // Benches: as if `rows` prompt rows had been absorbed, with whatever state there is.
  virtual void pretend(int32_t /*sequence*/, int32_t /*rows*/) {}
  // The part of a home record that is the drafter's, home_bytes() long. `store_block` is called after the call (absorb,
  // propose) that took in the block's last row and before the next such call for the sequence; that last row depends on
  // the next token, so it is kept as a feature.
  // `load_block` restores a block of a shared prefix; the blocks of a prefix come in ascending order (the first need
  // not be block 0: what lies before it is not seen), `next_token` is the token after the block (the last row is
  // recomputed with it; a prefix match always leaves one).
  virtual void store_block(int32_t /*sequence*/, int32_t /*block*/, std::byte* /*out*/) {}
  virtual void load_block(Stream&, int32_t /*sequence*/, int32_t /*block*/, const std::byte* /*in*/,
                          int32_t /*next_token*/) {}

  virtual void propose(Stream&, std::span<ProposeItem> items) = 0;
  // Tells how the last proposals fared: of `proposed` drafts that the target has since passed, the first `right` equal
  // what it went on to produce. Called once a step and sequence, whatever the mode.
  virtual void judge(int32_t /*sequence*/, int32_t /*proposed*/, int32_t /*right*/) {}

  // Preemption: everything that attach + later calls have built up for the sequence, and back (after attach, maybe
  // under another index).
  virtual std::vector<std::byte> save(int32_t sequence) = 0;
  virtual Status restore(int32_t sequence, std::span<const std::byte> state) = 0;
};

}  // namespace oasis::draft
