// quality --tasks FILE.jsonl: questions with answers, dense and with the working set, so that whoever has the weights
// can run AIME, GPQA, LongBench and the like. One object a line:
//   {"prompt": "...", "answer": "42"}                                exact match of the generated text's last answer
//   {"prompt": "...", "choices": ["A ...", "B ..."], "answer": 1}     multiple choice: the likeliest continuation a
//   token
// and, for generated ones, "samples": k (mean of k: avg@k), "max_tokens", "temperature".
#include <algorithm>
#include <fstream>

#include "eval/task.h"

namespace oasis::eval {
namespace {

using lookahead::FetchMode;

struct Question {
  std::string prompt, answer;
  std::vector<std::string> choices;
  size_t right_choice = 0;
  int32_t samples = 1, max_tokens = 256;
  float temperature = 0;
};

Result<Question> parse(const std::string& path, size_t line, const Json& j) {
  const auto wrong = [&](const char* what) { return invalid_argument("{}:{}: {}", path, line, what); };
  if (!j.is_object() || !j.contains("prompt") || !j["prompt"].is_string()) return wrong("no \"prompt\" of text");
  Question q{.prompt = j["prompt"].get<std::string>()};
  if (!j.contains("answer")) return wrong("no \"answer\"");
  if (j.contains("choices")) {
    for (const Json& c : j["choices"]) {
      if (!c.is_string() || c.get<std::string>().empty()) return wrong("\"choices\" must be texts");
      q.choices.push_back(c.get<std::string>());
    }
    if (!j["answer"].is_number_unsigned() || j["answer"].get<size_t>() >= q.choices.size()) {
      return wrong("\"answer\" must be the index of a choice, from 0");
    }
    q.right_choice = j["answer"].get<size_t>();
    return q;
  }
  if (!j["answer"].is_string()) return wrong("\"answer\" must be a text, or an index with \"choices\"");
  q.answer = j["answer"].get<std::string>();
  const auto number = [&](const char* name, double fallback) {
    return j.contains(name) && j[name].is_number() ? j[name].get<double>() : fallback;
  };
  q.samples = static_cast<int32_t>(std::clamp(number("samples", 1), 1.0, 1024.0));
  q.max_tokens = static_cast<int32_t>(std::clamp(number("max_tokens", 256), 1.0, 1e6));
  q.temperature = static_cast<float>(number("temperature", q.samples > 1 ? 0.6 : 0));
  return q;
}

Result<std::vector<Question>> read_questions(const std::string& path) {
  std::ifstream file(path);
  if (!file) return not_found("--tasks '{}' cannot be read", path);
  std::vector<Question> out;
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    OASIS_ASSIGN_OR_RETURN(Question q, parse(path, number, Json::parse(line, nullptr, false)));
    out.push_back(std::move(q));
  }
  if (out.empty()) return invalid_argument("--tasks '{}' holds no question", path);
  return out;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n.$");
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n.$") + 1 - begin);
}

// What is in the last \boxed{}, or else after the last "answer is" or "Answer:", or else the whole.
std::string answer_of(const std::string& text) {
  if (const size_t at = text.rfind("\\boxed{"); at != text.npos) {
    size_t end = at + 7;
    for (int open = 1; end < text.size(); ++end) {
      open += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
      if (open == 0) break;
    }
    return trimmed(text.substr(at + 7, end - at - 7));
  }
  for (const std::string mark : {"answer is", "Answer:"}) {
    if (const size_t at = text.rfind(mark); at != text.npos) {
      const std::string rest = text.substr(at + mark.size());
      return trimmed(rest.substr(0, rest.find('\n', std::min(rest.size(), rest.find_first_not_of(" \n")))));
    }
  }
  return trimmed(text);
}

// The share of samples that are right: 0 or 1 for a choice.
Result<double> score(Session& session, const text::Tokenizer& t, const Question& q) {
  const auto prompt = t.encode(q.prompt, true, t.add_bos());
  if (q.choices.empty()) {
    int right = 0;
    for (int32_t i = 0; i < q.samples; ++i) {
      OASIS_ASSIGN_OR_RETURN(
          const Run run, session.run({.prompt = prompt,
                                      .free_tokens = q.max_tokens,
                                      .score = false,
                                      .sampling = {.temperature = q.temperature, .seed = static_cast<uint64_t>(i) + 1},
                                      .stop_at_eos = true}));
      right += answer_of(t.decode(run.tokens, true)) == trimmed(q.answer);
    }
    return static_cast<double>(right) / q.samples;
  }
  std::vector<double> likely;
  for (const std::string& choice : q.choices) {
    // The prompt's last token is forced too, so that the choice's first is decoded and not prefilled.
    auto forced = t.encode(choice, false, false);
    const auto count = static_cast<double>(forced.size());
    forced.insert(forced.begin(), prompt.back());
    const std::span<const int32_t> start(prompt.data(), prompt.size() - 1);
    OASIS_ASSIGN_OR_RETURN(const Run run, session.run({.prompt = start, .forced = forced}));
    double nll = 0;
    for (const Step& s : run.steps) nll += s.nll;
    likely.push_back(-nll / count);
  }
  return std::max_element(likely.begin(), likely.end()) - likely.begin() == static_cast<int64_t>(q.right_choice) ? 1
                                                                                                                 : 0;
}

}  // namespace

