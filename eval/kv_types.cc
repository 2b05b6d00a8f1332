// kv-types: what keys and values in FP8 cost, dense and under two policies. All against the dense run in bf16.
#include "eval/task.h"

namespace oasis::eval {

using lookahead::FetchMode;

Result<Outcome> kv_types(const Context& given) {
  Context context = given;
  context.base.kv_type = kv::KvType::kBf16;
  std::vector<Variant> variants;
  for (const Variant& v : {dense(context), policy(context, "exact", FetchMode::kExact, 1.5),
                           policy(context, "bounded, R=1.5K", FetchMode::kBounded, 1.5)}) {
    for (const kv::KvType type : {kv::KvType::kBf16, kv::KvType::kFp8E4M3}) {
      variants.push_back(v);
      variants.back().config.kv_type = type;
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, forced_grid(context, "kv-types", variants));

  Outcome out;
  out.table.title = grid_title(context);
  out.table.columns = quality_columns({"policy", "KV", "text"});
  std::vector<Series> series;
  std::vector<std::string> labels;
  for (const Text& t : context.texts) labels.push_back(t.kind);
  if (labels.size() > 1) labels.push_back("all");
  for (size_t v = 0; v < variants.size(); ++v) {
    std::vector<Json> by_text = results[v];
    Json all;
    for (const Json& s : by_text) add(all, s);
    if (by_text.size() > 1) by_text.push_back(all);
    const std::string type(kv::to_string(variants[v].config.kv_type));
    Series line{fmt::format("{}, KV in {}", variants[v].name, type), {}, {}};
    for (size_t t = 0; t < by_text.size(); ++t) {
      out.table.rows.push_back(quality_row({variants[v].name, type, labels[t]}, by_text[t]));
      line.x.push_back(static_cast<double>(t));
      line.y.push_back(ratio(by_text[t], "kl", "tokens"));
    }
    if (v > 0) series.push_back(std::move(line));
  }
  out.picture =
      line_chart("Keys and values in bf16 and in FP8", "text", "KL to dense in bf16, nats a token", series, labels);
  return out;
}

}  // namespace oasis::eval
