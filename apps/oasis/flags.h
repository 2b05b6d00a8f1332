// The flags that make an engine, and the model they open: shared by the subcommands.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/device/device.h"
#include "oasis/engine/engine.h"
#include "oasis/model/checkpoint.h"
#include "oasis/text/tokenizer.h"

namespace oasis::app {

// Flags of every subcommand that runs a model.
struct EngineFlags {
  std::string model;
  std::string device = "cpu";
  int threads = 0;
  std::string attention = "auto", block_score = "shrunk", fetch = "bounded", kv_dtype = "bf16", summaries = "bf16";
  std::optional<std::string> fast_memory, device_memory, capacity_memory, capacity_file;
  engine::EngineConfig config;

  void add_model(CLI::App& app);
  void add_engine(CLI::App& app);
  // Fills config from the texts. Errors name the flag.
  Status resolve();
};

// Flags that shape what is sampled.
struct SamplingFlags {
  engine::SamplingParams params;
  std::vector<std::string> logit_bias;  // ID:VALUE

  void add(CLI::App& app);
  Status resolve();
};

struct OpenModel {
  std::unique_ptr<Device> device;
  std::optional<model::Checkpoint> checkpoint;
  std::optional<text::Tokenizer> tokenizer;
};
Result<OpenModel> open_model(const EngineFlags& flags);
Result<std::unique_ptr<Device>> open_device(const EngineFlags& flags);

// All of a file, or of standard input for "-".
Result<std::string> read_text(const std::string& path);
// "1,2,3" or "[1, 2, 3]" -> ids, none below 0. The error names the flag.
Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view text);
Status check_ids(std::string_view flag, const std::vector<int32_t>& ids, int64_t vocab);

// What `--json` says of the engine's counters, in every subcommand alike: memory, fetch, lookahead, stages.
std::string metrics_json(const engine::Engine& engine);

}  // namespace oasis::app
