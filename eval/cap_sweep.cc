// cap-sweep: from a hundredth of K a head and step to whatever is wanted, at R = K and 1.5 K; adaptive and exact
// beside.
#include <cmath>

#include "eval/task.h"

namespace oasis::eval {

using lookahead::FetchMode;

Result<Outcome> cap_sweep(const Context& context) {
  const std::vector<double> ratios =
      context.full ? std::vector{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0} : std::vector{0.01, 0.05, 0.1, 1.0};
  std::vector<Variant> variants;
  std::vector<std::pair<std::string, std::string>> names;  // policy, fetch ratio
  for (const double resident : {1.0, 1.5}) {
    for (const double fetch : ratios) {
      Variant v = policy(context, fmt::format("bounded, R={}K", resident), FetchMode::kBounded, resident);
      v.config.fetch_ratio = fetch;
      names.emplace_back(v.name, fmt::format("{}", fetch));
      variants.push_back(std::move(v));
    }
  }
  variants.push_back(policy(context, "adaptive, R=1.5K", FetchMode::kAdaptive, 1.5));
  variants.push_back(policy(context, "exact, R=1.5K", FetchMode::kExact, 1.5));
  names.emplace_back("adaptive, R=1.5K", "link");
  names.emplace_back("exact, R=1.5K", "all");
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "cap-sweep", variants));

  Outcome out;
  out.table.title = grid_title(context);
  out.table.columns = quality_columns({"policy", "fetch ratio", "text"});
  std::vector<Series> series;
  for (size_t v = 0; v < variants.size(); ++v) {
    Json all;
    for (size_t t = 0; t < results[v].size(); ++t) {
      out.table.rows.push_back(quality_row({names[v].first, names[v].second, context.texts[t].kind}, results[v][t]));
      add(all, results[v][t]);
    }
    if (results[v].size() > 1) out.table.rows.push_back(quality_row({names[v].first, names[v].second, "all"}, all));
    if (series.empty() || series.back().name != names[v].first) series.push_back({names[v].first, {}, {}});
    series.back().x.push_back(ratio(all, "bytes", "steps") / 1e3);
    series.back().y.push_back(ratio(all, "kl", "tokens"));
  }
  out.picture = line_chart(fmt::format("The fetch cap, K={}", context.base.top_k_blocks), "KB fetched a step",
                           "KL to dense, nats a token", series);
  return out;
}

}  // namespace oasis::eval