Result<Outcome> jsonl_tasks(const Context& context) {
  if (!context.tokenizer) return invalid_argument("--tasks needs a model with a tokenizer");
  OASIS_ASSIGN_OR_RETURN(const auto questions, read_questions(context.tasks_file));
  const text::Tokenizer& t = *context.tokenizer;
  int64_t longest = 0;
  for (const Question& q : questions) {
    int64_t room = q.max_tokens;
    if (!q.choices.empty()) room = 0;
    for (const auto& c : q.choices)
      room = std::max<int64_t>(room, static_cast<int64_t>(t.encode(c, false, false).size()));
    longest = std::max(longest, static_cast<int64_t>(t.encode(q.prompt, true, t.add_bos()).size()) + room + 1);
  }
  if (longest > context.checkpoint.config().context) {
    return invalid_argument("--tasks: a question with its answer has {} tokens, this model's context is {}", longest,
                            context.checkpoint.config().context);
  }
  const std::vector<Variant> variants = {dense(context), policy(context, "exact", FetchMode::kExact, 1.5),
                                         policy(context, "bounded, R=1.5K", FetchMode::kBounded, 1.5),
                                         policy(context, "adaptive, R=1.5K", FetchMode::kAdaptive, 1.5)};
  std::vector<Unit> units;
  for (const Variant& v : variants) {
    auto session = std::make_shared<std::optional<Session>>();
    for (size_t i = 0; i < questions.size(); ++i) {
      const Question& q = questions[i];
      const auto work = [&, v, session]() -> Result<Json> {
        if (!*session) {
          OASIS_ASSIGN_OR_RETURN(*session, Session::create(context.device, context.checkpoint, v, longest));
        }
        OASIS_ASSIGN_OR_RETURN(const double value, score(**session, t, q));
        return Json{{"score", value}};
      };
      auto all = t.encode(q.prompt + "\n" + q.answer, true, false);
      for (const auto& c : q.choices) all.push_back(static_cast<int32_t>(std::hash<std::string>{}(c)));
      units.push_back({fmt::format("{} question{} right{} x{} t{} n{}", describe(context, v.config, all), i,
                                   q.right_choice, q.samples, q.temperature, q.max_tokens),
                       work});
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, "tasks", units));

  Outcome out;
  out.table.title = fmt::format("{}: {} questions of {}, K={}, draft {}", context.checkpoint.config().name,
                                questions.size(), context.tasks_file, context.base.top_k_blocks, context.base.draft);
  out.table.columns = {"policy", "questions", "score"};
  Series line{"mean score", {}, {}};
  std::vector<std::string> labels;
  for (size_t v = 0; v < variants.size(); ++v) {
    double sum = 0;
    for (size_t i = 0; i < questions.size(); ++i) sum += results[v * questions.size() + i]["score"].get<double>();
    line.x.push_back(static_cast<double>(v));
    line.y.push_back(sum / static_cast<double>(questions.size()));
    labels.push_back(variants[v].name);
    out.table.rows.push_back({variants[v].name, questions.size(), line.y.back()});
  }
  out.picture = line_chart("Score (exact match, avg@k, multiple choice)", "policy", "score", {line}, labels);
  return out;
}

}  // namespace oasis::eval
