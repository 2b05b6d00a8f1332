#include "oasis/serve/metrics.h"

#include <prometheus/text_serializer.h>

#include "oasis/serve/state.h"

namespace oasis::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// vLLM's own, so that dashboards made for it fit.
const Buckets kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                             1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const Buckets kTokenGap = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                           0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const Buckets kRequest = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                          30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const Buckets kTokens = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                         1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};

// One engine, one process.
Labels labels_of(const std::string& model) { return {{"model_name", model}, {"engine", "0"}}; }

// The engine's counters as families, written down when they are asked for.
class Writer {
 public:
  explicit Writer(const std::string& model) : labels_(labels_of(model)) {}

  void gauge(const char* name, const char* help, double value, const Labels& more = {}) {
    add(name, help, MetricType::Gauge, more).gauge.value = value;
  }
  void counter(const char* name, const char* help, double value, const Labels& more = {}) {
    add(name, help, MetricType::Counter, more).counter.value = value;
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type, const Labels& more) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    ClientMetric& metric = families_.back().metric.emplace_back();
    for (const auto& [key, value] : labels_) metric.label.push_back({key, value});
    for (const auto& [key, value] : more) metric.label.push_back({key, value});
    return metric;
  }

  Labels labels_;
  std::vector<MetricFamily> families_;
};

double as_double(int64_t value) { return static_cast<double>(value); }

void write_vllm(Writer& w, const engine::EngineMetrics& m, const engine::MemoryPlan& plan) {
  w.gauge("vllm:num_requests_running", "Sequences that are read or decoded.", m.running + m.prefilling);
  w.gauge("vllm:num_requests_waiting", "Sequences that wait: in the queue, or preempted.", m.waiting + m.preempted);
  w.gauge("vllm:kv_cache_usage_perc", "Share of the fast tier's pages in use, 0 .. 1.",
          m.pages > 0 ? 1 - as_double(m.free_pages) / m.pages : 0);
  w.gauge("vllm:gpu_cache_usage_perc", "The same under its older name.",
          m.pages > 0 ? 1 - as_double(m.free_pages) / m.pages : 0);
  w.gauge("vllm:cache_config_info", "How the KV cache is cut.", 1,
          {{"block_size", std::to_string(plan.core.shape.block_size)},
           {"num_gpu_blocks", std::to_string(m.pages)},
           {"num_cpu_blocks", std::to_string(plan.homes)}});
  w.counter("vllm:prompt_tokens_total", "Prompt tokens read, cached ones included.", as_double(m.prompt_tokens));
  w.counter("vllm:generation_tokens_total", "Tokens generated.", as_double(m.output_tokens));
  w.counter("vllm:num_preemptions_total", "Preemptions.", as_double(m.preemptions));
  w.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
            as_double(m.prompt_tokens));
  w.counter("vllm:prefix_cache_hits_total", "Prompt tokens found there.", as_double(m.cached_tokens));
  w.counter("vllm:gpu_prefix_cache_queries_total", "Older name.", as_double(m.prompt_tokens));
  w.counter("vllm:gpu_prefix_cache_hits_total", "Older name.", as_double(m.cached_tokens));
  w.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens whose position was reached.",
            as_double(m.compared));
  w.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens that became output.", as_double(m.accepted));
}

void write_tiers(Writer& w, const engine::EngineMetrics& m) {
  w.gauge("oasis_fast_tier_used_bytes", "Fast tier in use.", as_double(m.fast_bytes_used));
  w.gauge("oasis_fast_tier_peak_bytes", "Fast tier in use at most so far.", as_double(m.fast_bytes_peak));
  w.gauge("oasis_fast_tier_limit_bytes", "Fast tier's bound.", as_double(m.fast_bytes_limit));
  w.gauge("oasis_capacity_tier_bytes", "Capacity tier, memory and file.", as_double(m.capacity_bytes));
  const char* blocks = "oasis_capacity_blocks";
  const char* help =
      "Blocks of the capacity tier: in use by sequences, kept for their prefix, about to be freed, free.";
  w.gauge(blocks, help, m.homes.referenced, {{"state", "referenced"}});
  w.gauge(blocks, help, m.homes.cached, {{"state", "cached"}});
  w.gauge(blocks, help, m.homes.deferred, {{"state", "deferred"}});
  w.gauge(blocks, help, m.homes.free, {{"state", "free"}});
  w.gauge("oasis_capacity_blocks_reserved", "Blocks promised to running sequences.", m.homes.reserved);
  w.counter("oasis_prefix_evictions_total", "Cached blocks given up.", as_double(m.homes.evictions));
  w.counter("oasis_tier_written_bytes_total", "Bytes written to the capacity file.", as_double(m.tier.bytes_written));
  w.counter("oasis_tier_read_bytes_total", "Bytes read from the capacity file.", as_double(m.tier.bytes_read));
  w.counter("oasis_tier_checksum_failures_total", "Blocks that came back damaged.",
            as_double(m.tier.checksum_failures));
  w.gauge("oasis_weight_bytes", "The model's weights.", as_double(m.weight_bytes));
}

