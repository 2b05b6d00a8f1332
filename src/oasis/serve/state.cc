#include "oasis/serve/state.h"

#include <unistd.h>

#include <fstream>

#include "oasis/serve/answer.h"

namespace oasis::serve {
namespace {

using Object = nlohmann::ordered_json;

Object percentiles_json(const LatencyWindow& window) {
  const Percentiles p = window.percentiles();
  return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"samples", p.samples}};
}

Object tiers_json(const engine::EngineMetrics& m, const engine::MemoryPlan& plan) {
  Object capacity = {{"used", (int64_t{m.homes.referenced} + m.homes.deferred + m.homes.cached) * plan.home_bytes},
                     {"limit", int64_t{plan.homes} * plan.home_bytes},
                     {"memory_bytes", plan.capacity_memory_bytes},
                     {"file_bytes", plan.capacity_file_bytes},
                     {"blocks", plan.homes},
                     {"blocks_referenced", m.homes.referenced},
                     {"blocks_cached", m.homes.cached},
                     {"blocks_reserved", m.homes.reserved},
                     {"file_bytes_written", m.tier.bytes_written},
                     {"file_bytes_read", m.tier.bytes_read}};
  return {{"fast",
           {{"used", m.fast_bytes_used},
            {"limit", m.fast_bytes_limit},
            {"peak", m.fast_bytes_peak},
            {"pages", m.pages},
            {"pages_free", m.free_pages}}},
          {"capacity", std::move(capacity)}};
}

Object totals_json(const engine::EngineMetrics& m) {
  const auto& c = m.core;
  return {{"requests_finished", m.finished},
          {"requests_failed", m.failed},
          {"requests_cancelled", m.cancelled},
          {"preemptions", m.preemptions},
          {"prompt_tokens", m.prompt_tokens},
          {"cached_tokens", m.cached_tokens},
          {"output_tokens", m.output_tokens},
          {"steps", m.steps},
          {"prefill_seconds", m.prefill_seconds},
          {"decode_seconds", m.decode_seconds},
          {"draft_seconds", m.draft_seconds},
          {"predict_seconds", c.predict_seconds},
          {"select_seconds", c.select_seconds},
          {"transfer_seconds", c.transfer_seconds},
          {"wait_seconds", c.wait_seconds},
          {"fetched_bytes", c.bytes},
          {"fetched_blocks", c.blocks},
          {"hits", c.hits},
          {"misses", c.misses},
          {"admitted", c.admitted},
          {"refused_cap", c.refused_cap},
          {"refused_absent", c.refused_absent},
          {"demand", c.demand},
          {"agreement", c.agreement()},
          {"cover", c.cover()},
          {"drafts_proposed", m.proposed},
          {"drafts_compared", m.compared},
          {"drafts_right", m.right},
          {"drafts_accepted", m.accepted},
          {"prefix_evictions", m.homes.evictions}};
}

Object sequences_json(const engine::EngineMetrics& m) {
  Object all = Object::array();
  for (const auto& s : m.sequences) {
    all.push_back({{"id", s.id},
                   {"state", std::string(s.state)},
                   {"prompt_tokens", s.prompt_tokens},
                   {"prefilled", s.prefilled},
                   {"output_tokens", s.output_tokens},
                   {"sparse", s.sparse},
                   {"resident_blocks", s.resident_blocks},
                   {"total_blocks", s.total_blocks},
                   {"age_seconds", s.age_seconds}});
  }
  return all;
}

}  // namespace

int64_t rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::string state_json(const engine::Engine& engine, const ServedModel& model, const ServerLimits& limits,
                       const Metrics& metrics, double uptime_seconds, bool draining) {
  const auto m = engine.metrics();
  const auto& plan = engine.plan();
  Object j;
  j["version"] = kVersion;
  j["model"] = model.name;
  j["uptime_seconds"] = uptime_seconds;
  j["draining"] = draining;
  j["limits"] = {{"max_sequences", limits.max_sequences},
                 {"max_queue", limits.max_queue},
                 {"max_context", model.context},
                 {"body_bytes", limits.body_bytes},
                 {"top_k_blocks", plan.core.attend_blocks},
                 {"resident_blocks", plan.core.resident_blocks},
                 {"block_size", plan.core.shape.block_size},
                 {"kv_dtype", kv::to_string(plan.core.shape.type)}};
  j["engine"] = {{"drafter", engine.drafter().name()}};
  j["requests"] = {
      {"running", m.running}, {"prefilling", m.prefilling}, {"waiting", m.waiting}, {"preempted", m.preempted}};
  j["process"] = {{"rss_bytes", rss_bytes()}};
  j["tiers"] = tiers_json(m, plan);
  j["totals"] = totals_json(m);
  j["latency"] = {{"ttft", percentiles_json(metrics.first_token_window())},
                  {"inter_token", percentiles_json(metrics.token_gap_window())},
                  {"e2e", percentiles_json(metrics.request_window())}};
  j["sequences"] = sequences_json(m);
  return dump(j);
}

}  // namespace oasis::serve
