// What the subcommands share besides flags: exit codes, errors, progress.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "oasis/base/status.h"

namespace oasis::app {

// Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong.
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;

// Prints "oasis: message" and returns the exit code that fits the error.
int fail(const Status& status);

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

// Ctrl-C: true once it was pressed. The first press asks the work to end, the second ends the process.
void watch_interrupt();
bool interrupted();

// Subcommands: each adds itself to the app and, if chosen, leaves its exit code in `exit_code`.
void add_generate(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);

}  // namespace oasis::app
