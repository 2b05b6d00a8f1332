// k-sweep: how many blocks attention reads, from few to all.
#include "eval/task.h"

namespace oasis::eval {

using lookahead::FetchMode;

Result<Outcome> k_sweep(const Context& context) {
  const auto blocks = static_cast<int32_t>(context.context / context.base.block_size);
  std::vector<int32_t> ks;
  for (int32_t k = std::max(1, blocks / 16); k < blocks; k *= 2) ks.push_back(k);
  ks.push_back(blocks);
  std::vector<Variant> variants;
  for (const FetchMode fetch : {FetchMode::kExact, FetchMode::kBounded}) {
    for (const int32_t k : ks) {
      const char* name = fetch == FetchMode::kExact ? "exact" : "bounded, R=1.5K";
      variants.push_back(policy(context, name, fetch, 1.5));
      variants.back().config.top_k_blocks = k;
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "k-sweep", variants));

  Outcome out;
  out.table.title =
      fmt::format("{}: pieces of {} tokens ({} blocks), the last {} forced, draft {}", context.checkpoint.config().name,
                  context.context, blocks, context.steps, context.base.draft);
  out.table.columns = quality_columns({"policy", "K", "text"});
  std::vector<Series> series;
  std::vector<std::string> labels;
  for (const int32_t k : ks) labels.push_back(fmt::format("{}", k));
  for (size_t v = 0; v < variants.size(); ++v) {
    Json all;
    const int32_t k = variants[v].config.top_k_blocks;
    for (size_t t = 0; t < results[v].size(); ++t) {
      out.table.rows.push_back(quality_row({variants[v].name, k, context.texts[t].kind}, results[v][t]));
      add(all, results[v][t]);
    }
    if (results[v].size() > 1) out.table.rows.push_back(quality_row({variants[v].name, k, "all"}, all));
    if (v % ks.size() == 0) series.push_back({variants[v].name, {}, {}});
    series.back().x.push_back(static_cast<double>(v % ks.size()));
    series.back().y.push_back(ratio(all, "top1", "tokens"));
  }
  out.picture =
      line_chart(fmt::format("Next-token agreement with dense, {} blocks", blocks), "K", "agreement", series, labels);
  return out;
}

}  // namespace oasis::eval
