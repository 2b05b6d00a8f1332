// What the scheduler tells: tokens and ends to clients, figures to whoever asks for metrics.
#include <algorithm>

#include "oasis/engine/engine_impl.h"

namespace oasis::engine {

// Hands new tokens to the client and ends the sequence where they end it.
void Engine::Impl::deliver(EngineSequence& s, std::vector<Sampled> tokens) {
  Event event{.prompt_tokens = s.prompt_length(), .cached_tokens = s.stats.cached_tokens};
  event.prefilled = s.prompt_length();
  FinishReason reason = FinishReason::kNone;
  const auto before = static_cast<size_t>(s.output_length()) - tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i].token;
    const bool stop = s.is_stop(token);
    bool stopped = false;
    if (s.text && !stop) event.text += s.text->push(token, stopped);
    event.tokens.push_back(std::move(tokens[i]));
    if (stop || stopped) {
      reason = FinishReason::kStop;
      s.tokens.resize(static_cast<size_t>(s.prompt_length()) + before + i + 1);
      break;
    }
  }
  if (reason == FinishReason::kNone && s.ended()) reason = FinishReason::kLength;
  totals.output_tokens += static_cast<int64_t>(event.tokens.size());
  s.stats.output_tokens += static_cast<int32_t>(event.tokens.size());
  if (s.request.on_event && (!event.tokens.empty() || !event.text.empty())) s.request.on_event(event);
  if (reason != FinishReason::kNone) finish(s, reason);
}

// Takes effect at once: called between steps only. Memory comes back when the last step's transfers are done.
void Engine::Impl::finish(EngineSequence& s, FinishReason reason, Status error) {
  Event event{.prompt_tokens = s.prompt_length(),
              .cached_tokens = s.stats.cached_tokens,
              .finish = reason,
              .error = std::move(error)};
  if (s.text && (reason == FinishReason::kStop || reason == FinishReason::kLength)) event.text = s.text->finish();
  if (s.index >= 0) {
    leave(s);
  } else if (s.state == SequenceState::kPreempted) {
    core->discard(s.saved);
    std::erase(preempted, &s);
  } else {
    std::erase(waiting, &s);
  }
  s.state = SequenceState::kFinished;
  totals.finished += reason == FinishReason::kStop || reason == FinishReason::kLength;
  totals.cancelled += reason == FinishReason::kCancelled;
  totals.failed += reason == FinishReason::kError;
  totals.proposed += s.stats.proposed;
  totals.compared += s.stats.compared;
  totals.right += s.stats.right;
  totals.accepted += s.stats.accepted;
  const auto on_event = std::move(s.request.on_event);
  {
    std::lock_guard lock(mutex);
    ended[s.id] = s.stats;
    sequences.erase(s.id);
  }
  if (on_event) on_event(event);
}

SequenceInfo Engine::Impl::info(const EngineSequence& s) const {
  SequenceInfo i{.id = s.id,
                 .state = to_string(s.state),
                 .prompt_tokens = s.prompt_length(),
                 .output_tokens = s.output_length(),
                 .age_seconds = seconds_since(s.submitted)};
  if (s.state != SequenceState::kWaiting) i.prefilled = &s == prefilling ? prefill->progress() : s.prompt_length();
  if (s.index < 0) return i;
  const auto& q = core->sequence(s.index);
  i.sparse = q.sparse;
  i.total_blocks = static_cast<int32_t>(q.homes.size());
  i.resident_blocks = q.sparse ? std::min(i.total_blocks, plan.core.resident_blocks) : i.total_blocks;
  return i;
}

void Engine::Impl::snapshot() {
  EngineMetrics m = totals;
  m.waiting = static_cast<int32_t>(waiting.size());
  m.prefilling = prefilling != nullptr;
  for (const EngineSequence* s : by_index) m.running += s && s->state == SequenceState::kRunning;
  m.preempted = static_cast<int32_t>(preempted.size());
  m.draft_seconds = decode_step->propose_seconds();
  m.core = core->stats();
  m.homes = homes->stats();
  m.tier = homes->tier().stats();
  m.fast_bytes_limit = config.fast_memory > 0 ? static_cast<int64_t>(config.fast_memory) : plan.fast_bytes();
  m.fast_bytes_used = (plan.core.pages - core->free_pages()) * plan.page_bytes +
                      (plan.core.summary_pages - core->free_summary_pages()) * plan.summary_page_bytes +
                      plan.map_bytes + plan.draft_bytes;
  m.fast_bytes_peak = core->fast_bytes_peak() + plan.draft_bytes;
  m.capacity_bytes = homes->tier().memory_bytes() + homes->tier().file_bytes();
  m.weight_bytes = static_cast<int64_t>(checkpoint.weight_bytes());
  m.free_pages = core->free_pages();
  m.pages = plan.core.pages;
  const auto add = [&](const EngineSequence& s) {
    m.sequences.push_back(info(s));
    m.proposed += s.stats.proposed, m.compared += s.stats.compared;
    m.right += s.stats.right, m.accepted += s.stats.accepted;
  };
  for (const EngineSequence* s : by_index) {
    if (s) add(*s);
  }
  for (const EngineSequence* s : preempted) add(*s);
  for (size_t i = 0; i < std::min<size_t>(waiting.size(), 100); ++i) m.sequences.push_back(info(*waiting[i]));
  std::lock_guard lock(mutex);
  published = std::move(m);
}

}  // namespace oasis::engine
