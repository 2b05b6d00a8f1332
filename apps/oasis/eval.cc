// oasis eval: what the working set costs in quality, task by task.
#include <algorithm>
#include <filesystem>

#include "eval/task.h"
#include "oasis/checks.h"
#include "oasis/common.h"
#include "oasis/flags.h"

namespace oasis::app {
namespace {

struct EvalFlags : EngineFlags {
  std::string task, out = "eval-results", tasks_file;
  std::vector<std::string> texts;
  int64_t steps = 0;
  int pieces = 1;
  bool full = false, json = false;
};

// What the task runs on: the user's files, or three kinds of text from Debian packages.
Result<std::vector<eval::Text>> load_texts(const EvalFlags& f, const text::Tokenizer& tokenizer, int64_t tokens) {
  std::vector<eval::Text> texts;
  const auto bytes = static_cast<size_t>(tokens) * 5;
  for (const std::string& path : f.texts) {
    OASIS_ASSIGN_OR_RETURN(const std::string text, read_text(path));
    texts.push_back({std::filesystem::path(path).filename(), tokenizer.encode(text, false, false)});
  }
  if (!texts.empty()) return texts;
  for (const char* kind : {"prose", "code", "tables"}) {
    OASIS_ASSIGN_OR_RETURN(const std::string text, eval::debian_text(kind, std::max<size_t>(bytes, 120000)));
    texts.push_back({kind, tokenizer.encode(text, false, false)});
  }
  return texts;
}

Status save(const eval::Outcome& outcome, const std::string& base) {
  OASIS_RETURN_IF_ERROR(eval::write_file(base + ".csv", outcome.table.csv()));
  OASIS_RETURN_IF_ERROR(eval::write_file(base + ".json", outcome.table.json().dump(1) + "\n"));
  return eval::write_file(base + ".svg", outcome.picture);
}

int run(EvalFlags& f, bool k_given) {
  if (Status s = f.resolve(); !s.ok()) return fail(s);
  const auto tasks = eval::tasks();
  const auto task = std::find_if(tasks.begin(), tasks.end(), [&](const auto& t) { return f.task == t.name; });
  if (task == tasks.end()) return fail(invalid_argument("'{}' is not a task (see oasis eval --help)", f.task));
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  std::error_code error;
  std::filesystem::create_directories(f.out, error);
  if (error) return fail(io_error("--out {}: {}", f.out, error.message()), kFailed);
  watch_interrupt();
  const int64_t context = f.config.max_context > 0
                              ? f.config.max_context
                              : std::min<int64_t>(f.full ? 8192 : 4096, opened->checkpoint->config().context);
  // An eighth of the blocks unless the user says otherwise.
  if (!k_given) f.config.top_k_blocks = static_cast<int32_t>(std::max<int64_t>(1, context / f.config.block_size / 8));
  auto texts = load_texts(f, *opened->tokenizer, context * f.pieces);
  if (!texts.ok()) return fail(texts.status(), kFailed);
  Progress progress(f.task);
  const eval::Context setting{
      .device = *opened->device,
      .checkpoint = *opened->checkpoint,
      .tokenizer = &*opened->tokenizer,
      .base = f.config,
      .texts = std::move(*texts),
      .context = context,
      .steps = f.steps > 0 ? f.steps : (f.full ? 256 : 128),
      .pieces = f.pieces,
      .full = f.full,
      .tasks_file = f.tasks_file,
      .out = f.out,
      .progress = [&](int64_t done, int64_t total) { progress.update(done, total); },
      .stopped = [] { return interrupted() != 0; },
  };
  const auto outcome = task->run(setting);
  progress.clear();
  if (!outcome.ok() && interrupted() != 0) return fail(outcome.status(), 128 + interrupted());
  if (!outcome.ok()) return fail(outcome.status());
  const std::string base = f.out + "/" + f.task;
  if (Status s = save(*outcome, base); !s.ok()) return fail(s, kFailed);
  if (f.json) {
    emit("{}\n", outcome->table.json().dump(2));
  } else {
    emit("{}\n{}.csv, .json, .svg\n", outcome->table.text(), base);
  }
  return kDone;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  auto* sub = app.add_subcommand("eval", "what the working set costs in quality, task by task");
  sub->add_option("task", flags->task, "one of those below")->type_name("TASK")->required();
  flags->add_model(*sub);
  sub->add_option("--text", flags->texts,
                  "evaluate on this text (may be given several times);\ndefault: text of Debian packages")
      ->type_name("FILE")
      ->allow_extra_args(false);
  sub->add_option("--tasks", flags->tasks_file,
                  "quality: questions with answers, one JSON object a line (docs/evaluation.md)")
      ->type_name("FILE");
  sub->add_option("--steps", flags->steps, "tokens that are forced at the end of each piece; default 128, --full 256")
      ->type_name("N")
      ->check(whole_number(2, 1 << 20));
  sub->add_option("--pieces", flags->pieces, "pieces of each text")
      ->type_name("N")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  sub->add_flag("--full", flags->full, "the long version: 8,192 tokens, more points");
  sub->add_option("--out", flags->out, "where results go; a run that was stopped goes on from there")
      ->type_name("DIR")
      ->capture_default_str();
  sub->add_flag("--json", flags->json, "print one JSON object");
  flags->add_engine(*sub);
  std::string list = "Tasks:\n";
  for (const auto& t : eval::tasks()) list += fmt::format("  {:<16}{}\n", t.name, t.what);
  sub->footer(fmt::format(
      "{}Without --top-k-blocks K is an eighth of the context's blocks; --context N is the length of a piece.\n"
      "Example:\n  oasis eval quality -m model.gguf --draft eagle3:HEAD --context 8192\n{}",
      list, kExitCodes));
  sub->callback([flags, sub, &exit_code] { exit_code = run(*flags, sub->get_option("--top-k-blocks")->count() > 0); });
}

}  // namespace oasis::app
