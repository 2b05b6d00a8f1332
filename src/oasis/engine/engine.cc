#include "oasis/engine/engine.h"

#include <algorithm>
#include <array>
#include <bit>

#include "oasis/base/units.h"
#include "oasis/draft/make_drafter.h"
#include "oasis/engine/engine_impl.h"

namespace oasis::engine {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view to_string(SequenceState state) {
  switch (state) {
    case SequenceState::kWaiting:
      return "waiting";
    case SequenceState::kPrefill:
      return "prefill";
    case SequenceState::kRunning:
      return "running";
    case SequenceState::kPreempted:
      return "preempted";
    case SequenceState::kFinished:
      return "finished";
  }
  return "unknown";
}

namespace {

Result<std::unique_ptr<kv::Tier>> make_tier(Device& device, const EngineConfig& config, const MemoryPlan& plan,
                                            int64_t extra_bytes) {
  const kv::TierConfig shape{.shape = plan.core.shape, .extra_bytes = extra_bytes, .device = &device};
  // A file larger than the sequences can fill keeps more prefixes, where memory is given for what is to be known of
  // them.
  const bool whole_file = plan.capacity_file_bytes > 0 && config.capacity_memory > 0;
  auto tier = config.capacity_file.empty() ? kv::make_dram_tier(shape, plan.capacity_memory_bytes)
                                           : kv::make_file_tier(shape, {.path = config.capacity_file,
                                                                        .file_bytes = plan.capacity_file_bytes,
                                                                        .memory_bytes = plan.capacity_memory_bytes,
                                                                        .max_homes = whole_file ? 0 : plan.homes});
  if (tier.ok() && config.wrap_tier) return config.wrap_tier(std::move(*tier), shape);
  return tier;
}

// On a GPU without --fast-memory the pools get what weights, workspaces and steps leave.
Status bound_by_device(const Device& device, const model::ModelConfig& m, const DrafterSizes& drafter,
                       EngineConfig& config) {
  constexpr int64_t kReserve = int64_t{768} << 20;  // tables and activations of captured steps, the libraries' scratch
  const int64_t total = device.memory_total();
  if (total == 0 && config.device_memory > 0)
    return invalid_argument("--device-memory bounds a GPU's memory: give --device cuda too");
  if (total == 0 || config.fast_memory > 0) return {};
  OASIS_ASSIGN_OR_RETURN(const MemoryPlan wanted, plan_memory(m, config, drafter));
  const int64_t limit = config.device_memory > 0 ? std::min(static_cast<int64_t>(config.device_memory), total) : total;
  // The drafter's part of the fast tier is in use already.
  const int64_t taken = device.memory_in_use() - drafter.fast_bytes;
  const int64_t beside = wanted.prefill_workspace_bytes + wanted.activation_bytes + kReserve;
  const int64_t room = limit - taken - beside;
  if (room <= 0) {
    return resource_exhausted(
        "{} of GPU memory{} leave nothing for the fast tier: {} are in use (weights), {} are for workspaces and steps; "
        "give more, "
        "or a smaller --context or --max-sequences",
        format_bytes(static_cast<uint64_t>(limit)), config.device_memory > 0 ? " (--device-memory)" : "",
        format_bytes(static_cast<uint64_t>(taken)), format_bytes(static_cast<uint64_t>(beside)));
  }
  if (wanted.fast_bytes() > room) config.fast_memory = static_cast<uint64_t>(room);
  return {};
}

// Besides the model and the encoding: what a kept block's summaries, and the K/V of sparse blocks, depend on.
kv::PrefixKey identity_of(const kv::PrefixKey& root, const EngineConfig& config, const lookahead::CoreConfig& core,
                          int64_t extra_bytes) {
  const std::array<int32_t, 9> settings = {static_cast<int32_t>(config.attention),
                                           static_cast<int32_t>(core.fetch),
                                           static_cast<int32_t>(core.score),
                                           std::bit_cast<int32_t>(core.beta),
                                           std::bit_cast<int32_t>(static_cast<float>(core.fetch_ratio)),
                                           core.attend_blocks,
                                           core.resident_blocks,
                                           core.max_draft_rows,
                                           static_cast<int32_t>(extra_bytes)};
  return kv::prefix_child(root, settings, kv::Provenance::kDense);
}

}  // namespace

Status Engine::Impl::init() {
  const auto& m = checkpoint.config();
  OASIS_RETURN_IF_ERROR(validate(config));
  const int64_t context = config.max_context > 0 ? config.max_context : m.context;
  const int32_t most_drafts = config.accept_drafts ? config.draft_tokens + 1 : 1;
  const int64_t rows = std::max<int64_t>(config.prefill_chunk, int64_t{config.max_sequences} * (1 + most_drafts));
  OASIS_ASSIGN_OR_RETURN(auto t, model::Transformer::create(device, checkpoint, rows));
  transformer = std::make_unique<model::Transformer>(std::move(t));
  OASIS_ASSIGN_OR_RETURN(drafter, draft::make_drafter(device, config.draft, checkpoint,
                                                      {.max_sequences = config.max_sequences,
                                                       .max_rows = static_cast<int32_t>(rows),
                                                       .block_size = config.block_size,
                                                       .weights = &transformer->device_weights()}));
  const DrafterSizes drafter_sizes{.fast_bytes = drafter->fast_bytes(),
                                   .home_bytes = drafter->home_bytes(),
                                   .feature_dim = drafter->feature_dim(),
                                   .scratch_bytes = drafter->scratch_bytes()};
  EngineConfig bounded = config;
  OASIS_RETURN_IF_ERROR(bound_by_device(device, m, drafter_sizes, bounded));
  OASIS_ASSIGN_OR_RETURN(plan, plan_memory(m, bounded, drafter_sizes));
  OASIS_ASSIGN_OR_RETURN(auto tier, make_tier(device, config, plan, drafter->home_bytes()));
  homes = std::make_unique<kv::HomeStore>(std::move(tier), config.block_size);
  OASIS_ASSIGN_OR_RETURN(core, lookahead::KvCore::create(device, plan.core, *homes));
  OASIS_ASSIGN_OR_RETURN(workspace, PrefillWorkspace::create(device, m, drafter->feature_dim(),
                                                             config.synthetic_prompts ? config.block_size : context,
                                                             config.prefill_chunk, config.block_size));
  OASIS_ASSIGN_OR_RETURN(auto d, DecodeStep::create(device, *transformer, *core, *drafter, config));
  decode_step = std::make_unique<DecodeStep>(std::move(d));
  if (config.synthetic_prompts) core->fill_with_noise();
  prefix_root = kv::prefix_root(checkpoint.fingerprint(), plan.core.shape, drafter->fingerprint());
  cache_identity = identity_of(prefix_root, config, plan.core, drafter->home_bytes());
  if (config.prefix_cache && !config.synthetic_prompts) homes->restore(cache_identity, prefix_root);
  by_index.assign(static_cast<size_t>(config.max_sequences), nullptr);
  snapshot();
  return {};
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { stop(); }

Result<std::unique_ptr<Engine>> Engine::create(Device& device, const model::Checkpoint& checkpoint,
                                               const text::Tokenizer* tokenizer, EngineConfig config) {
  auto impl = std::make_unique<Impl>(device, checkpoint, tokenizer, std::move(config));
  OASIS_RETURN_IF_ERROR(impl->init());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

namespace {

Status check(const Request& r, const Engine::Impl& e) {
  const int64_t vocab = e.checkpoint.config().vocab;
  const int64_t context = int64_t{e.plan.core.max_blocks} * e.config.block_size;
  const int64_t limit =
      std::min(context, e.config.max_context > 0 ? e.config.max_context : e.checkpoint.config().context);
  if (r.prompt.empty()) return invalid_argument("the prompt is empty: give at least one token");
  for (const int32_t id : r.prompt) {
    if (id < 0 || id >= vocab) return invalid_argument("prompt token {}: ids lie in 0 .. {}", id, vocab - 1);
  }
  for (const int32_t id : r.stop_tokens) {
    if (id < 0 || id >= vocab) return invalid_argument("stop token {}: ids lie in 0 .. {}", id, vocab - 1);
  }
  for (const int32_t id : r.forced) {
    if (id < 0 || id >= vocab) return invalid_argument("forced token {}: ids lie in 0 .. {}", id, vocab - 1);
  }
  if (static_cast<int64_t>(r.prompt.size()) >= limit) {
    return invalid_argument("a prompt of {} tokens leaves no room in a context of {} (--context)", r.prompt.size(),
                            limit);
  }
  if (r.prompt_logprobs < -1 || r.prompt_logprobs > 20) {
    return invalid_argument("prompt logprobs {}: must lie in 0 .. 20, or be -1 for none", r.prompt_logprobs);
  }
  if (r.max_tokens < 0) return invalid_argument("max tokens {}: must not be negative", r.max_tokens);
  if (!r.stop.empty() && !e.tokenizer) return invalid_argument("stop strings need a tokenizer");
  OASIS_RETURN_IF_ERROR(validate(r.sampling, vocab));
  const int64_t length =
      r.max_tokens > 0 ? std::min<int64_t>(limit, static_cast<int64_t>(r.prompt.size()) + r.max_tokens) : limit;
  const int64_t blocks = length / e.config.block_size;
  if (blocks > e.homes->capacity()) {
    return resource_exhausted(
        "{} tokens need {} blocks in the capacity tier, which holds {}: give it more (--capacity-memory, "
        "--capacity-file) "
        "or ask for less",
        length, blocks, e.homes->capacity());
  }
  const auto prompt = static_cast<int32_t>(r.prompt.size());
  const int32_t pages = e.core->pages_for((prompt - 1) / e.config.block_size + 1, e.starts_sparse(prompt));
  const int32_t summaries = prompt / e.config.block_size + 2;
  if (pages > e.plan.core.pages || summaries > e.plan.core.summary_pages) {
    return resource_exhausted(
        "a prompt of {} tokens needs {} pages and {} summary pages in the fast tier, which has {} and {}", prompt,
        pages, summaries, e.plan.core.pages, e.plan.core.summary_pages);
  }
  return {};
}

}  // namespace

Result<RequestId> Engine::submit(Request request) {
  OASIS_RETURN_IF_ERROR(check(request, *impl_));
  auto& e = *impl_;
  const auto& m = e.checkpoint.config();
  auto s = std::make_unique<EngineSequence>();
  const int64_t limit = e.config.max_context > 0 ? e.config.max_context : m.context;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (request.max_tokens == 0) request.max_tokens = static_cast<int32_t>(limit - prompt);
  s->max_length = static_cast<int32_t>(std::min(limit, prompt + request.max_tokens));
  s->tokens = request.prompt;
  s->sampler.emplace(request.sampling, m.vocab, request.prompt);
  if (e.tokenizer) s->text.emplace(*e.tokenizer, request.stop, request.skip_special);
  s->stop_tokens = request.stop_tokens;
  if (!request.ignore_eos) s->stop_tokens.insert(s->stop_tokens.end(), m.eos_ids.begin(), m.eos_ids.end());
  std::sort(s->stop_tokens.begin(), s->stop_tokens.end());
  s->stats.prompt_tokens = static_cast<int32_t>(prompt);
  s->request = std::move(request);
  RequestId id;
  {
    std::lock_guard lock(e.mutex);
    id = s->id = e.next_id++;
    e.submitted.push_back(s.get());
    e.sequences.emplace(id, std::move(s));
  }
  e.wake.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  auto& e = *impl_;
  {
    std::lock_guard lock(e.mutex);
    const auto it = e.sequences.find(id);
    if (it == e.sequences.end()) return;
    it->second->cancelled = true;
    e.cancel_requested = true;
  }
  e.wake.notify_one();
}

bool Engine::step() { return impl_->step(); }

Status Engine::save_prefix_cache() {
  auto& e = *impl_;
  e.core->settle();
  return e.config.prefix_cache && !e.config.synthetic_prompts ? e.homes->save(e.cache_identity) : Status();
}

void Engine::run_until_idle() {
  while (step()) {
  }
}

void Engine::start() {
  auto& e = *impl_;
  e.stopping = false;
  e.thread = std::thread([&e] {
    for (;;) {
      if (e.step()) {
        std::lock_guard lock(e.mutex);
        if (e.stopping) return;
        continue;
      }
      std::unique_lock lock(e.mutex);
      e.wake.wait(lock, [&e] { return e.stopping || !e.submitted.empty() || e.cancel_requested; });
      if (e.stopping) return;
    }
  });
}

void Engine::stop() {
  auto& e = *impl_;
  {
    std::lock_guard lock(e.mutex);
    e.stopping = true;
  }
  e.wake.notify_all();
  if (e.thread.joinable()) e.thread.join();
}

std::optional<RequestStats> Engine::take_stats(RequestId id) {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->ended.find(id);
  if (it == impl_->ended.end()) return std::nullopt;
  RequestStats stats = it->second;
  impl_->ended.erase(it);
  return stats;
}

std::vector<lookahead::TimelineSpan> Engine::timeline() { return impl_->decode_step->timeline(); }

EngineMetrics Engine::metrics() const {
  std::lock_guard lock(impl_->mutex);
  EngineMetrics m = impl_->published;
  m.waiting += static_cast<int32_t>(impl_->submitted.size());
  return m;
}

const MemoryPlan& Engine::plan() const { return impl_->plan; }
const EngineConfig& Engine::config() const { return impl_->config; }
const draft::Drafter& Engine::drafter() const { return *impl_->drafter; }

Status Engine::check_integrity() {
  auto& e = *impl_;
  e.core->settle();
  OASIS_RETURN_IF_ERROR(e.core->check_integrity());
  if (e.has_work()) return {};
  const auto stats = e.homes->stats();
  const bool clean = stats.referenced == 0 && stats.reserved == 0 && stats.deferred == 0 &&
                     e.core->free_pages() == e.plan.core.pages &&
                     e.core->free_summary_pages() == e.plan.core.summary_pages;
  if (clean) return {};
  return Status(
      StatusCode::kInternal,
      fmt::format("idle, yet {} homes are referenced, {} reserved, {} of {} pages and {} of {} summary pages are free",
                  stats.referenced, stats.reserved, e.core->free_pages(), e.plan.core.pages,
                  e.core->free_summary_pages(), e.plan.core.summary_pages));
}

void Engine::preempt_for_test(RequestId id) {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->sequences.find(id);
  if (it != impl_->sequences.end()) it->second->preempt_requested = true;
}

}  // namespace oasis::engine
