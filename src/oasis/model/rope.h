// Rotary position embeddings: the frequencies of a checkpoint, with the scalings that stretch its context.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::model {

enum class RopeScaling { kNone, kLlama3, kYarn };

struct RopeConfig {
  float theta = 10000.0f;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;            // how many times the context was stretched
  float low_freq_factor = 1.0f;   // llama3
  float high_freq_factor = 4.0f;  // llama3
  float attention_factor = 0.0f;  // yarn: scale of cos and sin; 0: 0.1 ln(factor) + 1
  float beta_fast = 32.0f;        // yarn
  float beta_slow = 1.0f;         // yarn
  int64_t original_context = 0;   // positions before the stretch
  // True: pairs are (2j, 2j+1), since q and k rows of GGUF's arch llama are permuted. False: (j, j + head_dim/2).
  bool interleaved = false;
  std::vector<float> freq_divisors;  // [head_dim/2] or empty: GGUF's rope_freqs.weight
};

Status validate(const RopeConfig& rope, int head_dim);

// [head_dim/2]: the angle of pair j at position p is p * frequencies[j].
std::vector<double> rope_frequencies(const RopeConfig& rope, int head_dim);

// What cos and sin are multiplied by (YaRN; otherwise 1).
float rope_attention_scale(const RopeConfig& rope);

}  // namespace oasis::model
