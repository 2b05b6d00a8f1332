// What an engine is told when it is made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "oasis/kv/tier.h"
#include "oasis/lookahead/config.h"

namespace oasis::engine {

enum class Attention : uint8_t {
  kAuto,    // dense while the sealed blocks fit the resident set, sparse after that
  kDense,   // everything is read
  kSparse,  // the rules of the working set from the first token
};

struct EngineConfig {
  int32_t max_sequences = 1;
  int64_t max_context = 0;  // tokens of the longest sequence, prompt and output; 0: the model's
  Attention attention = Attention::kAuto;
  int32_t block_size = 16;
  int32_t top_k_blocks = 128;  // K
  double resident_ratio = 0;   // R = floor(ratio * K); 0: what fast_memory gives, K .. 1.5 K
  lookahead::BlockScore block_score = lookahead::BlockScore::kShrunk;
  kv::KvType kv_type = kv::KvType::kBf16;       // FP8: half the slots, homes and bytes between them
  kv::KvType summary_type = kv::KvType::kBf16;  // FP8: half the summaries and half their scan
  lookahead::FetchMode fetch = lookahead::FetchMode::kBounded;
  double fetch_ratio = 0.05;
  std::string draft = "auto";  // drafter: see draft/make_drafter.h
  int32_t draft_tokens = 4;    // n: at most this many drafts are accepted a step; used with accept_drafts
  bool accept_drafts = false;
  uint64_t fast_memory = 0;  // bytes for KV pages, summaries, maps and draft KV; 0: as much as max_sequences can use
  // Of a GPU, in use by anyone, weights included: bounds fast_memory where that is 0; 0: all but a reserve.
  uint64_t device_memory = 0;
  uint64_t capacity_memory =
      0;                      // bytes of DRAM for homes (with a file: its cache); 0: as much as max_sequences can use
  std::string capacity_file;  // homes live in this file, DRAM caches them; empty: DRAM only
  uint64_t capacity_file_bytes = 0;  // 0: as much as max_sequences can use
  int32_t prefill_chunk = 256;       // tokens of a prefill work item
  // Of the time, what a prompt gets while others decode; 1: they wait for it. 0: one work item a decode step.
  double prefill_share = 0;
  int32_t agreement_every = 8;  // steps between measurements of agreement; 0: never
  bool prefix_cache = true;
  bool serial = false;  // the reference mode of the pipeline, for tests
  // Benches: prompts are not read; their KV, summaries and residents are noise. Sequences share the homes of the first
  // one's prompt, or have their own. `forced_misses` as in lookahead::CoreConfig, on a device that captures steps.
  bool synthetic_prompts = false;
  bool synthetic_own_homes = false;
  int32_t forced_misses = -1;
  bool timeline = false;  // stamps for Engine::timeline()
  lookahead::TestHooks hooks;
  // Tests: puts a double before the capacity tier.
  std::function<std::unique_ptr<kv::Tier>(std::unique_ptr<kv::Tier>, const kv::TierConfig&)> wrap_tier;
};

// Names the field, the value and the range.
Status validate(const EngineConfig& config);

}  // namespace oasis::engine
