// accept: what longer drafts bring and what they cost in prediction, on given text and on the model's own.
#include <algorithm>

#include "eval/task.h"

namespace oasis::eval {
namespace {

using lookahead::FetchMode;

struct Choice {
  std::string draft;
  int32_t n;  // 0: looks ahead only
};

}  // namespace

Result<Outcome> accept(const Context& context) {
  const auto lengths = context.full ? std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8} : std::vector{0, 1, 2, 4, 8};
  std::vector<std::string> drafts = {"ngram"};
  if (context.base.draft.starts_with("eagle3:")) {
    drafts = {context.base.draft, "ngram", "auto:" + context.base.draft.substr(7)};
  }
  std::vector<Choice> choices;
  for (const auto& draft : drafts) {
    for (const int32_t n : lengths) choices.push_back({draft, n});
  }
  const auto prompt = static_cast<size_t>(context.context - context.steps);
  std::vector<Unit> units;
  for (const Choice& c : choices) {
    Variant v = policy(context, c.draft, FetchMode::kBounded, 1.5);
    v.config.draft = c.draft;
    v.config.accept_drafts = c.n > 0;
    v.config.draft_tokens = std::max(1, c.n);
    for (const Text& text : context.texts) {
      OASIS_ASSIGN_OR_RETURN(const auto tokens, cut(text, context.context, 0, 1));
      const auto work = [&context, v, tokens, prompt]() -> Result<Json> {
        OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, context.context));
        const std::span<const int32_t> all(tokens);
        OASIS_ASSIGN_OR_RETURN(const Run given,
                               session.run({.prompt = all.first(prompt), .forced = all.subspan(prompt)}));
        OASIS_ASSIGN_OR_RETURN(const Run own, session.run({.prompt = all.first(prompt),
                                                           .free_tokens = static_cast<int32_t>(context.steps)}));
        return Json{{"given", sums(given, context.heads())}, {"own", sums(own, context.heads())}};
      };
      units.push_back({fmt::format("{} steps{}", describe(context, v.config, tokens), context.steps), work});
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "accept", units));

  Outcome out;
  out.table.title =
      fmt::format("{}: pieces of {} tokens, {} decoded, K={}, bounded, R=1.5K; all kinds of text together",
                  context.checkpoint.config().name, context.context, context.steps, context.base.top_k_blocks);
  out.table.columns = {"drafter",     "draft tokens", "text",  "tokens/step",
                       "draft right", "agreement",    "cover", "fetched/token"};
  std::vector<Series> series;
  for (size_t c = 0; c < choices.size(); ++c) {
    for (const char* kind : {"given", "own"}) {
      Json s;
      for (size_t t = 0; t < context.texts.size(); ++t) add(s, results[c * context.texts.size() + t][kind]);
      const std::string name = choices[c].draft.substr(0, choices[c].draft.find(':'));
      const double heads = static_cast<double>(context.heads());
      out.table.rows.push_back({name, choices[c].n, kind, ratio(s, "tokens", "steps"), ratio(s, "right", "compared"),
                                ratio(s, "agreement", "measured"), ratio(s, "cover", "measured"),
                                ratio(s, "fetched", "tokens") / heads});
      const std::string line = name + ", " + kind + " text";
      auto at = std::find_if(series.begin(), series.end(), [&](const Series& each) { return each.name == line; });
      if (at == series.end()) at = series.insert(series.end(), Series{line, {}, {}});
      at->x.push_back(choices[c].n);
      at->y.push_back(ratio(s, "tokens", "steps"));
    }
  }
  out.picture =
      line_chart("Tokens a step by draft length (0: looks ahead only)", "draft tokens", "tokens a step", series);
  return out;
}

}  // namespace oasis::eval
