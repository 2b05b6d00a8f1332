// Who runs when. One piece of work a call: at most one prefill item, then one decode step of everyone who decodes, so
// that the gap between two tokens never holds more than one item of somebody's prompt.
#include <algorithm>

#include "oasis/engine/engine_impl.h"

namespace oasis::engine {

bool Engine::Impl::step() {
  // In this order: whoever asked for a cancel had submitted before.
  const bool cancels = cancel_requested.exchange(false);
  take_submissions();
  if (cancels) drop_cancelled();
  if (nobody_runs()) core->settle();  // what the last ones left is at rest, and whoever waits may have it
  bool worked = resume_one();
  if (!prefilling) worked |= admit_one();
  worked |= config.prefill_share > 0 ? work_by_share() : prefill_item() | decode();
  snapshot();
  return worked || has_work();
}

// A work item of the prompt or a decode step, so that of the time in which both are there the prompt gets its share.
bool Engine::Impl::work_by_share() {
  const bool decodes = std::any_of(by_index.begin(), by_index.end(),
                                   [](const EngineSequence* s) { return s && s->state == SequenceState::kRunning; });
  if (!prefilling || !decodes) prefill_ahead = 0;
  const auto begin = Clock::now();
  if (prefilling && prefill_ahead <= 0) {
    prefill_item();
    device.foreground().synchronize();  // a GPU's work is done when its time is taken
    if (decodes) prefill_ahead += seconds_since(begin) * (1 - config.prefill_share);
    return true;
  }
  const int64_t steps = totals.steps;
  const bool worked = decode();
  prefill_ahead -= seconds_since(begin) * config.prefill_share;
  if (totals.steps == steps) prefill_ahead = 0;  // the step waits for pages that the prompt holds
  return worked;
}

bool Engine::Impl::nobody_runs() const {
  return std::all_of(by_index.begin(), by_index.end(), [](const EngineSequence* s) { return s == nullptr; });
}

bool Engine::Impl::has_work() const {
  if (!nobody_runs() || !waiting.empty() || !preempted.empty()) return true;
  std::lock_guard lock(mutex);
  return !submitted.empty();
}

void Engine::Impl::take_submissions() {
  std::lock_guard lock(mutex);
  waiting.insert(waiting.end(), submitted.begin(), submitted.end());
  submitted.clear();
}

void Engine::Impl::drop_cancelled() {
  std::vector<EngineSequence*> all(waiting.begin(), waiting.end());
  all.insert(all.end(), preempted.begin(), preempted.end());
  for (EngineSequence* s : by_index) {
    if (s) all.push_back(s);
  }
  for (EngineSequence* s : all) {
    if (s->cancelled) finish(*s, FinishReason::kCancelled);
  }
}

int32_t Engine::Impl::take_index() {
  const auto it = std::find(by_index.begin(), by_index.end(), nullptr);
  return it == by_index.end() ? -1 : static_cast<int32_t>(it - by_index.begin());
}

bool Engine::Impl::starts_sparse(int32_t prompt_tokens) const {
  switch (config.attention) {
    case Attention::kDense:
      return false;
    case Attention::kSparse:
      return true;
    case Attention::kAuto:
      return prompt_tokens / config.block_size > plan.core.resident_blocks;
  }
  return false;
}

// The longest preempted goes on as soon as its working set fits.
bool Engine::Impl::resume_one() {
  if (preempted.empty()) return false;
  EngineSequence& s = *preempted.front();
  const int32_t index = take_index();
  if (index < 0) return false;
  const Status restored = core->restore(index, s.saved);
  if (!restored.ok()) {
    OASIS_CHECK(restored.code() == StatusCode::kResourceExhausted && !nobody_runs(),
                "a lone preempted sequence does not fit: {}", restored.message());
    return false;
  }
  preempted.pop_front();
  s.index = index;
  by_index[static_cast<size_t>(index)] = &s;
  s.state = SequenceState::kRunning;
  Status status = drafter->attach(index);
  if (status.ok()) status = drafter->restore(index, s.saved_drafter);
  s.saved_drafter.clear();
  if (!status.ok()) finish(s, FinishReason::kError, std::move(status));
  return true;
}

// First come, first served: the head of the queue waits until its homes and pages are there, and nobody passes it.
bool Engine::Impl::admit_one() {
  if (waiting.empty() || !preempted.empty()) return false;
  EngineSequence& s = *waiting.front();
  const int32_t index = take_index();
  if (index < 0) return false;
  const bool sparse = starts_sparse(s.prompt_length());
  const int32_t pages = core->pages_for((s.prompt_length() - 1) / config.block_size + 1, sparse);
  const int32_t summaries = s.prompt_length() / config.block_size + 2;
  if (core->free_pages() < pages || core->free_summary_pages() < summaries) {
    if (!nobody_runs()) return false;
    waiting.pop_front();
    finish(s, FinishReason::kError,
           resource_exhausted("a prompt of {} tokens needs {} pages and {} summary pages, the fast tier has {} and {}",
                              s.prompt_length(), pages, summaries, plan.core.pages, plan.core.summary_pages));
    return true;
  }
  std::vector<kv::HomeId> prefix;
  if (config.prefix_cache) {
    const bool dense_only = config.attention == Attention::kDense || config.fetch == lookahead::FetchMode::kExact;
    prefix = homes->match(prefix_root, s.tokens, dense_only ? kv::Provenance::kDense : kv::Provenance::kSparse);
  }
  for (const kv::HomeId home : synthetic_homes) {
    homes->ref(home);
    prefix.push_back(home);
  }
  const auto give_back = [&] {
    for (const kv::HomeId home : prefix) homes->unref(home, -1);
    homes->release_through(-1);
  };
  const int32_t needed = s.max_length / config.block_size - static_cast<int32_t>(prefix.size());
  auto reserved = homes->reserve(needed);
  if (!reserved.ok() || !*reserved) {
    give_back();
    if (reserved.ok() && !nobody_runs()) return false;
    waiting.pop_front();
    finish(s, FinishReason::kError,
           reserved.ok()
               ? resource_exhausted("{} blocks in the capacity tier are not to be had, though nobody else runs", needed)
               : reserved.status());
    return true;
  }
  waiting.pop_front();
  const int32_t max_blocks = (s.max_length + config.block_size - 1) / config.block_size;
  Status status = core->attach(index, max_blocks, needed);
  OASIS_CHECK(status.ok(), "{}", status.message());
  s.index = index;
  by_index[static_cast<size_t>(index)] = &s;
  s.admitted = ++admissions;
  s.state = SequenceState::kPrefill;
  s.started = Clock::now();
  s.stats.queued_seconds = seconds_since(s.submitted);
  s.stats.cached_tokens = static_cast<int32_t>(prefix.size()) * config.block_size;
  s.published_blocks = static_cast<int32_t>(prefix.size());
  s.last_home = prefix.empty() ? kv::kNoHome : prefix.back();
  if (config.synthetic_prompts) {
    status = synthesize_prompt(s, sparse, prefix);
    if (!status.ok()) finish(s, FinishReason::kError, std::move(status));
    return true;
  }
  prefilling = &s;
  prefill = std::make_unique<Prefill>(device.foreground(), *transformer, *core, *drafter, workspace, index, s.tokens,
                                      config.prefill_chunk);
  status = drafter->attach(index);
  if (status.ok()) status = prefill->begin(sparse, prefix);
  if (!status.ok()) {
    give_back();  // the core has not taken the prefix over
    finish(s, FinishReason::kError, std::move(status));
  }
  return true;
}

bool Engine::Impl::prefill_item() {
  if (!prefilling) return false;
  EngineSequence& s = *prefilling;
  const int32_t before = prefill->progress();
  auto done = prefill->advance();
  if (!done.ok()) {
    if (!start_over(s)) finish(s, FinishReason::kError, done.status());
    return true;
  }
  if (*done) {
    finish_prefill();
  } else if (s.request.on_event && prefill->progress() > before) {
    s.request.on_event(
        {.prefilled = prefill->progress(), .prompt_tokens = s.prompt_length(), .cached_tokens = s.stats.cached_tokens});
  }
  return true;
}

// Benches: the prompt counts as read.
Status Engine::Impl::synthesize_prompt(EngineSequence& s, bool sparse, std::span<const kv::HomeId> shared) {
  OASIS_RETURN_IF_ERROR(drafter->attach(s.index));
  OASIS_RETURN_IF_ERROR(core->synthesize(s.index, s.prompt_length(), sparse, shared));
  if (synthetic_homes.empty() && !config.synthetic_own_homes) {
    synthetic_homes = core->sequence(s.index).homes;
    for (const kv::HomeId home : synthetic_homes) homes->ref(home);
  }
  drafter->pretend(s.index, s.prompt_length());
  s.tokens.push_back(s.request.prompt.back());
  s.published_blocks = static_cast<int32_t>(core->sequence(s.index).homes.size());
  s.state = SequenceState::kRunning;
  s.first_token = Clock::now();
  return {};
}

// A shared prefix that cannot be read any more is a miss: the prompt waits for its turn again, which comes next.
bool Engine::Impl::start_over(EngineSequence& s) {
  const auto& q = core->sequence(s.index);
  const bool lost = std::any_of(q.homes.begin(), q.homes.begin() + q.prefix_blocks,
                                [&](kv::HomeId home) { return !homes->tier().status(home).ok(); });
  if (!lost) return false;
  leave(s);
  s.state = SequenceState::kWaiting;
  waiting.push_front(&s);
  return true;
}

// Gives up the sequence's index and all that it holds.
void Engine::Impl::leave(EngineSequence& s) {
  if (prefilling == &s) {
    prefilling = nullptr;
    prefill.reset();
  }
  core->detach(s.index);
  drafter->detach(s.index);
  by_index[static_cast<size_t>(s.index)] = nullptr;
  s.index = -1;
}

// The prompt is in its homes: the first token is sampled, the drafter takes the prompt in and proposes.
void Engine::Impl::finish_prefill() {
  EngineSequence& s = *prefilling;
  Stream& stream = device.foreground();
  const int64_t dim = drafter->feature_dim();
  const int32_t bs = config.block_size;
  if (drafter->home_bytes() > 0) {
    for (int32_t b = 0; b < s.published_blocks; ++b) {
      const std::byte* meta = homes->tier().meta(core->sequence(s.index).homes[static_cast<size_t>(b)]);
      drafter->load_block(stream, s.index, b, meta + plan.core.shape.summary_page_bytes(),
                          s.tokens[static_cast<size_t>((b + 1) * bs)]);
    }
  }
  const int32_t chunk = config.prefill_chunk;
  for (int32_t at = prefill->first(); at < s.prompt_length() - 1; at += chunk) {
    const int32_t rows = std::min(chunk, s.prompt_length() - 1 - at);
    drafter->absorb(stream, s.index, at, rows, prefill->features() + (at - prefill->first()) * dim,
                    s.tokens.data() + at + 1);
    publish_blocks(s, at + rows);
  }
  std::vector<float> logits(static_cast<size_t>(transformer->config().vocab));
  transformer->logits(stream, prefill->last_hidden(), 1, logits.data());
  if (s.request.on_logits) s.request.on_logits(0, logits);
  Sampled y = s.sampler->sample(logits, s.prompt_length());
  if (y.token < 0) return finish(s, FinishReason::kError, broken_logits());
  if (!s.request.forced.empty()) y.token = s.request.forced[0];
  s.sampler->append(y.token);
  s.tokens.push_back(y.token);
  decode_step->propose_after_prefill(s, prefill->features() + (s.prompt_length() - 1 - prefill->first()) * dim);
  publish_blocks(s, s.prompt_length());
  s.state = SequenceState::kRunning;
  s.first_token = Clock::now();
  s.stats.prefill_seconds = seconds_since(s.started);
  totals.prompt_tokens += s.prompt_length();
  totals.cached_tokens += s.stats.cached_tokens;
  totals.prefill_seconds += s.stats.prefill_seconds;
  prefilling = nullptr;
  prefill.reset();
  std::vector<Sampled> tokens;
  tokens.push_back(std::move(y));
  deliver(s, std::move(tokens));
}

// Blocks whose `taken` rows (positions below it) the drafter has all taken in: their homes are complete.
void Engine::Impl::publish_blocks(EngineSequence& s, int32_t taken) {
  const auto& q = core->sequence(s.index);
  const int32_t bs = config.block_size;
  const int32_t end = std::min(static_cast<int32_t>(q.homes.size()), taken / bs);
  for (int32_t b = s.published_blocks; b < end; ++b) {
    const kv::HomeId home = q.homes[static_cast<size_t>(b)];
    if (drafter->home_bytes() > 0) {
      drafter->store_block(s.index, b, homes->tier().meta(home) + plan.core.shape.summary_page_bytes());
    }
    if (config.prefix_cache) {
      const std::span<const int32_t> tokens(s.tokens.data() + b * bs, static_cast<size_t>(bs));
      const bool dense = !q.sparse || b < s.prompt_length() / bs;  // prefill is dense
      const kv::HomeId kept = homes->publish(home, s.last_home, prefix_root, tokens,
                                             dense ? kv::Provenance::kDense : kv::Provenance::kSparse);
      if (kept != home) core->rehome(s.index, b, kept);
      s.last_home = kept;
    }
    s.published_blocks = b + 1;
  }
}

bool Engine::Impl::decode() {
  std::vector<EngineSequence*> batch;
  for (EngineSequence* s : by_index) {
    if (s && s->state == SequenceState::kRunning) batch.push_back(s);
  }
  if (batch.empty()) return false;
  make_room(batch);
  if (batch.empty()) return true;
  const auto begin = Clock::now();
  std::vector<std::vector<Sampled>> sampled;
  decode_step->run(batch, sampled);
  const double seconds = seconds_since(begin);
  ++totals.steps;
  totals.decode_seconds += seconds;
  for (size_t i = 0; i < batch.size(); ++i) {
    EngineSequence& s = *batch[i];
    s.stats.decode_seconds += seconds;
    const Status& lost = core->sequence(s.index).error;
    if (Status error = lost.ok() ? s.error : lost; !error.ok()) {
      finish(s, FinishReason::kError, std::move(error));
      continue;
    }
    publish_blocks(s, static_cast<int32_t>(s.tokens.size()) - 1);
    deliver(s, std::move(sampled[i]));
  }
  return true;
}

// Pages for the step, and summary pages: while they are short, the latest admitted gives its own back. The earliest
// always runs.
void Engine::Impl::make_room(std::vector<EngineSequence*>& batch) {
  const auto drop = [&](EngineSequence* s) {
    preempt(*s);
    std::erase(batch, s);
  };
  for (EngineSequence* s : std::vector(batch)) {
    if (s->preempt_requested) drop(s);
  }
  const auto fits = [&] {
    lookahead::KvCore::Wanted all;
    for (const EngineSequence* s : batch) {
      const auto wanted = core->wanted(decode_step->shape_of(*s));
      all.pages += wanted.pages;
      all.summary_pages += wanted.summary_pages;
    }
    return all.pages <= core->free_pages() && all.summary_pages <= core->free_summary_pages();
  };
  for (;;) {
    if (fits()) return;
    core->settle();
    if (fits()) return;
    if (batch.size() == 1) {
      // A prefill holds pages too. It cannot be saved half-way, so the step waits for it; without one, nothing can
      // help.
      if (!prefilling)
        finish(*batch[0], FinishReason::kError,
               resource_exhausted("the fast tier has no page left for this sequence alone"));
      batch.clear();
      return;
    }
    drop(*std::max_element(batch.begin(), batch.end(),
                           [](const auto* a, const auto* b) { return a->admitted < b->admitted; }));
  }
}

void Engine::Impl::preempt(EngineSequence& s) {
  s.preempt_requested = false;
  s.saved = core->save(s.index);
  s.saved_drafter = drafter->save(s.index);
  drafter->detach(s.index);
  by_index[static_cast<size_t>(s.index)] = nullptr;
  s.index = -1;
  s.state = SequenceState::kPreempted;
  ++s.stats.preemptions;
  ++totals.preemptions;
  preempted.push_back(&s);
  core->settle();
}

}  // namespace oasis::engine
