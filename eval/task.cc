#include "eval/task.h"

#include <cmath>

namespace oasis::eval {
namespace {

constexpr Task kTasks[] = {
    {"quality", "perplexity and KL to dense of every policy, by kind of text; or --tasks FILE.jsonl", quality},
    {"agreement", "predicted against true top-K: by layer, by drafter, by right and wrong drafts", agreement},
    {"cap-sweep", "the fetch ratio from 0.01 to all: bytes a step against quality", cap_sweep},
    {"k-sweep", "K from 32 to all", k_sweep},
    {"resident-sweep", "the resident set from K to 4 K: misses, bytes, quality", resident_sweep},
    {"scorers", "rules that rank blocks: KL to dense with exact reads", scorers},
    {"kv-types", "keys and values in FP8 instead of bf16: KL to dense", kv_types},
    {"recall", "a needle, a verbatim copy, a key-value lookup over depth and length, for every policy", recall},
    {"drift", "topic switch, inserted passage, copied passage: cover and agreement step by step", drift},
    {"accept", "accepted length and agreement by draft length", accept},
    {"prefix", "time to the first token with 0 to 100% of the prompt cached, DRAM and file", prefix},
    {"roofline", "decode speed against tokens per byte of KV moved", roofline},
};

uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t h = 1469598103934665603u;  // FNV-1a
  for (const int32_t t : tokens) h = (h ^ static_cast<uint32_t>(t)) * 1099511628211u;
  return h;
}

}  // namespace

std::span<const Task> tasks() { return kTasks; }

Result<std::vector<Json>> run_units(const Context& context, const std::string& task, const std::vector<Unit>& units) {
  OASIS_ASSIGN_OR_RETURN(Journal journal, Journal::open(context.out + "/" + task + ".journal"));
  std::vector<Json> out;
  for (const Unit& unit : units) {
    if (context.progress) context.progress(static_cast<int64_t>(out.size()), static_cast<int64_t>(units.size()));
    const Json* done = journal.find(unit.key);
    if (!done) {
      if (context.stopped && context.stopped()) {
        return Status(StatusCode::kCancelled, fmt::format("stopped after {} of {} runs; the same command goes on there",
                                                          out.size(), units.size()));
      }
      OASIS_ASSIGN_OR_RETURN(const Json value, unit.work());
      OASIS_RETURN_IF_ERROR(journal.put(unit.key, value));
      done = journal.find(unit.key);
    }
    out.push_back(*done);
  }
  return out;
}

std::string describe(const Context& context, const engine::EngineConfig& c, std::span<const int32_t> tokens) {
  return fmt::format(
      "model{:016x} attention{} b{} K{} R{} score{} fetch{} {} {} n{} accept{} file:{} kv {} summaries {} "
      "tokens{:016x}",
      context.checkpoint.fingerprint(), static_cast<int>(c.attention), c.block_size, c.top_k_blocks, c.resident_ratio,
      static_cast<int>(c.block_score), static_cast<int>(c.fetch), c.fetch_ratio, c.draft,
      c.accept_drafts ? c.draft_tokens : 0, c.accept_drafts, !c.capacity_file.empty(), kv::to_string(c.kv_type),
      kv::to_string(c.summary_type), hash_of(tokens));
}

Variant policy(const Context& context, std::string name, lookahead::FetchMode fetch, double resident_ratio) {
  Variant v{std::move(name), context.base};
  v.config.attention = engine::Attention::kSparse;
  v.config.fetch = fetch;
  v.config.resident_ratio = resident_ratio;
  v.config.agreement_every = 4;
  return v;
}

Variant dense(const Context& context) {
  Variant v{"dense", context.base};
  v.config.attention = engine::Attention::kDense;
  v.config.draft = "none";
  v.config.accept_drafts = false;
  return v;
}

Result<std::vector<std::vector<Json>>> forced_grid(const Context& context, const std::string& task,
                                                   const std::vector<Variant>& variants) {
  if (context.steps < 2 || context.steps >= context.context) {
    return invalid_argument("--steps {}: 2 to {}, less than --context", context.steps, context.context - 1);
  }
  // The dense run of the piece at hand.
  std::vector<int32_t> piece;
  Reference reference;
  const auto prompt = static_cast<size_t>(context.context - context.steps);
  const auto run = [&](const Variant& v, const Reference* held, Reference* record) -> Result<Run> {
    OASIS_ASSIGN_OR_RETURN(auto session, Session::create(context.device, context.checkpoint, v, context.context));
    const std::span<const int32_t> all(piece);
    return session.run(
        {.prompt = all.first(prompt), .forced = all.subspan(prompt), .reference = held, .record = record});
  };
  std::vector<Unit> units;
  for (const Text& text : context.texts) {
    for (int p = 0; p < context.pieces; ++p) {
      OASIS_ASSIGN_OR_RETURN(const auto tokens, cut(text, context.context, p, context.pieces));
      for (const Variant& v : variants) {
        const auto work = [&, tokens, v]() -> Result<Json> {
          if (piece != tokens) {
            piece = tokens;
            OASIS_RETURN_IF_ERROR(run(dense(context), nullptr, &reference).status());
          }
          OASIS_ASSIGN_OR_RETURN(const Run r, run(v, &reference, nullptr));
          Json j = sums(r, context.heads());
          if (v.finish) v.finish(j);
          return j;
        };
        units.push_back({fmt::format("{} steps{}{}", describe(context, v.config, tokens), context.steps,
                                     v.finish ? " " + v.name : ""),
                         work});
      }
    }
  }
  OASIS_ASSIGN_OR_RETURN(const auto results, run_units(context, task, units));
  std::vector<std::vector<Json>> out(variants.size(), std::vector<Json>(context.texts.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t per_text = variants.size() * static_cast<size_t>(context.pieces);
    add(out[i % variants.size()][i / per_text], results[i]);
  }
  return out;
}

std::vector<std::string> quality_columns(std::vector<std::string> first) {
  for (const char* c :
       {"agreement", "cover", "misses", "fetched", "bytes/step", "tokens/s", "perplexity", "KL", "top-1", "tokens"}) {
    first.push_back(c);
  }
  return first;
}

std::vector<Json> quality_row(std::vector<Json> first, const Json& s) {
  const bool sparse = s["measured"].get<int64_t>() > 0;
  const auto maybe = [&](double v) { return sparse ? Json(v) : Json(); };
  first.push_back(maybe(ratio(s, "agreement", "measured")));
  first.push_back(maybe(ratio(s, "cover", "measured")));
  first.push_back(maybe(ratio(s, "misses", "head_steps")));
  first.push_back(maybe(ratio(s, "fetched", "head_steps")));
  first.push_back(maybe(std::round(ratio(s, "bytes", "steps"))));
  first.push_back(s["timed_tokens"].get<int64_t>() ? Json(1 / ratio(s, "timed_seconds", "timed_tokens")) : Json());
  first.push_back(std::exp(ratio(s, "nll", "tokens")));
  first.push_back(ratio(s, "kl", "tokens"));
  first.push_back(ratio(s, "top1", "tokens"));
  first.push_back(s["tokens"]);
  return first;
}

std::string grid_title(const Context& context) {
  return fmt::format("{}: pieces of {} tokens, the last {} forced, K={}, draft {}", context.checkpoint.config().name,
                     context.context, context.steps, context.base.top_k_blocks, context.base.draft);
}

}  // namespace oasis::eval
