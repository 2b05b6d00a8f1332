// resident-sweep: how much of what is predicted is there already, as the resident set grows from K to 4 K.
#include "eval/task.h"

namespace oasis::eval {

using lookahead::FetchMode;

Result<Outcome> resident_sweep(const Context& context) {
  const auto ratios = context.full ? std::vector{1.0, 1.25, 1.5, 2.0, 3.0, 4.0} : std::vector{1.0, 1.5, 2.0, 4.0};
  std::vector<Variant> variants;
  for (const FetchMode fetch : {FetchMode::kExact, FetchMode::kBounded, FetchMode::kAdaptive}) {
    const char* name = fetch == FetchMode::kExact ? "exact" : fetch == FetchMode::kBounded ? "bounded" : "adaptive";
    for (const double r : ratios) variants.push_back(policy(context, name, fetch, r));
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "resident-sweep", variants));

  Outcome out;
  out.table.title = grid_title(context);
  out.table.columns = quality_columns({"policy", "R/K", "text"});
  std::vector<Series> series;
  for (size_t v = 0; v < variants.size(); ++v) {
    Json all;
    const double r = variants[v].config.resident_ratio;
    for (size_t t = 0; t < results[v].size(); ++t) {
      out.table.rows.push_back(quality_row({variants[v].name, r, context.texts[t].kind}, results[v][t]));
      add(all, results[v][t]);
    }
    if (results[v].size() > 1) out.table.rows.push_back(quality_row({variants[v].name, r, "all"}, all));
    if (v % ratios.size() == 0) series.push_back({variants[v].name, {}, {}});
    series.back().x.push_back(r);
    series.back().y.push_back(ratio(all, "fetched", "head_steps"));
  }
  out.picture = line_chart(fmt::format("Traffic against the resident set, K={}", context.base.top_k_blocks), "R / K",
                           "blocks fetched a head and step", series);
  return out;
}

}  // namespace oasis::eval
