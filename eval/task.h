// A task: what is asked of the engine, and what it answers. One file a task; run.h finds them by name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/report.h"
#include "eval/session.h"
#include "eval/svg.h"
#include "eval/text.h"
#include "oasis/text/tokenizer.h"

namespace oasis::eval {

struct Context {
  Device& device;
  const model::Checkpoint& checkpoint;
  const text::Tokenizer* tokenizer;  // null: tasks that build prompts from words are refused
  engine::EngineConfig base;         // what the user asked for; each task varies some of it. K > 0
  std::vector<Text> texts;
  int64_t context = 0;     // tokens of a piece, the forced ones included
  int64_t steps = 0;       // forced tokens at its end
  int pieces = 1;          // of each text
  bool full = false;       // the long version
  std::string tasks_file;  // JSONL, for `quality`
  std::string out;         // folder for the journal
  std::function<void(int64_t done, int64_t total)> progress;
  std::function<bool()> stopped;  // asks for an end; what is finished stays in the journal

  int64_t heads() const { return int64_t{checkpoint.config().layers} * checkpoint.config().kv_heads; }
};

struct Outcome {
  Table table;
  std::string picture;  // SVG
};

// One resumable piece of work.
struct Unit {
  std::string key;  // names everything its result depends on
  std::function<Result<Json>()> work;
};
// Results in the order of `units`; those in the journal of `task` are not run again.
Result<std::vector<Json>> run_units(const Context& context, const std::string& task, const std::vector<Unit>& units);

// Every setting of `config` that results depend on, the model and the tokens: part of a unit's key.
std::string describe(const Context& context, const engine::EngineConfig& config, std::span<const int32_t> tokens);

// The user's settings with sparse attention, this policy and R = ratio K.
Variant policy(const Context& context, std::string name, lookahead::FetchMode fetch, double resident_ratio);
Variant dense(const Context& context);

// Teacher-forced runs of all variants on all pieces, held against the dense run: sums [variant][text].
Result<std::vector<std::vector<Json>>> forced_grid(const Context& context, const std::string& task,
                                                   const std::vector<Variant>& variants);

// What a table over texts is of: model, pieces, forced tokens, K and drafter.
std::string grid_title(const Context& context);

// The columns that sweeps share, of one variant's sums, after its own: kind of text, agreement, cover, misses and
// fetched (block-heads a head and step), bytes a step, tokens a second, perplexity, KL to dense, next-token agreement
// with dense.
std::vector<std::string> quality_columns(std::vector<std::string> first);
std::vector<Json> quality_row(std::vector<Json> first, const Json& sums);

Result<Outcome> quality(const Context& context);
Result<Outcome> jsonl_tasks(const Context& context);
Result<Outcome> agreement(const Context& context);
Result<Outcome> cap_sweep(const Context& context);
Result<Outcome> k_sweep(const Context& context);
Result<Outcome> resident_sweep(const Context& context);
Result<Outcome> scorers(const Context& context);
Result<Outcome> kv_types(const Context& context);
Result<Outcome> recall(const Context& context);
Result<Outcome> drift(const Context& context);
Result<Outcome> accept(const Context& context);
Result<Outcome> prefix(const Context& context);
Result<Outcome> roofline(const Context& context);

struct Task {
  const char *name, *what;
  Result<Outcome> (*run)(const Context& context);
};
std::span<const Task> tasks();

}  // namespace oasis::eval
