// oasis: long contexts on little fast memory. One file a subcommand.
#include <csignal>
#include <exception>
#include <new>
#include <sstream>
#include <system_error>

#include "oasis/common.h"

namespace {

// What CLI11 says, and where to read on.
int fail_usage(const CLI::App& app, const CLI::ParseError& e, int argc, char** argv) {
  const auto chosen = app.get_subcommands();
  const std::string help = chosen.empty() ? "oasis --help" : fmt::format("oasis {} --help", chosen[0]->get_name());
  if (chosen.empty() && argc > 1 && argv[1][0] != '-') {
    oasis::app::complain(fmt::format("'{}' is not a command (see {})", argv[1], help));
  } else {
    oasis::app::complain(fmt::format("{} (see {})", e.what(), help));
  }
  return oasis::app::kUsage;
}

// What no room could turn into a status: memory and threads that the system refuses.
oasis::Status what_failed(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) {
    return oasis::resource_exhausted(
        "memory does not suffice: the system gives no more (ulimit -v, a container's limit)");
  }
  const auto* refused = dynamic_cast<const std::system_error*>(&e);
  if (refused != nullptr && refused->code() == std::errc::resource_unavailable_try_again) {
    return oasis::resource_exhausted(
        "a thread could not be started: {}; allow more threads or memory (ulimit -u, -v), or ask for fewer (--threads)",
        refused->code().message());
  }
  return oasis::Status(oasis::StatusCode::kInternal, e.what());
}

}  // namespace

int main(int argc, char** argv) {
  oasis::app::hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is a failed write,
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file that may not grow
  CLI::App app{"oasis: runs language models whose KV cache does not fit the fast memory", "oasis"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "oasis 0.1.0");
  app.get_formatter()->column_width(34);
  app.footer(fmt::format("oasis COMMAND --help explains a command.\n{}", oasis::app::kExitCodes));
  int exit_code = oasis::app::kDone;
  oasis::app::add_generate(app, exit_code);
  oasis::app::add_chat(app, exit_code);
  oasis::app::add_serve(app, exit_code);
  oasis::app::add_bench(app, exit_code);
  oasis::app::add_eval(app, exit_code);
  oasis::app::add_plan(app, exit_code);
  oasis::app::add_info(app, exit_code);
  oasis::app::add_tokenize(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return fail_usage(app, e, argc, argv);
    std::ostringstream text;
    app.exit(e, text, text);  // --help, --version
    oasis::app::write_out(text.str());
  } catch (const std::exception& e) {
    return oasis::app::fail(what_failed(e));
  }
  return oasis::app::finish_output(exit_code);
}
