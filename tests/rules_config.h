// Configurations drawn at random, with few blocks so that all of them come and go: for tests of the rules of residency.
#pragma once

#include <random>

#include "oasis/engine/config.h"

namespace oasis::engine::testing {

inline EngineConfig random_rules_config(std::mt19937& random) {
  const auto pick = [&](int32_t a, int32_t b) { return std::uniform_int_distribution<int32_t>(a, b)(random); };
  EngineConfig c;
  c.max_sequences = pick(1, 3);
  c.block_size = pick(0, 5) == 0 ? 32 : 16;
  c.top_k_blocks = pick(4, 8);
  c.resident_ratio = 1 + pick(0, 4) / 4.0;
  c.fetch_ratio = pick(0, 5) / 8.0;
  c.block_score = pick(0, 1) ? lookahead::BlockScore::kShrunk : lookahead::BlockScore::kMinMax;
  c.draft = pick(0, 4) ? "ngram" : "none";
  c.accept_drafts = pick(0, 3) != 0;
  c.draft_tokens = pick(1, 8);
  c.prefill_chunk = pick(30, 300);
  c.attention = pick(0, 2) ? Attention::kSparse : Attention::kAuto;
  return c;
}

}  // namespace oasis::engine::testing
