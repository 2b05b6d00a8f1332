// agreement: predicted against true top-K. P is made beside one token and judged by the next one's query, so a step's
// figure belongs to the draft of the step before.
#include <algorithm>

#include "eval/task.h"

namespace oasis::eval {
namespace {

using lookahead::FetchMode;

// Sums of agreement and their counts, apart by what became of the draft of the step before, and by layer.
Json split(const Run& run) {
  std::vector<double> right(2), wrong(2), by_advance(20);  // {sum, count}; {sum, count} of 0 .. 9 tokens advanced
  for (size_t t = 1; t < run.steps.size(); ++t) {
    const Step &made = run.steps[t - 1], &judged = run.steps[t];
    const auto count = static_cast<double>(judged.measured);
    if (made.compared > 0) {
      auto& part = made.right == made.compared ? right : wrong;
      part[0] += judged.agreement, part[1] += count;
    }
    const auto advanced = static_cast<size_t>(std::clamp(made.tokens, 0, 9));
    by_advance[2 * advanced] += judged.agreement, by_advance[2 * advanced + 1] += count;
  }
  return {{"right_part", right}, {"wrong_part", wrong}, {"by_advance", by_advance}};
}

double mean(const Json& part, size_t at) {
  const double n = part[2 * at + 1].get<double>();
  return n > 0 ? part[2 * at].get<double>() / n : 0;
}

std::vector<Variant> drafters(const Context& context) {
  std::vector<std::string> names = {"none", "ngram"};
  if (context.base.draft.starts_with("eagle3:")) names.push_back(context.base.draft);
  std::vector<Variant> out;
  for (const std::string& name : names) {
    out.push_back(policy(context, name.substr(0, name.find(':')), FetchMode::kBounded, 1.5));
    out.back().config.draft = name;
    out.back().config.accept_drafts = false;
    out.back().config.agreement_every = 1;
  }
  Variant accepted = out.back();
  accepted.name += ", accepted";
  accepted.config.accept_drafts = true;
  out.push_back(std::move(accepted));
  return out;
}

}  // namespace

Result<Outcome> agreement(const Context& context) {
  const auto variants = drafters(context);
  const auto prompt = static_cast<size_t>(context.context - context.steps);
  std::vector<Unit> units;
  for (const Variant& v : variants) {
    for (const Text& text : context.texts) {
      for (int p = 0; p < context.pieces; ++p) {
        OASIS_ASSIGN_OR_RETURN(const auto tokens, cut(text, context.context, p, context.pieces));
        const auto work = [&context, v, tokens, prompt]() -> Result<Json> {
          OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, context.context));
          const std::span<const int32_t> all(tokens);
          OASIS_ASSIGN_OR_RETURN(const Run run,
                                 session.run({.prompt = all.first(prompt), .forced = all.subspan(prompt)}));
          Json j = sums(run, context.heads());
          j.update(split(run));
          return j;
        };
        units.push_back({fmt::format("{} steps{}", describe(context, v.config, tokens), context.steps), work});
      }
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "agreement", units));

  Outcome out;
  out.table.title =
      fmt::format("{}: pieces of {} tokens, the last {} forced, K={}, bounded, R=1.5K",
                  context.checkpoint.config().name, context.context, context.steps, context.base.top_k_blocks);
  out.table.columns = {"drafter", "text",     "draft right", "agreement",   "when right", "when wrong",
                       "1 token", "2 tokens", "3 tokens",    "worst layer", "cover"};
  const auto layers = static_cast<size_t>(context.checkpoint.config().layers);
  for (size_t l = 0; l < layers; ++l) out.table.columns.push_back(fmt::format("L{}", l));
  std::vector<Series> series;
  size_t at = 0;
  for (const Variant& v : variants) {
    Json all;
    const auto row_of = [&](const std::string& kind, const Json& s) {
      std::vector<double> by_layer;
      for (size_t l = 0; l < layers; ++l) {
        by_layer.push_back(s["layer_sum"][l].get<double>() / std::max(1.0, s["layer_count"][l].get<double>()));
      }
      const auto part = [&](const char* name, size_t i) {
        return s[name][2 * i + 1].get<double>() > 0 ? Json(mean(s[name], i)) : Json();
      };
      std::vector<Json> row = {v.name,
                               kind,
                               ratio(s, "right", "compared"),
                               ratio(s, "agreement", "measured"),
                               part("right_part", 0),
                               part("wrong_part", 0),
                               part("by_advance", 1),
                               part("by_advance", 2),
                               part("by_advance", 3),
                               *std::min_element(by_layer.begin(), by_layer.end()),
                               ratio(s, "cover", "measured")};
      for (const double a : by_layer) row.push_back(a);
      out.table.rows.push_back(std::move(row));
      return by_layer;
    };
    for (const Text& text : context.texts) {
      Json s;
      for (int p = 0; p < context.pieces; ++p) add(s, results[at++]);
      row_of(text.kind, s);
      add(all, s);
    }
    Series line{v.name, {}, row_of("all", all)};
    for (size_t l = 0; l < layers; ++l) line.x.push_back(static_cast<double>(l));
    series.push_back(std::move(line));
  }
  out.picture = line_chart(fmt::format("Predicted and true top-K, K={}", context.base.top_k_blocks), "layer",
                           "agreement", series);
  return out;
}

}  // namespace oasis::eval
