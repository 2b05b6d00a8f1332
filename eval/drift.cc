// drift: a text goes on for a while, then turns. How far do the blocks that are read fall behind those that should be?
#include <algorithm>
#include <optional>

#include "eval/block_rule.h"
#include "eval/task.h"

namespace oasis::eval {
namespace {

using lookahead::FetchMode;
using Tokens = std::vector<int32_t>;

constexpr int64_t kBefore = 48, kAfter = 128;
const char* const kTurns[] = {"topic switch", "inserted passage", "copied passage"};
constexpr size_t kTurnCount = std::size(kTurns);
// Steps after the turn, [begin, end).
constexpr std::pair<int64_t, int64_t> kWindows[] = {{-32, 0}, {0, 8}, {8, 16}, {16, 32}, {32, 64}, {64, 128}};

void append(Tokens& to, const Tokens& from, int64_t begin, int64_t end) {
  to.insert(to.end(), from.begin() + begin, from.begin() + end);
}

// What is forced: `own` goes on from `at`, then turns.
Tokens forced_by(size_t turn, const Tokens& own, const Tokens& other, int64_t at) {
  Tokens out;
  append(out, own, at, at + kBefore);
  const int64_t half = static_cast<int64_t>(other.size()) / 2;
  if (turn == 0) append(out, other, half, half + kAfter);
  if (turn == 1) {
    append(out, other, half, half + kAfter / 2);
    append(out, own, at + kBefore, at + kBefore + kAfter / 2);
  }
  if (turn == 2) append(out, own, at / 16, at / 16 + kAfter);
  return out;
}

// By step: sums of cover, agreement, top-1, KL, and of drafts that were right; cover apart by what became of the draft
// that chose what is read, made one step before.
Json series_of(const Run& run) {
  Json out;
  const auto put = [&](const char* name, double v) { out[name].push_back(v); };
  const Step* made = nullptr;
  for (const Step& s : run.steps) {
    const double n = std::max<double>(1, static_cast<double>(s.measured));
    const bool drafted = made && made->compared > 0, right = drafted && made->right > 0;
    put("cover", s.cover / n), put("agreement", s.agreement / n), put("top1", s.top1), put("kl", s.kl), put("runs", 1);
    put("draft right", right), put("drafted", drafted);
    put("cover, draft right", right ? s.cover / n : 0), put("right runs", right);
    put("cover, draft wrong", drafted && !right ? s.cover / n : 0), put("wrong runs", drafted && !right);
    made = &s;
  }
  return out;
}

struct Figure {
  const char *name, *count;
};
constexpr Figure kFigures[] = {{"cover", "runs"},
                               {"agreement", "runs"},
                               {"top1", "runs"},
                               {"kl", "runs"},
                               {"draft right", "drafted"},
                               {"cover, draft right", "right runs"},
                               {"cover, draft wrong", "wrong runs"}};

// Mean of a figure over steps [begin, end) after the turn; null: nothing there. Step i decides output i + 1.
Json window(const Json& s, const Figure& f, int64_t begin, int64_t end) {
  double sum = 0, n = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = kBefore + i - 1;
    if (at < 0 || at >= static_cast<int64_t>(s[f.name].size())) continue;
    sum += s[f.name][static_cast<size_t>(at)].get<double>(), n += s[f.count][static_cast<size_t>(at)].get<double>();
  }
  return n > 0 ? Json(sum / n) : Json();
}

// The first step after the turn from which eight together reach the level before it; null: none does.
Json steps_back(const Json& s) {
  const Json level = window(s, kFigures[0], -32, 0);
  for (int64_t i = 0; i + 8 <= kAfter; ++i) {
    if (window(s, kFigures[0], i, i + 8) >= level) return i;
  }
  return {};
}

}  // namespace

