// drift: a text goes on for a while, then turns. How far do the blocks that are read fall behind those that should be?
#include <algorithm>
#include <optional>

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

// By step: sums of cover, agreement, top-1, KL.
Json series_of(const Run& run) {
  std::vector<double> cover, agreement, top1, kl, runs;
  for (const Step& s : run.steps) {
    const double n = std::max<double>(1, static_cast<double>(s.measured));
    cover.push_back(s.cover / n), agreement.push_back(s.agreement / n);
    top1.push_back(s.top1), kl.push_back(s.kl), runs.push_back(1);
  }
  return {{"cover", cover}, {"agreement", agreement}, {"top1", top1}, {"kl", kl}, {"runs", runs}};
}

// Mean of a series over steps [begin, end) after the turn. Step i decides output i + 1.
double window(const Json& s, const char* name, int64_t begin, int64_t end) {
  double sum = 0, n = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t at = kBefore + i - 1;
    if (at < 0 || at >= static_cast<int64_t>(s[name].size())) continue;
    sum += s[name][static_cast<size_t>(at)].get<double>(), n += s["runs"][static_cast<size_t>(at)].get<double>();
  }
  return n > 0 ? sum / n : 0;
}

// The first step after the turn from which eight together reach the level before it; null: none does.
Json steps_back(const Json& s) {
  const double level = window(s, "cover", -32, 0);
  for (int64_t i = 0; i + 8 <= kAfter; ++i) {
    if (window(s, "cover", i, i + 8) >= level) return i;
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
  };
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
      units.push_back({describe(context, v.config, pieces[t]), work});
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
      for (const char* figure : {"cover", "agreement", "top1", "kl"}) {
        std::vector<Json> row = {kTurns[turn], variants[v].name, figure};
        for (const auto& [begin, end] : kWindows) row.push_back(window(s, figure, begin, end));
        row.push_back(figure == std::string("cover") ? steps_back(s) : Json());
        out.table.rows.push_back(std::move(row));
      }
      if (turn == 1) continue;
      Series line{fmt::format("{}: {}", turn == 0 ? "switch" : "copy", variants[v].name), {}, {}};
      for (int64_t i = -32; i + 8 <= kAfter; i += 4) {
        line.x.push_back(static_cast<double>(i + 4));
        line.y.push_back(window(s, "cover", i, i + 8));
      }
      if (v > 0) series.push_back(std::move(line));
    }
  }
  out.picture = line_chart("Cover of the true top-K, mean of 8 steps", "steps after the turn", "cover", series);
  return out;
}

}  // namespace oasis::eval
