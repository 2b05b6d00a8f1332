// What the subcommands share besides flags: exit codes, errors, progress.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "oasis/base/status.h"

namespace oasis::app {

// Exit codes: 0 done; 1 it could not be done (a file is missing or damaged, memory does not suffice); 2 the command
// line is wrong (a flag, a value, or one that does not suit the model). Ended by a signal: 128 + its number.
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;
inline constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 it could not be done, 2 the command line is wrong, 130 ended by Ctrl-C.";

// Prints "oasis: message" and returns the exit code that fits the error, or the one given.
int fail(const Status& status);
int fail(const Status& status, int code);
// Prints "oasis: message" as one line, whatever bytes are in it.
void complain(std::string_view message);

// At the start: a standard stream that is closed stays one that can neither be read nor written. Otherwise its number
// would go to the next file that is opened, and our output into that file.
void hold_standard_streams();

// To stdout, at once. Never throws: what could not be written shows in output_lost() and in the exit code.
void write_out(std::string_view text);
template <typename... Args>
void emit(fmt::format_string<Args...> f, Args&&... args) {
  write_out(fmt::format(f, std::forward<Args>(args)...));
}
bool output_lost();
// Before the program ends: flushes stdout. Output that nobody could read makes a success a failure.
int finish_output(int code);

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

// Ctrl-C, SIGTERM, and a terminal that is closed: the first asks the work to end, the second ends the process.
void watch_interrupt();
// The signal that asked, or 0.
int interrupted();
void forget_interrupt();

// Subcommands: each adds itself to the app and, if chosen, leaves its exit code in `exit_code`.
void add_generate(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);

}  // namespace oasis::app
