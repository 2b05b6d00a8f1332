// Teacher-forced runs of one engine, measured step by step.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "oasis/engine/engine.h"

namespace oasis::eval {

using Json = nlohmann::ordered_json;

// What is varied: an engine under a name.
struct Variant {
  std::string name;
  engine::EngineConfig config;
  // A study with hooks in `config`: adds its figures of the run that ended to the run's sums. Null: none.
  std::function<void(Json& sums)> finish = {};
};

// Log-probabilities of the dense run, [output index][vocab]; index 0 comes from the prefill, which is dense everywhere.
using Reference = std::vector<std::vector<float>>;

// One decode step. Sums over its tokens, or over its (layer, KV head) pairs.
struct Step {
  int32_t first = 0, tokens = 0;                      // index of its first output token, tokens advanced
  double nll = 0, kl = 0, top1 = 0, right_token = 0;  // right_token: tokens that the model would have chosen itself
  double agreement = 0, cover = 0;
  int64_t measured = 0;              // pairs behind agreement and cover
  std::vector<double> layer_sum;     // [layers], agreement
  std::vector<int64_t> layer_count;  // [layers]
  int64_t misses = 0, fetched = 0, demand = 0, bytes = 0;
  int64_t compared = 0, right = 0, accepted = 0;  // drafts
  double seconds = 0;                             // of the engine, without what it takes to look at logits
};

struct Run {
  std::vector<Step> steps;
  std::vector<int32_t> tokens;
  engine::RequestStats stats;
  double first_token_seconds = 0;
};

class Session {
 public:
  // Borrows device and checkpoint. `length`: tokens of the longest request, prompt and output.
  static Result<Session> create(Device& device, const model::Checkpoint& checkpoint, Variant variant, int64_t length);

  // `forced` follows `prompt`; with no forced tokens the model goes on by itself for `free_tokens` (greedy unless
  // `sampling` says more). `reference`: what kl and top1 are held against, null: they stay 0; `record`, where not null,
  // takes this run's log-probabilities. Prompts that begin alike are prefilled once.
  struct Ask {
    std::span<const int32_t> prompt, forced;
    int32_t free_tokens = 0;
    const Reference* reference = nullptr;
    Reference* record = nullptr;
    bool score = true;  // false: logits are not looked at, for timing
    engine::SamplingParams sampling = {};
    bool stop_at_eos = false;
  };
  Result<Run> run(const Ask& ask);

  const engine::Engine& engine() const { return *engine_; }

 private:
  std::unique_ptr<engine::Engine> engine_;
};

// The sums of a run as they are kept and added up: tokens, steps, nll, kl, top1, ..., layer_sum, layer_count, kl and
// tokens of each quarter of the output, and timed_seconds and timed_tokens: of steps in which agreement is not
// measured.
Json sums(const Run& run, int64_t heads);
// Adds numbers and arrays of numbers, member by member; `to` may be null.
void add(Json& to, const Json& from);
// to[name] / to[count], 0 where there is nothing.
double ratio(const Json& sums, const char* name, const char* count);

}  // namespace oasis::eval
