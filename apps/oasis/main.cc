// oasis: long contexts on little fast memory. One file a subcommand.
#include <csignal>
#include <exception>

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

}  // namespace

int main(int argc, char** argv) {
  oasis::app::hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is a failed write
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
    app.exit(e);                       // --help, --version
  } catch (const std::exception& e) {  // bad_alloc, say
    return oasis::app::fail(oasis::Status(oasis::StatusCode::kInternal, e.what()));
  }
  return oasis::app::finish_output(exit_code);
}
