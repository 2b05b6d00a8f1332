// A request on its way through the engine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "oasis/engine/engine.h"
#include "oasis/engine/output_text.h"
#include "oasis/engine/request.h"
#include "oasis/lookahead/kv_core.h"

namespace oasis::engine {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

enum class SequenceState : uint8_t { kWaiting, kPrefill, kRunning, kPreempted, kFinished };
std::string_view to_string(SequenceState state);

inline Status broken_logits() {
  return {StatusCode::kInternal,
          "no logit is a number: the model's weights are damaged, or its activations overflowed"};
}

struct EngineSequence {
  RequestId id = 0;
  Request request;
  SequenceState state = SequenceState::kWaiting;
  std::atomic<bool> cancelled{false};
  int32_t index = -1;           // stable index in core and drafter; -1 while it has none
  int64_t admitted = 0;         // order of admission: the latest is preempted first
  int32_t max_length = 0;       // tokens of prompt and output at most
  std::vector<int32_t> tokens;  // prompt and output so far
  std::vector<int32_t> drafts;  // proposals for the tokens after the newest
  std::optional<Sampler> sampler;
  std::optional<OutputText> text;
  int32_t published_blocks = 0;  // whose homes are complete (drafter's part too) and offered to the prefix cache
  kv::HomeId last_home = -1;     // of the last published block, the parent of the next
  lookahead::SavedSequence saved;
  std::vector<std::byte> saved_drafter;
  int32_t scored = 0;  // Request::prompt_logprobs: prompt rows whose logits have been looked at
  bool preempt_requested = false;
  RequestStats stats;
  Clock::time_point submitted = Clock::now(), started, first_token;
  FinishReason finish = FinishReason::kNone;
  Status error;

  std::vector<int32_t> stop_tokens;  // sorted: the model's end tokens (unless ignored) and the request's

  bool is_stop(int32_t token) const { return std::binary_search(stop_tokens.begin(), stop_tokens.end(), token); }
  // The newest token is the last: a stop token, or no room for more.
  bool ended() const {
    return is_stop(tokens.back()) || output_length() >= request.max_tokens ||
           static_cast<int32_t>(tokens.size()) >= max_length;
  }
  int32_t prompt_length() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t output_length() const { return static_cast<int32_t>(tokens.size()) - prompt_length(); }
};

}  // namespace oasis::engine
