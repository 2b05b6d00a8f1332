// What a client asks for and what it hears back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/engine/sampler.h"

namespace oasis::engine {

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };
std::string_view to_string(FinishReason reason);

// One piece of a request's output. Delivered on the engine's thread, in order; the callback must not block and must not
// call the engine, except cancel().
struct Event {
  std::vector<Sampled> tokens;  // new tokens; empty for progress and for the last piece of text
  // Request::prompt_logprobs: the next tokens of the prompt, from its second on, in order; comes before `tokens`.
  std::vector<Sampled> prompt_logprobs;
  std::string text;       // new text: whole characters, nothing that a stop string may still swallow
  int32_t prefilled = 0;  // prompt tokens done so far (prefill progress), of prompt_tokens
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;                  // of the prompt, taken from the prefix cache; known with the first event
  FinishReason finish = FinishReason::kNone;  // not kNone: the last event
  Status error;                               // with kError
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  int32_t max_tokens = 0;       // of output; 0: as many as the context has room for
  SamplingParams sampling;
  std::vector<std::string> stop;     // output ends before the first of these; it is not part of the text
  std::vector<int32_t> stop_tokens;  // besides the model's end-of-sequence tokens
  bool ignore_eos = false;
  bool skip_special = false;  // control tokens leave no text
  // -1: none; n: the log-probability of every prompt token but the first, and of the n most likely (<= 20) in its
  // place. Such a prompt is read as a whole, without the prefix cache, and its rows go through the model's head a chunk
  // at a time.
  int32_t prompt_logprobs = -1;
  std::function<void(const Event&)> on_event;

  // For evaluation. `forced`: the sequence goes on with these tokens whatever is sampled (teacher forcing); `on_logits`
  // sees the target's raw logits [vocab] for every output position before sampling.
  std::vector<int32_t> forced;
  std::function<void(int32_t index, std::span<const float> logits)> on_logits;
};

// What one request cost, known when it has ended.
struct RequestStats {
  int32_t prompt_tokens = 0, cached_tokens = 0;  // cached: prompt tokens whose KV came from the prefix cache
  int32_t output_tokens = 0;
  double queued_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  int64_t steps = 0;                              // decode steps it took part in
  int64_t proposed = 0, right = 0, accepted = 0;  // drafts: ridden along, equal to what came, accepted
  int64_t compared = 0;                           // drafts whose position was reached, right or wrong
  int64_t sparse_steps = 0;
  int32_t preemptions = 0;
};

}  // namespace oasis::engine