Result<Outcome> drift(const Context& context) {
  if (context.texts.size() < 2) return invalid_argument("drift turns from one text to another: give two with --text");
  std::vector<Variant> variants = {
      policy(context, "exact", FetchMode::kExact, 1.5),
      policy(context, "bounded, R=K", FetchMode::kBounded, 1),
      policy(context, "bounded, R=1.5K", FetchMode::kBounded, 1.5),
      policy(context, "bounded, R=2K", FetchMode::kBounded, 2),
      policy(context, "adaptive, R=1.5K", FetchMode::kAdaptive, 1.5),
      policy(context, "bounded, R=1.5K, no draft", FetchMode::kBounded, 1.5),
  };
  variants.back().config.draft = "none";
  if (context.base.draft.starts_with("eagle3:")) {
    variants.push_back(policy(context, "bounded, R=1.5K, auto draft", FetchMode::kBounded, 1.5));
    variants.back().config.draft = "auto:" + context.base.draft.substr(7);
  }
  variants.push_back(
      with_rule(policy(context, "", FetchMode::kExact, 1.5),
                {.name = "residents ranked at use, R=1.5K", .beta = 0.5f, .pin_first = true, .residents_only = true}));
  for (Variant& v : variants) v.config.agreement_every = 1, v.config.accept_drafts = false;
  const int64_t at = context.context - kBefore - kAfter;
  if (at < 64) return invalid_argument("--context {}: drift needs at least {}", context.context, 64 + kBefore + kAfter);
  std::vector<Unit> units;
  // The dense runs of the text at hand, one a turn.
  std::optional<size_t> held;
  std::vector<Reference> references(kTurnCount);
  std::vector<Tokens> pieces;
  for (const Text& t : context.texts) {
    OASIS_ASSIGN_OR_RETURN(pieces.emplace_back(), cut(t, context.context, 0, 1));
  }
  const auto run_all = [&](const Variant& v, size_t text, bool record) -> Result<Json> {
    OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, context.context));
    Json out;
    for (size_t turn = 0; turn < kTurnCount; ++turn) {
      const Tokens& own = pieces[text];
      const Tokens forced = forced_by(turn, own, pieces[(text + 1) % pieces.size()], at);
      OASIS_ASSIGN_OR_RETURN(const Run run, session.run({.prompt = std::span(own).first(static_cast<size_t>(at)),
                                                         .forced = forced,
                                                         .reference = record ? nullptr : &references[turn],
                                                         .record = record ? &references[turn] : nullptr}));
      out[kTurns[turn]] = series_of(run);
      if (v.finish) v.finish(out);  // a study begins anew with each prompt
    }
    return out;
  };
  for (size_t t = 0; t < pieces.size(); ++t) {
    for (const Variant& v : variants) {
      const auto work = [&, t, v]() -> Result<Json> {
        if (held != t) {
          OASIS_RETURN_IF_ERROR(run_all(dense(context), t, true).status());
          held = t;
        }
        return run_all(v, t, false);
      };
      auto both = pieces[t];
      append(both, pieces[(t + 1) % pieces.size()], 0, context.context);
      units.push_back({describe(context, v.config, both) + (v.finish ? " " + v.name : ""), work});
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "drift", units));

  Outcome out;
  out.table.title = fmt::format("{}: {} tokens, a turn after {} of the last {} steps, K={}, draft {}, mean of {} texts",
                                context.checkpoint.config().name, context.context, kBefore, kBefore + kAfter,
                                context.base.top_k_blocks, context.base.draft, pieces.size());
  out.table.columns = {"turn", "policy", "figure", "before"};
  for (size_t w = 1; w < std::size(kWindows); ++w) {
    out.table.columns.push_back(fmt::format("{}-{}", kWindows[w].first, kWindows[w].second - 1));
  }
  out.table.columns.push_back("steps until back");
  std::vector<Series> series;
  for (size_t turn = 0; turn < kTurnCount; ++turn) {
    for (size_t v = 0; v < variants.size(); ++v) {
      Json s;
      for (size_t t = 0; t < pieces.size(); ++t) add(s, results[t * variants.size() + v][kTurns[turn]]);
      for (const Figure& figure : kFigures) {
        std::vector<Json> row = {kTurns[turn], variants[v].name, figure.name};
        for (const auto& [begin, end] : kWindows) row.push_back(window(s, figure, begin, end));
        row.push_back(&figure == kFigures ? steps_back(s) : Json());
        out.table.rows.push_back(std::move(row));
      }
      if (turn == 1) continue;
      Series line{fmt::format("{}: {}", turn == 0 ? "switch" : "copy", variants[v].name), {}, {}};
      for (int64_t i = -32; i + 8 <= kAfter; i += 4) {
        line.x.push_back(static_cast<double>(i + 4));
        line.y.push_back(window(s, kFigures[0], i, i + 8).get<double>());
      }
      const bool own_cover = variants[v].config.fetch != FetchMode::kExact;  // else it is that of the prefetch alone
      if (own_cover) series.push_back(std::move(line));
    }
  }
  out.picture = line_chart("Cover of the true top-K, mean of 8 steps", "steps after the turn", "cover", series);
  return out;
}

}  // namespace oasis::eval
