// What the subcommands share: the flags that make an engine, the model they open, how results and errors are printed.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "oasis/device/device.h"
#include "oasis/engine/engine.h"
#include "oasis/model/checkpoint.h"
#include "oasis/text/tokenizer.h"

namespace oasis::app {

// Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;

// Prints "oasis: message" and returns the exit code that fits the error.
int fail(const Status& status);

// Flags of every subcommand that runs a model.
struct EngineFlags {
  std::string model;
  std::string device = "cpu";
  int threads = 0;
  std::string attention = "auto", block_score = "shrunk", fetch = "bounded";
  std::string fast_memory, capacity_memory, capacity_file;
  engine::EngineConfig config;

  void add_model(CLI::App& app);
  void add_all(CLI::App& app);
  // Fills config from the texts. Errors name the flag.
  Status resolve();
};

struct OpenModel {
  std::unique_ptr<Device> device;
  std::optional<model::Checkpoint> checkpoint;
  std::optional<text::Tokenizer> tokenizer;
};
Result<OpenModel> open_model(const EngineFlags& flags);

// A progress bar on stderr, shown only when stderr is a terminal.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  void update(int64_t done, int64_t total);
  void clear();

 private:
  std::string what_;
  bool shown_, drawn_ = false;
  int last_ = -1;
};

// Peak resident set of this process, bytes.
int64_t peak_rss_bytes();

// Subcommands: each adds itself to the app and, if chosen, leaves its exit code in `exit_code`.
void add_generate(CLI::App& app, int& exit_code);

}  // namespace oasis::app
