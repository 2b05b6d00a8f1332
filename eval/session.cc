#include "eval/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace oasis::eval {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::vector<float> log_softmax(std::span<const float> z) {
  const float top = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const float v : z) sum += std::exp(v - top);
  std::vector<float> out(z.begin(), z.end());
  const float shift = top + static_cast<float>(std::log(sum));
  for (float& v : out) v -= shift;
  return out;
}

template <typename T>
int32_t best(const T& values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

// KL(dense || p) in nats.
double divergence(std::span<const float> dense, std::span<const float> p) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(dense[i]) * static_cast<double>(dense[i] - p[i]);
  return sum;
}

// The counters' growth over one step.
void fill(Step& step, const engine::EngineMetrics& before, const engine::EngineMetrics& after) {
  step.tokens = static_cast<int32_t>(after.output_tokens - before.output_tokens);
  const auto& a = before.core;
  const auto& b = after.core;
  step.agreement = b.agreement_sum - a.agreement_sum;
  step.cover = b.cover_sum - a.cover_sum;
  step.measured = b.agreement_count - a.agreement_count;
  for (size_t l = 0; l < b.layer_agreement_sum.size(); ++l) {
    step.layer_sum.push_back(b.layer_agreement_sum[l] - a.layer_agreement_sum[l]);
    step.layer_count.push_back(b.layer_agreement_count[l] - a.layer_agreement_count[l]);
  }
  step.misses = b.misses - a.misses;
  step.fetched = b.blocks - a.blocks;
  step.demand = b.demand - a.demand;
  step.bytes = b.bytes - a.bytes;
  step.compared = after.compared - before.compared;
  step.right = after.right - before.right;
  step.accepted = after.accepted - before.accepted;
}

}  // namespace

Result<Session> Session::create(Device& device, const model::Checkpoint& checkpoint, Variant variant, int64_t length) {
  variant.config.max_sequences = 1;
  variant.config.max_context = length;
  Session session;
  auto made = engine::Engine::create(device, checkpoint, nullptr, variant.config);
  if (!made.ok()) return Status(made.status().code(), variant.name + ": " + made.status().message());
  session.engine_ = std::move(*made);
  return session;
}

Result<Run> Session::run(const Ask& ask) {
  Run out;
  Status error;
  Step scored;  // what on_logits saw since the last step
  engine::Request r;
  r.prompt.assign(ask.prompt.begin(), ask.prompt.end());
  r.forced.assign(ask.forced.begin(), ask.forced.end());
  r.max_tokens = ask.forced.empty() ? ask.free_tokens : static_cast<int32_t>(ask.forced.size());
  r.ignore_eos = !ask.stop_at_eos;
  r.sampling = ask.sampling;
  const auto begin = Clock::now();
  r.on_event = [&](const engine::Event& e) {
    if (!e.tokens.empty() && out.tokens.empty()) {
      out.first_token_seconds = seconds_since(begin);
    }
    for (const auto& t : e.tokens) out.tokens.push_back(t.token);
    if (e.finish == engine::FinishReason::kError) error = e.error;
  };
  if (ask.record) ask.record->clear();
  double looking = 0;  // seconds at logits since the last step
  const auto look = [&](int32_t index, std::span<const float> z) {
    const auto i = static_cast<size_t>(index);
    const auto p = log_softmax(z);
    if (ask.record) {
      ask.record->resize(std::max(ask.record->size(), i + 1));
      (*ask.record)[i] = p;
    }
    if (i == 0 || i >= ask.forced.size()) return;  // the first comes from the prefill
    scored.nll -= p[static_cast<size_t>(ask.forced[i])];
    scored.right_token += best(p) == ask.forced[i];
    if (!ask.reference || i >= ask.reference->size()) return;
    const auto& dense = (*ask.reference)[i];
    scored.kl += divergence(dense, p);
    scored.top1 += best(dense) == best(p);
  };
  if (ask.score) {
    r.on_logits = [&](int32_t index, std::span<const float> z) {
      const auto since = Clock::now();
      look(index, z);
      looking += seconds_since(since);
    };
  }
  OASIS_ASSIGN_OR_RETURN(const auto id, engine_->submit(std::move(r)));
  auto before = engine_->metrics();
  const int64_t none_yet = before.output_tokens;
  for (auto since = Clock::now(); engine_->step(); since = Clock::now()) {
    const double seconds = seconds_since(since) - std::exchange(looking, 0);
    auto after = engine_->metrics();
    if (after.steps > before.steps) {
      Step step = scored;
      step.seconds = seconds;
      step.first = out.steps.empty() ? 1 : out.steps.back().first + out.steps.back().tokens;
      fill(step, before, after);
      if (before.output_tokens == none_yet) --step.tokens;  // the prefill ended in the same call
      out.steps.push_back(std::move(step));
      scored = {};
    }
    before = std::move(after);
  }
  if (!error.ok()) return error;
  out.stats = engine_->take_stats(id).value_or(engine::RequestStats{});
  return out;
}

