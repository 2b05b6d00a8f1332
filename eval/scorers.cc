// scorers: the rules that rank blocks, judged by decoding with exact reads, so that only the ranking differs.
#include "eval/task.h"

namespace oasis::eval {

using lookahead::BlockScore;
using lookahead::FetchMode;

Result<Outcome> scorers(const Context& context) {
  const int32_t k = context.base.top_k_blocks;
  const std::vector<int32_t> ks = {std::max(1, k / 2), k, 2 * k};
  std::vector<Variant> variants;
  for (const BlockScore score : {BlockScore::kMinMax, BlockScore::kShrunk}) {
    for (const int32_t each : ks) {
      variants.push_back(
          policy(context, score == BlockScore::kMinMax ? "minmax (the paper's)" : "shrunk", FetchMode::kExact, 1.5));
      variants.back().config.block_score = score;
      variants.back().config.top_k_blocks = each;
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "scorers", variants));

  Outcome out;
  out.table.title = fmt::format("{}: pieces of {} tokens, the last {} forced, exact reads, draft {}",
                                context.checkpoint.config().name, context.context, context.steps, context.base.draft);
  out.table.columns = quality_columns({"scorer", "K", "text"});
  std::vector<Series> series;
  std::vector<std::string> labels;
  for (const int32_t each : ks) labels.push_back(fmt::format("{}", each));
  for (size_t v = 0; v < variants.size(); ++v) {
    Json all;
    const int32_t each = variants[v].config.top_k_blocks;
    for (size_t t = 0; t < results[v].size(); ++t) {
      out.table.rows.push_back(quality_row({variants[v].name, each, context.texts[t].kind}, results[v][t]));
      add(all, results[v][t]);
    }
    if (results[v].size() > 1) out.table.rows.push_back(quality_row({variants[v].name, each, "all"}, all));
    if (v % ks.size() == 0) series.push_back({variants[v].name, {}, {}});
    series.back().x.push_back(static_cast<double>(v % ks.size()));
    series.back().y.push_back(ratio(all, "kl", "tokens"));
  }
  out.picture = line_chart("Rules that rank blocks, exact reads", "K", "KL to dense, nats a token", series, labels);
  return out;
}

}  // namespace oasis::eval
