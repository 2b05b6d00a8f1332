// roofline: decode speed against token-KV intensity, the tokens that come of each megabyte of KV moved: read from the
// fast tier for attention and scoring, or brought over the link.
#include <algorithm>

#include "eval/task.h"

namespace oasis::eval {
namespace {

using lookahead::FetchMode;

// Bytes of KV and summaries that a step reads in the fast tier.
double read_a_step(const engine::Engine& engine, bool sparse, double tokens) {
  const auto& c = engine.plan().core;
  const double heads = static_cast<double>(c.shape.layers) * c.shape.kv_heads;
  const double blocks = tokens / c.shape.block_size;
  const double listed = sparse ? std::min<double>(blocks, c.attend_blocks + 1) : blocks;
  const double summaries = sparse ? blocks * static_cast<double>(c.shape.summary_rows_bytes()) : 0;
  return heads * (listed * static_cast<double>(c.shape.block_head_bytes()) + summaries);
}

}  // namespace

Result<Outcome> roofline(const Context& context) {
  const auto blocks = static_cast<double>(context.context / context.base.block_size);
  Variant all = policy(context, "sparse, all KV in the fast tier", FetchMode::kExact,
                       std::max(1.0, blocks / context.base.top_k_blocks));
  Variant on_path = policy(context, "on-path retrieval", FetchMode::kExact, 1);
  all.config.draft = on_path.config.draft = "none";
  const std::vector<Variant> variants = {dense(context), all, on_path,
                                         policy(context, "OasisKV, bounded, R=1.5K", FetchMode::kBounded, 1.5),
                                         policy(context, "OasisKV, adaptive, R=1.5K", FetchMode::kAdaptive, 1.5)};
  OASIS_ASSIGN_OR_RETURN(const auto tokens, cut(context.texts[0], context.context, 0, 1));
  const auto prompt = static_cast<size_t>(context.context - context.steps);
  std::vector<Unit> units;
  for (Variant v : variants) {
    v.config.agreement_every = 0;
    const auto work = [&, v]() -> Result<Json> {
      OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, context.context));
      const std::span<const int32_t> all_tokens(tokens);
      OASIS_ASSIGN_OR_RETURN(
          const Run run,
          session.run({.prompt = all_tokens.first(prompt), .forced = all_tokens.subspan(prompt), .score = false}));
      Json j = sums(run, context.heads());
      j["seconds"] = run.stats.decode_seconds;
      const bool sparse = v.config.attention == engine::Attention::kSparse;
      j["read"] = read_a_step(session.engine(), sparse, static_cast<double>(context.context - context.steps / 2)) *
                  j["steps"].get<double>();
      j["fast_bytes"] = session.engine().plan().fast_bytes();
      return j;
    };
    units.push_back({fmt::format("{} steps{}", describe(context, v.config, tokens), context.steps), work});
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "roofline", units));

  Outcome out;
  out.table.title =
      fmt::format("{}: {} tokens, {} decoded, K={}, draft {}, one sequence", context.checkpoint.config().name,
                  context.context, context.steps, context.base.top_k_blocks, context.base.draft);
  out.table.columns = {"system",          "fast tier bytes", "KV read/token", "KV over link/token",
                       "tokens/MB moved", "tokens/s"};
  std::vector<Series> series;
  for (size_t v = 0; v < variants.size(); ++v) {
    const Json& s = results[v];
    const double n = std::max(1.0, s["tokens"].get<double>());
    const double read = s["read"].get<double>() / n, link = s["bytes"].get<double>() / n;
    const double intensity = 1e6 / (read + link), speed = n / std::max(1e-9, s["seconds"].get<double>());
    out.table.rows.push_back({variants[v].name, s["fast_bytes"], read, link, intensity, speed});
    series.push_back({variants[v].name, {intensity}, {speed}});
  }
  out.picture =
      line_chart("Decode speed and token-KV intensity", "tokens a megabyte of KV moved", "tokens a second", series);
  return out;
}

}  // namespace oasis::eval