Json sums(const Run& run, int64_t heads) {
  constexpr int kParts = 4;
  Json j;
  Step all;
  std::vector<double> part_kl(kParts), part_tokens(kParts);
  double timed_seconds = 0;
  int64_t timed_tokens = 0;
  const auto length = static_cast<int64_t>(run.tokens.size());
  for (const Step& s : run.steps) {
    all.tokens += s.tokens, all.nll += s.nll, all.kl += s.kl, all.top1 += s.top1, all.right_token += s.right_token;
    all.agreement += s.agreement, all.cover += s.cover, all.measured += s.measured;
    all.misses += s.misses, all.fetched += s.fetched, all.demand += s.demand, all.bytes += s.bytes;
    all.compared += s.compared, all.right += s.right, all.accepted += s.accepted;
    all.layer_sum.resize(s.layer_sum.size()), all.layer_count.resize(s.layer_sum.size());
    for (size_t l = 0; l < s.layer_sum.size(); ++l) {
      all.layer_sum[l] += s.layer_sum[l], all.layer_count[l] += s.layer_count[l];
    }
    if (s.measured == 0 && &s != &run.steps.front()) timed_seconds += s.seconds, timed_tokens += s.tokens;
    const auto part =
        static_cast<size_t>(std::min<int64_t>(kParts - 1, s.first * kParts / std::max<int64_t>(1, length)));
    part_kl[part] += s.kl, part_tokens[part] += s.tokens;
  }
  const auto steps = static_cast<int64_t>(run.steps.size());
  j = {{"tokens", all.tokens},
       {"steps", steps},
       {"head_steps", steps * heads},
       {"nll", all.nll},
       {"kl", all.kl},
       {"top1", all.top1},
       {"agreement", all.agreement},
       {"cover", all.cover},
       {"measured", all.measured},
       {"misses", all.misses},
       {"fetched", all.fetched},
       {"demand", all.demand},
       {"bytes", all.bytes},
       {"compared", all.compared},
       {"right", all.right},
       {"accepted", all.accepted},
       {"right_token", all.right_token},
       {"layer_sum", all.layer_sum},
       {"layer_count", all.layer_count},
       {"part_kl", part_kl},
       {"part_tokens", part_tokens},
       {"timed_seconds", timed_seconds},
       {"timed_tokens", timed_tokens}};
  return j;
}

void add(Json& to, const Json& from) {
  if (to.is_null()) {
    to = from;
    return;
  }
  for (const auto& [name, value] : from.items()) {
    if (!value.is_array()) {
      if (value.is_number_integer()) {
        to[name] = to[name].get<int64_t>() + value.get<int64_t>();
      } else {
        to[name] = to[name].get<double>() + value.get<double>();
      }
      continue;
    }
    for (size_t i = 0; i < value.size(); ++i) to[name][i] = to[name][i].get<double>() + value[i].get<double>();
  }
}

double ratio(const Json& sums, const char* name, const char* count) {
  const double n = sums[count].get<double>();
  return n > 0 ? sums[name].get<double>() / n : 0;
}

}  // namespace oasis::eval
