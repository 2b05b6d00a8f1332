// oasis info: what a checkpoint is and what this machine brings.
#include <map>
#include <nlohmann/json.hpp>

#include "oasis/base/units.h"
#include "oasis/common.h"
#include "oasis/flags.h"
#include "oasis/kernels/cpu_features.h"

namespace oasis::app {
namespace {

struct InfoFlags : EngineFlags {
  bool json = false;
};

std::string_view level_name() {
  switch (kernels::cpu_level()) {
    case kernels::CpuLevel::kPortable:
      return "portable";
    case kernels::CpuLevel::kAvx2:
      return "avx2";
    case kernels::CpuLevel::kAvx512:
      return "avx512 (vnni, bf16)";
  }
  return "unknown";
}

// Bytes of the weights by element type, a tied head once.
std::map<std::string, int64_t> bytes_by_type(const model::ModelWeights& w) {
  std::map<std::string, int64_t> bytes;
  const auto add = [&](const WeightView& v) { bytes[std::string(info(v.type).name)] += v.rows * v.row_bytes(); };
  add(w.embed);
  if (w.lm_head.data != w.embed.data) add(w.lm_head);
  for (const auto& l : w.layers) {
    for (const WeightView& v : {l.q, l.k, l.v, l.o, l.gate, l.up, l.down}) add(v);
  }
  return bytes;
}

int run(InfoFlags& f) {
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  const auto& m = opened->checkpoint->config();
  const auto types = bytes_by_type(opened->checkpoint->weights());
  const int64_t kv = int64_t{2} * m.layers * m.kv_heads * m.head_dim * 2;
  nlohmann::ordered_json j;
  j["name"] = m.name;
  j["architecture"] = std::string(to_string(m.arch));
  j["layers"] = m.layers;
  j["hidden"] = m.hidden;
  j["heads"] = m.heads;
  j["kv_heads"] = m.kv_heads;
  j["head_dim"] = m.head_dim;
  j["intermediate"] = m.intermediate;
  j["vocab"] = m.vocab;
  j["context"] = m.context;
  j["rope_theta"] = m.rope.theta;
  j["tied_embeddings"] = m.tied_embeddings;
  j["weight_bytes"] = opened->checkpoint->weight_bytes();
  j["weight_bytes_by_type"] = types;
  j["kv_bytes_per_token"] = kv;
  j["tokenizer"] = std::string(text::to_string(opened->tokenizer->pre()));
  j["chat_template"] = !opened->tokenizer->chat_template().empty();
  j["eos_ids"] = m.eos_ids;
  j["device"] = opened->device->name();
  j["instruction_set"] = std::string(level_name());
  if (f.json) {
    emit("{}\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return kDone;
  }
  emit("model        {} ({})\n", m.name.empty() ? f.model : m.name, to_string(m.arch));
  emit("shape        {} layers, hidden {}, {} heads of {} over {} KV heads, MLP {}\n", m.layers, m.hidden, m.heads,
       m.head_dim, m.kv_heads, m.intermediate);
  emit("vocabulary   {} tokens, {}{}\n", m.vocab, text::to_string(opened->tokenizer->pre()),
       opened->tokenizer->chat_template().empty() ? ", no chat template" : ", chat template");
  emit("context      {} tokens, RoPE base {}\n", m.context, m.rope.theta);
  emit("weights      {}", format_bytes(opened->checkpoint->weight_bytes()));
  for (const auto& [type, bytes] : types) emit(", {} {}", type, format_bytes(static_cast<uint64_t>(bytes)));
  emit("\nKV           {} a token, {} at full context\n", format_bytes(static_cast<uint64_t>(kv)),
       format_bytes(static_cast<uint64_t>(kv * m.context)));
  emit("device       {}, {}\n", opened->device->name(), level_name());
  return kDone;
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<InfoFlags>();
  auto* sub = app.add_subcommand("info", "describe a model and the machine");
  flags->add_model(*sub);
  sub->add_flag("--json", flags->json, "print one JSON object");
  sub->footer("Example:\n  oasis info -m model.gguf");
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
