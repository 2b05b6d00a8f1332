// From a row of logits to a token: penalties, bias, temperature, top-k, top-p, min-p, seeds, log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::engine {

// Applied in this order: repetition, presence and frequency penalty, bias, temperature, top-k, top-p (of the mass that
// top-k left), min-p. Where a cut falls between equal logits, the lower ids stay.
struct SamplingParams {
  float temperature = 0;         // 0: greedy (ties: lower id)
  int32_t top_k = 0;             // 0: off
  float top_p = 1;               // (0, 1]: the fewest likeliest tokens whose probabilities reach it; at least one
  float min_p = 0;               // [0, 1]: tokens at least this likely, relative to the likeliest
  float repetition_penalty = 1;  // on tokens of prompt and output: logit > 0 ? logit / r : logit * r
  float presence_penalty = 0;    // on tokens of the output
  float frequency_penalty = 0;   // times the count in the output
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  // -1: none; n: the chosen token's and the n most likely (<= 20), of the model's own distribution: the log-softmax of
  // the logits as they came, before penalties, bias and temperature.
  int32_t logprobs = -1;
};
// Names the field, the value and the range.
Status validate(const SamplingParams& params, int64_t vocab);

struct TokenLogprob {
  int32_t token;
  float logprob;
};
struct Sampled {
  int32_t token = -1;             // -1: no logit is a number (a broken model): the sequence cannot go on
  float margin = 0;               // largest minus second largest logit after penalties and bias (diagnostics, tests)
  float logprob = 0;              // of `token`; set where params.logprobs >= 0
  std::vector<TokenLogprob> top;  // the params.logprobs most likely, likeliest first
};

// The log-probability of a token that is given, and the `top` most likely, of the model's own distribution (the raw
// logits [vocab]). Token -1: no logit is a number.
Sampled logprob_of(std::span<const float> logits, int32_t token, int32_t top);

// The state that a sequence's sampling depends on: token counts and the position of its random stream. A draw depends
// on (seed, position) alone, so preemption, batching and drafts do not change it.
class Sampler {
 public:
  // `params` are valid for `vocab`. Tokens of the prompt outside the vocabulary count for nothing.
  Sampler(SamplingParams params, int64_t vocab, std::span<const int32_t> prompt);
  // Samples the token that follows `position` tokens of the sequence. `logits` [vocab] is scratch afterwards. A NaN
  // logit is never chosen.
  Sampled sample(std::span<float> logits, int64_t position);
  // Rejection sampling of a deterministic draft: accepts `draft` with probability p(draft) or returns a sample of p
  // without it, so that the outcome is distributed as sample()'s. Greedy: accepted iff it is the argmax. The token is
  // the very one that sample() draws at this position: equal drafts are accepted, and drafts change no output.
  Sampled sample_or_accept(std::span<float> logits, int64_t position, int32_t draft, bool& accepted);
  // The token became part of the output (counts for penalties).
  void append(int32_t token);
  const SamplingParams& params() const { return params_; }
  // The token is the argmax of the logits as they come, and nothing else is asked of them.
  bool plain_greedy() const;

 private:
  struct Edit {
    int32_t token;
    float raw;  // the logit before penalties and bias
  };
  void penalise(std::span<float> logits);

  SamplingParams params_;
  int64_t vocab_;
  std::vector<int32_t> seen_;                        // tokens of prompt and output, distinct, sorted
  std::vector<std::pair<int32_t, int32_t>> counts_;  // (token, times in the output), sorted
  std::vector<Edit> edits_;                          // what penalise() changed in the row at hand
};

}  // namespace oasis::engine
