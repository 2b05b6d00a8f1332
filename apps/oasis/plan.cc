// oasis plan: where every byte would go, and how many sequences fit, before anything is allocated.
#include <nlohmann/json.hpp>

#include "oasis/base/units.h"
#include "oasis/checks.h"
#include "oasis/common.h"
#include "oasis/draft/make_drafter.h"
#include "oasis/engine/memory_plan.h"
#include "oasis/flags.h"

namespace oasis::app {
namespace {

struct PlanFlags : EngineFlags {
  std::string config_json;
  int64_t context = 0;
  int32_t concurrency = 1;
  double link_gbps = 0, step_ms = 0;
  bool json = false;
};

Result<engine::DrafterSizes> drafter_sizes(const PlanFlags& f, const std::optional<model::Checkpoint>& checkpoint) {
  if (!checkpoint) {
    if (f.config.draft.starts_with("eagle3") || f.config.draft.starts_with("auto:")) {
      return invalid_argument("--draft {}: a head's sizes need the model (-m)", f.config.draft);
    }
    return engine::DrafterSizes{};
  }
  const int32_t drafts = f.config.accept_drafts ? f.config.draft_tokens + 1 : 1;
  const int32_t rows = std::max(f.config.prefill_chunk, f.config.max_sequences * (1 + drafts));
  OASIS_ASSIGN_OR_RETURN(
      auto d, draft::plan_drafter(
                  f.config.draft, *checkpoint,
                  {.max_sequences = f.config.max_sequences, .max_rows = rows, .block_size = f.config.block_size}));
  return engine::DrafterSizes{.fast_bytes = d.fast_bytes,
                              .home_bytes = d.home_bytes,
                              .feature_dim = d.feature_dim,
                              .scratch_bytes = d.scratch_bytes};
}

int run(PlanFlags& f) {
  if (Status s = f.resolve(); !s.ok()) return fail(s);
  if (f.model.empty() == f.config_json.empty())
    return fail(invalid_argument("give exactly one of -m MODEL and --config config.json"));
  f.config.max_context = f.context;
  f.config.max_sequences = f.concurrency;
  if (Status s = engine::validate(f.config); !s.ok()) return fail(s);
  std::optional<model::Checkpoint> checkpoint;
  model::ModelConfig m;
  if (!f.model.empty()) {
    auto opened = model::Checkpoint::open(f.model);
    if (!opened.ok()) return fail(opened.status(), kFailed);
    m = opened->config();
    checkpoint.emplace(std::move(*opened));
  } else {
    auto config = model::read_config_json(f.config_json);
    if (!config.ok()) return fail(config.status(), kFailed);
    m = std::move(*config);
  }
  auto sizes = drafter_sizes(f, checkpoint);
  if (!sizes.ok()) return fail(sizes.status());
  auto planned = engine::plan_memory(m, f.config, *sizes);
  if (!planned.ok()) return fail(planned.status());
  const auto& p = *planned;
  const auto& c = p.core;

  // Dense: every block of every sequence in the fast tier.
  const int64_t dense_each = int64_t{c.max_blocks} * c.shape.page_bytes();
  const int64_t fast = f.config.fast_memory > 0 ? static_cast<int64_t>(f.config.fast_memory) : p.fast_bytes();
  const int64_t dense_batch = fast / dense_each;
  const int64_t overhead = p.map_bytes / c.max_sequences + sizes->fast_bytes / c.max_sequences;
  const int64_t sparse_batch = fast / (p.fast_bytes_per_sequence + overhead);
  const int64_t capacity_need = int64_t{c.max_sequences} * c.max_blocks * p.home_bytes;
  const int64_t capacity = f.config.capacity_file.empty() ? p.capacity_memory_bytes
                           : p.capacity_file_bytes > 0    ? p.capacity_file_bytes
                                                          : capacity_need;
  // The most that the cap lets through in one step of all sequences.
  const int64_t step_blocks = int64_t{c.cap()} * c.shape.layers * c.shape.kv_heads * c.max_sequences;
  const int64_t step_bytes = step_blocks * c.shape.block_head_bytes();

  nlohmann::ordered_json j;
  j["fast"] = {{"bytes", p.fast_bytes()},
               {"kv_bytes", p.kv_bytes},
               {"summary_bytes", p.summary_bytes},
               {"map_bytes", p.map_bytes},
               {"draft_bytes", p.draft_bytes},
               {"bytes_per_sequence", p.fast_bytes_per_sequence},
               {"sequences_at_once", p.sequences_at_once}};
  j["capacity"] = {{"bytes", capacity}, {"needed_bytes", capacity_need}, {"home_bytes", p.home_bytes}};
  j["beside"] = {{"weights_bytes", checkpoint ? static_cast<int64_t>(checkpoint->weight_bytes()) : 0},
                 {"prefill_workspace_bytes", p.prefill_workspace_bytes},
                 {"activation_bytes", p.activation_bytes}};
  j["batch"] = {{"dense", dense_batch}, {"oasis", sparse_batch}};
  j["settings"] = {
      {"K", c.attend_blocks}, {"R", c.resident_blocks}, {"C", c.cap()}, {"kv_dtype", kv::to_string(c.shape.type)}};
  j["link"] = {{"bytes_per_step_at_cap", step_bytes}, {"block_heads_per_step_at_cap", step_blocks}};
  if (f.link_gbps > 0) {
    const double rate = f.link_gbps * 1e9;
    j["link"]["ms_per_step_at_cap"] = static_cast<double>(step_bytes) / rate * 1e3;
    if (f.step_ms > 0) {
      j["link"]["budget_bytes_per_step"] = static_cast<int64_t>(rate * f.step_ms / 1e3);
      j["link"]["budget_block_heads_per_head"] =
          rate * f.step_ms / 1e3 / static_cast<double>(c.shape.block_head_bytes()) /
          static_cast<double>(c.shape.layers * c.shape.kv_heads * c.max_sequences);
    }
  }
  if (f.json) {
    emit("{}\n", j.dump(2));
  } else {
    emit("{} sequences of {} tokens, K = {}, R = {}, C = {} blocks of {} tokens, KV in {}\n\n", f.concurrency,
         f.context, c.attend_blocks, c.resident_blocks, c.cap(), c.shape.block_size, kv::to_string(c.shape.type));
    emit("fast tier      {:>10}  KV pages {}, summaries {}, maps {}, draft KV {}\n", format_bytes(p.fast_bytes()),
         format_bytes(p.kv_bytes), format_bytes(p.summary_bytes), format_bytes(p.map_bytes),
         format_bytes(p.draft_bytes));
    emit("capacity tier  {:>10}  {} a block of {} tokens\n", format_bytes(capacity_need), format_bytes(p.home_bytes),
         c.shape.block_size);
    emit("beside them    {:>10}  weights {}, prefill workspace {}, activations {}\n",
         format_bytes(p.prefill_workspace_bytes + p.activation_bytes +
                      (checkpoint ? static_cast<int64_t>(checkpoint->weight_bytes()) : 0)),
         checkpoint ? format_bytes(static_cast<int64_t>(checkpoint->weight_bytes())) : std::string("not counted"),
         format_bytes(p.prefill_workspace_bytes), format_bytes(p.activation_bytes));
    emit("largest batch  {:>10}  dense {}, in {} of fast memory\n", sparse_batch, dense_batch, format_bytes(fast));
    emit("link           {:>10}  a step at most ({} block-heads a head, all sequences)\n", format_bytes(step_bytes),
         c.cap());
    if (f.link_gbps > 0) {
      emit("               {:>7.2f} ms  of that at {} GB/s\n",
           static_cast<double>(step_bytes) / (f.link_gbps * 1e9) * 1e3, f.link_gbps);
      if (f.step_ms > 0) {
        emit("               {:>10.1f}  block-heads a head fit a step of {} ms\n",
             j["link"]["budget_block_heads_per_head"].get<double>(), f.step_ms);
      }
    }
  }
  if (sparse_batch < f.concurrency && f.config.fast_memory > 0) {
    return fail(resource_exhausted("--fast-memory holds {} of {} sequences; short by {}", sparse_batch, f.concurrency,
                                   format_bytes((p.fast_bytes_per_sequence + overhead) * f.concurrency - fast)));
  }
  if (capacity_need > capacity) {
    return fail(resource_exhausted(
        "the capacity tier (--capacity-memory, --capacity-file) needs {} and has {}; short by {}",
        format_bytes(capacity_need), format_bytes(capacity), format_bytes(capacity_need - capacity)));
  }
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  auto* sub = app.add_subcommand("plan", "say where every byte would go, without allocating anything");
  sub->add_option("-m,--model", flags->model, "a .gguf file or a Hugging Face folder")->type_name("PATH");
  sub->add_option("--config", flags->config_json, "instead: the config.json of a model that is not here")
      ->type_name("FILE");
  sub->add_option("--concurrency", flags->concurrency, "sequences at once")
      ->type_name("N")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  auto* link = sub->add_option("--link-gbps", flags->link_gbps, "rate between the tiers, 10^9 bytes a second")
                   ->type_name("X")
                   ->check(number_above(0, 1e6));
  sub->add_option("--step-ms", flags->step_ms, "with --link-gbps: the time of a decode step, for the budget of a step")
      ->type_name("X")
      ->check(number_above(0, 1e6))
      ->needs(link);
  sub->add_flag("--json", flags->json, "print one JSON object");
  flags->add_engine(*sub);
  sub->get_option("--context")->description("longest sequence in tokens, prompt and output")->required();
  sub->footer(
      "Exits with 1 and the shortfall when it does not fit.\n"
      "Example:\n"
      "  oasis plan --config config.json --context 32768 --concurrency 64 --fast-memory 60GiB --capacity-memory 512GiB "
      "--link-gbps 50");
  sub->callback([flags, &exit_code] {
    flags->context = flags->config.max_context;
    exit_code = run(*flags);
  });
}

}  // namespace oasis::app
