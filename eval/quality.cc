// quality: what each policy costs in perplexity and KL to the dense run of the same text.
#include "eval/block_rule.h"
#include "eval/task.h"

namespace oasis::eval {

using lookahead::FetchMode;

Result<Outcome> quality(const Context& context) {
  if (!context.tasks_file.empty()) return jsonl_tasks(context);
  // Exact fetching reads what sparse attention with all KV in the fast tier would.
  Variant on_path = policy(context, "exact, no draft (fetched on the path)", FetchMode::kExact, 1.5);
  Variant proxy = policy(context, "bounded, no draft (proxy)", FetchMode::kBounded, 1.5);
  on_path.config.draft = proxy.config.draft = "none";
  const std::vector<Variant> variants = {
      dense(context),
      policy(context, "exact (= full-KV sparse)", FetchMode::kExact, 1.5),
      on_path,
      proxy,
      policy(context, "bounded, R=K", FetchMode::kBounded, 1),
      policy(context, "bounded, R=1.5K", FetchMode::kBounded, 1.5),
      policy(context, "adaptive, R=1.5K", FetchMode::kAdaptive, 1.5),
      // What bounded could be if attention ranked the residents by its own query: a study, not a policy.
      with_rule(policy(context, "", FetchMode::kExact, 1.5),
                {.name = "residents ranked at use, R=1.5K", .beta = 0.5f, .pin_first = true, .residents_only = true}),
  };
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "quality", variants));
  Outcome out;
  out.table.title = grid_title(context);
  out.table.columns = quality_columns({"policy", "text"});
  for (const char* c : {"KL q1", "KL q2", "KL q3", "KL q4"}) out.table.columns.push_back(c);
  std::vector<Series> series;
  std::vector<std::string> labels;
  for (const Text& t : context.texts) labels.push_back(t.kind);
  if (labels.size() > 1) labels.push_back("all");
  for (size_t v = 0; v < variants.size(); ++v) {
    std::vector<Json> by_text = results[v];
    Json all;
    for (const Json& s : by_text) add(all, s);
    if (by_text.size() > 1) by_text.push_back(all);
    Series line{variants[v].name, {}, {}};
    for (size_t t = 0; t < by_text.size(); ++t) {
      auto row = quality_row({variants[v].name, labels[t]}, by_text[t]);
      for (size_t q = 0; q < 4; ++q) {
        const double n = by_text[t]["part_tokens"][q].get<double>();
        row.push_back(n > 0 ? by_text[t]["part_kl"][q].get<double>() / n : 0);
      }
      line.x.push_back(static_cast<double>(t));
      line.y.push_back(ratio(by_text[t], "kl", "tokens"));
      out.table.rows.push_back(std::move(row));
    }
    if (v > 0) series.push_back(std::move(line));
  }
  out.picture = line_chart(fmt::format("KL to dense, K={} of {} blocks", context.base.top_k_blocks,
                                       context.context / context.base.block_size),
                           "text", "KL, nats a token", series, labels);
  return out;
}

}  // namespace oasis::eval