void write_lookahead(Writer& w, const engine::EngineMetrics& m) {
  const auto& c = m.core;
  w.counter("oasis_fetched_bytes_total", "Bytes moved from the capacity tier into the fast tier while decoding.",
            as_double(c.bytes));
  w.counter("oasis_fetched_blocks_total", "The same in block-heads.", as_double(c.blocks));
  w.counter("oasis_prefetch_hits_total", "Block-heads predicted and there already.", as_double(c.hits));
  w.counter("oasis_prefetch_misses_total", "Block-heads predicted and not there.", as_double(c.misses));
  w.counter("oasis_prefetch_refused_total", "Misses not fetched.", as_double(c.refused_cap), {{"reason", "cap"}});
  w.counter("oasis_prefetch_refused_total", "Misses not fetched.", as_double(c.refused_absent), {{"reason", "absent"}});
  w.counter("oasis_demand_blocks_total", "Block-heads fetched while attention waited (exact).", as_double(c.demand));
  w.counter("oasis_agreement_sum", "Sum of measured agreements of predicted and true blocks.", c.agreement_sum);
  w.counter("oasis_agreement_count", "How many were measured.", as_double(c.agreement_count));
  w.gauge("oasis_agreement_ratio", "Their mean.", c.agreement());
  w.gauge("oasis_cover_ratio", "Mean share of the wanted blocks that attention read.", c.cover());
  const char* stage = "oasis_stage_seconds_total";
  const char* help = "Time in each stage; wait: of the foreground for transfers.";
  w.counter(stage, help, c.predict_seconds, {{"stage", "predict"}});
  w.counter(stage, help, c.select_seconds, {{"stage", "select"}});
  w.counter(stage, help, c.transfer_seconds, {{"stage", "transfer"}});
  w.counter(stage, help, c.wait_seconds, {{"stage", "wait"}});
  w.counter(stage, help, m.draft_seconds, {{"stage", "draft"}});
  w.counter(stage, help, m.prefill_seconds, {{"stage", "prefill"}});
  w.counter(stage, help, m.decode_seconds, {{"stage", "decode"}});
  w.counter("oasis_decode_steps_total", "Decode steps of the batch.", as_double(m.steps));
  const char* drafts = "oasis_draft_tokens_total";
  const char* drafts_help = "Draft tokens of ended requests: ridden along, reached, right, accepted.";
  w.counter(drafts, drafts_help, as_double(m.proposed), {{"outcome", "proposed"}});
  w.counter(drafts, drafts_help, as_double(m.compared), {{"outcome", "compared"}});
  w.counter(drafts, drafts_help, as_double(m.right), {{"outcome", "right"}});
  w.counter(drafts, drafts_help, as_double(m.accepted), {{"outcome", "accepted"}});
}

const char* reason_label(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "abort";
    default:
      return "error";
  }
}

}  // namespace

prometheus::Histogram& Metrics::histogram(const char* name, const char* help, const Buckets& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(labels_of(model_), buckets);
}

Metrics::Metrics(const std::string& model)
    : model_(model),
      first_token_(histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", kFirstToken)),
      token_gap_(histogram("vllm:inter_token_latency_seconds", "Between tokens.", kTokenGap)),
      token_gap_alias_(histogram("vllm:time_per_output_token_seconds", "Between tokens (older name).", kTokenGap)),
      request_(histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", kRequest)),
      queue_(histogram("vllm:request_queue_time_seconds", "In the queue.", kRequest)),
      prefill_(histogram("vllm:request_prefill_time_seconds", "Reading the prompt.", kRequest)),
      decode_(histogram("vllm:request_decode_time_seconds", "In decode steps.", kRequest)),
      prompt_length_(histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", kTokens)),
      output_length_(histogram("vllm:request_generation_tokens", "Generated tokens of a request.", kTokens)),
      success_(prometheus::BuildCounter()
                   .Name("vllm:request_success_total")
                   .Help("Ended sequences, by how they ended.")
                   .Register(registry_)),
      answers_(prometheus::BuildCounter()
                   .Name("oasis_http_responses_total")
                   .Help("HTTP responses, by endpoint and status.")
                   .Register(registry_)) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    auto labels = labels_of(model_);
    labels["finished_reason"] = reason;
    success_.Add(labels);
  }
}

void Metrics::first_token(double seconds) {
  first_token_.Observe(seconds);
  first_token_window_.add(seconds);
}

void Metrics::next_tokens(double seconds, int tokens) {
  const double each = seconds / tokens;
  for (int i = 0; i < tokens; ++i) {
    token_gap_.Observe(each);
    token_gap_alias_.Observe(each);
    token_gap_window_.add(each);
  }
}

void Metrics::ended(engine::FinishReason reason, const engine::RequestStats& stats, double seconds) {
  auto labels = labels_of(model_);
  labels["finished_reason"] = reason_label(reason);
  success_.Add(labels).Increment();
  sequence_steps_ += stats.steps;
  accepted_ += stats.accepted;
  prompt_length_.Observe(stats.prompt_tokens);
  output_length_.Observe(stats.output_tokens);
  if (reason != engine::FinishReason::kStop && reason != engine::FinishReason::kLength) return;
  request_.Observe(seconds);
  request_window_.add(seconds);
  queue_.Observe(stats.queued_seconds);
  prefill_.Observe(stats.prefill_seconds);
  decode_.Observe(stats.decode_seconds);
}

void Metrics::answered(std::string_view endpoint, int status) {
  auto labels = labels_of(model_);
  labels["endpoint"] = endpoint;
  labels["status"] = std::to_string(status);
  answers_.Add(labels).Increment();
}

std::string Metrics::text(const engine::EngineMetrics& engine, const engine::MemoryPlan& plan) const {
  Writer w(model_);
  write_vllm(w, engine, plan);
  write_tiers(w, engine);
  write_lookahead(w, engine);
  w.gauge("process_resident_memory_bytes", "Resident memory of the server.", as_double(rss_bytes()));
  const int64_t steps = sequence_steps_;
  w.gauge("oasis_accepted_length", "Tokens a sequence advances in a step, mean of ended requests.",
          steps > 0 ? 1 + as_double(accepted_) / as_double(steps) : 1);
  auto families = w.take();
  for (auto& family : registry_.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace oasis::serve
