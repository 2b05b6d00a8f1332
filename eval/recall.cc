// recall: what a long context is asked to give back word for word, over its length and the depth where it stands.
// Scored by the share of the answer's tokens that the model would have chosen, each after the right ones before it; the
// answer is decoded, the context and the question but for its last token are prefilled. All questions of one context
// share its prefill.
#include <algorithm>
#include <random>

#include "eval/task.h"

namespace oasis::eval {
namespace {

using lookahead::FetchMode;
using Tokens = std::vector<int32_t>;

constexpr double kDepths[] = {0.05, 0.25, 0.5, 0.75, 0.95};
constexpr size_t kDepthCount = std::size(kDepths);
const char* const kKinds[] = {"needle", "copy", "lookup"};

struct Question {
  size_t depth;  // index
  Tokens cue, answer;
};

struct Exam {
  Tokens context;
  std::vector<Question> questions;
};

std::string digits(std::mt19937& random, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += static_cast<char>('0' + random() % 10);
  return out;
}

std::string letters(std::mt19937& random, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += static_cast<char>('a' + random() % 26);
  return out;
}

size_t place(size_t depth, size_t length) { return static_cast<size_t>(kDepths[depth] * static_cast<double>(length)); }

// A sentence with a number at every depth of a text that has nothing to do with it.
Exam needle(const text::Tokenizer& t, const Tokens& filler, size_t length, std::mt19937& random) {
  Exam exam;
  std::vector<std::string> needles;
  size_t room = length;
  for (size_t d = 0; d < kDepthCount; ++d) {
    const std::string cue = fmt::format("\nThe secret number of {} is", letters(random, 5)),
                      number = " " + digits(random, 7);
    needles.push_back(cue + number + ".\n");
    exam.questions.push_back({d, t.encode(cue, false, false), t.encode(number, false, false)});
    room -= std::min(room, t.encode(needles.back(), false, false).size());
  }
  size_t used = 0;
  for (size_t d = 0; d < kDepthCount; ++d) {
    const size_t until = place(d, room);
    exam.context.insert(exam.context.end(), filler.begin() + static_cast<int64_t>(used),
                        filler.begin() + static_cast<int64_t>(until));
    const Tokens words = t.encode(needles[d], false, false);
    exam.context.insert(exam.context.end(), words.begin(), words.end());
    used = until;
  }
  exam.context.insert(exam.context.end(), filler.begin() + static_cast<int64_t>(used),
                      filler.begin() + static_cast<int64_t>(room));
  return exam;
}

// The first words of a passage; it goes on as it did.
Exam copy(const text::Tokenizer&, const Tokens& filler, size_t length, std::mt19937&) {
  constexpr int64_t kCue = 24, kAnswer = 32;
  Exam exam;
  exam.context.assign(filler.begin(), filler.begin() + static_cast<int64_t>(length));
  for (size_t d = 0; d < kDepthCount; ++d) {
    const auto at = exam.context.begin() + static_cast<int64_t>(place(d, length - kCue - kAnswer));
    exam.questions.push_back({d, Tokens(at, at + kCue), Tokens(at + kCue, at + kCue + kAnswer)});
  }
  return exam;
}

// Lines of a key and a number.
Exam lookup(const text::Tokenizer& t, const Tokens&, size_t length, std::mt19937& random) {
  Exam exam;
  std::vector<std::pair<std::string, std::string>> lines;
  std::vector<size_t> begins;
  while (exam.context.size() < length) {
    lines.emplace_back(fmt::format("\n{} =", letters(random, 5)), " " + digits(random, 5));
    begins.push_back(exam.context.size());
    const Tokens line = t.encode(lines.back().first + lines.back().second, false, false);
    exam.context.insert(exam.context.end(), line.begin(), line.end());
  }
  for (size_t d = 0; d < kDepthCount; ++d) {
    const auto at = std::upper_bound(begins.begin(), begins.end(), place(d, exam.context.size())) - begins.begin() - 1;
    const auto& [cue, number] = lines[static_cast<size_t>(at)];
    exam.questions.push_back({d, t.encode(cue, false, false), t.encode(number, false, false)});
  }
  return exam;
}

Exam make_exam(size_t kind, const text::Tokenizer& t, const Tokens& filler, size_t length, uint32_t seed) {
  std::mt19937 random(seed);
  constexpr Exam (*kMakers[])(const text::Tokenizer&, const Tokens&, size_t, std::mt19937&) = {needle, copy, lookup};
  return kMakers[kind](t, filler, length, random);
}

// Sums of right and all answer tokens by depth.
Result<Json> sit(Session& session, const Exam& exam) {
  std::vector<double> right(kDepthCount), all(kDepthCount);
  for (const Question& q : exam.questions) {
    Tokens prompt = exam.context, forced = {q.cue.back()};
    prompt.insert(prompt.end(), q.cue.begin(), q.cue.end() - 1);
    forced.insert(forced.end(), q.answer.begin(), q.answer.end());
    OASIS_ASSIGN_OR_RETURN(const Run run, session.run({.prompt = prompt, .forced = forced}));
    for (const Step& s : run.steps) right[q.depth] += s.right_token;
    all[q.depth] += static_cast<double>(q.answer.size());
  }
  return Json{{"right", right}, {"all", all}};
}

}  // namespace

Result<Outcome> recall(const Context& context) {
  if (!context.tokenizer) return invalid_argument("recall makes its questions of words: the model needs a tokenizer");
  const std::vector<Variant> variants = {
      dense(context),
      policy(context, "exact", FetchMode::kExact, 1.5),
      policy(context, "bounded, R=K", FetchMode::kBounded, 1),
      policy(context, "bounded, R=1.5K", FetchMode::kBounded, 1.5),
      policy(context, "adaptive, R=1.5K", FetchMode::kAdaptive, 1.5),
  };
  const std::vector<int64_t> lengths = {context.context / 4, context.context / 2, context.context};
  const int repeats = context.full ? 4 : 1;
  constexpr int64_t kRoom = 96;  // for question and answer
  constexpr int64_t kLeast = 4 * (kRoom + 64);
  if (context.context < kLeast) {
    return invalid_argument("--context {}: recall asks about a quarter of it too, and needs {}", context.context,
                            kLeast);
  }
  std::vector<Unit> units;
  OASIS_ASSIGN_OR_RETURN(const auto filler, cut(context.texts[0], context.context, 0, 1));
  for (const Variant& v : variants) {
    for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
      for (const int64_t length : lengths) {
        const auto work = [&, v, kind, length]() -> Result<Json> {
          OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, length));
          Json sum;
          for (int r = 0; r < repeats; ++r) {
            const auto room = static_cast<size_t>(length - kRoom);
            const Exam exam = make_exam(kind, *context.tokenizer, filler, room, 7919u * static_cast<uint32_t>(r) + 17);
            OASIS_ASSIGN_OR_RETURN(const Json one, sit(session, exam));
            add(sum, one);
          }
          return sum;
        };
        units.push_back(
            {fmt::format("{} {} length{} x{}", describe(context, v.config, filler), kKinds[kind], length, repeats),
             work});
      }
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "recall", units));

  Outcome out;
  out.table.title = fmt::format("{}: share of answer tokens that are the model's choice, K={}, draft {}",
                                context.checkpoint.config().name, context.base.top_k_blocks, context.base.draft);
  out.table.columns = {"question", "policy", "length"};
  std::vector<std::string> columns, rows;
  for (const double d : kDepths) columns.push_back(fmt::format("{}", d));
  for (const auto& c : columns) out.table.columns.push_back("depth " + c);
  out.table.columns.push_back("mean");
  for (const int64_t l : lengths) rows.push_back(fmt::format("{}", l));
  std::vector<HeatPanel> panels;
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    for (size_t v = 0; v < variants.size(); ++v) {
      HeatPanel panel{fmt::format("{}: {}", kKinds[kind], variants[v].name), {}};
      for (size_t l = 0; l < lengths.size(); ++l) {
        const Json& s = results[(v * std::size(kKinds) + kind) * lengths.size() + l];
        std::vector<double> shares;
        double mean = 0;
        for (size_t d = 0; d < kDepthCount; ++d) {
          shares.push_back(s["right"][d].get<double>() / std::max(1.0, s["all"][d].get<double>()));
          mean += shares.back() / kDepthCount;
        }
        std::vector<Json> row = {kKinds[kind], variants[v].name, lengths[l]};
        row.insert(row.end(), shares.begin(), shares.end());
        row.push_back(mean);
        out.table.rows.push_back(std::move(row));
        panel.values.push_back(std::move(shares));
      }
      panels.push_back(std::move(panel));
    }
  }
  out.picture = heat_maps(fmt::format("Word for word, K={}", context.base.top_k_blocks), "length", rows, "depth",
                          columns, panels, variants.size());
  return out;
}

}  // namespace oasis::eval
