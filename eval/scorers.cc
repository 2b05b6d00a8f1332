// scorers: the rules that rank blocks, judged by decoding with exact reads, so that only the ranking differs.
#include <cmath>

#include "eval/block_rule.h"
#include "eval/task.h"

namespace oasis::eval {

using lookahead::BlockScore;
using lookahead::FetchMode;
using Rows = BlockRule::Rows;

Result<Outcome> scorers(const Context& context) {
  const std::vector<BlockRule> rules = {
      {.name = "minmax (the paper's)"},
      {.name = "minmax, block 0", .pin_first = true},
      {.name = "shrunk (default)", .beta = 0.5f, .pin_first = true},
      {.name = "shrunk, FP8 rows", .beta = 0.5f, .rows = Rows::kFp8, .pin_first = true},
      {.name = "shrunk, INT4 rows", .beta = 0.5f, .rows = Rows::kInt4, .pin_first = true},
      {.name = "shrunk, 8-token FP8 boxes", .beta = 0.5f, .rows = Rows::kFp8, .boxes = 2, .pin_first = true},
      {.name = "shrunk, prob", .beta = 0.5f, .prob = true, .pin_first = true},
  };
  const int32_t k = context.base.top_k_blocks;
  const auto ks = context.full ? std::vector{std::max(1, k / 2), k, 2 * k} : std::vector{k};
  std::vector<Variant> variants;
  for (const BlockRule& rule : rules) {
    for (const int32_t each : ks) {
      Variant v = policy(context, "", FetchMode::kExact, 1.5);
      v.config.draft = "none";
      v.config.top_k_blocks = each;
      variants.push_back(with_rule(std::move(v), rule));
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "scorers", variants));

  Outcome out;
  out.table.title = fmt::format("{}: pieces of {} tokens, the last {} forced, exact reads, no draft",
                                context.checkpoint.config().name, context.context, context.steps);
  out.table.columns = {"scorer",     "K",          "text", "mass kept", "ideal",
                       "LRU misses", "perplexity", "KL",   "top-1",     "tokens"};
  std::vector<Series> series;
  std::vector<std::string> labels;
  for (const Text& t : context.texts) labels.push_back(t.kind);
  if (labels.size() > 1) labels.push_back("all");
  for (size_t v = 0; v < variants.size(); ++v) {
    auto by_text = results[v];
    Json all;
    for (const Json& s : by_text) add(all, s);
    if (by_text.size() > 1) by_text.push_back(all);
    const int32_t each = variants[v].config.top_k_blocks;
    Series line{variants[v].name, {}, {}};
    for (size_t t = 0; t < by_text.size(); ++t) {
      const Json& s = by_text[t];
      out.table.rows.push_back({variants[v].name, each, labels[t], ratio(s, "mass", "mass_count"),
                                ratio(s, "ideal_mass", "mass_count"), ratio(s, "lru_misses", "lru_steps"),
                                std::exp(ratio(s, "nll", "tokens")), ratio(s, "kl", "tokens"),
                                ratio(s, "top1", "tokens"), s["tokens"]});
      line.x.push_back(static_cast<double>(t)), line.y.push_back(ratio(s, "kl", "tokens"));
    }
    if (each == k) series.push_back(std::move(line));
  }
  out.picture = line_chart(fmt::format("Rules that rank blocks, exact reads, K={}", k), "text",
                           "KL to dense, nats a token", series, labels);
  return out;
}

}  // namespace oasis::eval
