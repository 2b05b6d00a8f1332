// oasis: long contexts on little fast memory. One file a subcommand.
#include "oasis/common.h"

int main(int argc, char** argv) {
  CLI::App app{"oasis: runs language models whose KV cache does not fit the fast memory", "oasis"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "oasis 0.1.0");
  int exit_code = oasis::app::kDone;
  oasis::app::add_generate(app, exit_code);
  oasis::app::add_chat(app, exit_code);
  oasis::app::add_bench(app, exit_code);
  oasis::app::add_plan(app, exit_code);
  oasis::app::add_info(app, exit_code);
  oasis::app::add_tokenize(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    fmt::print(stderr, "oasis: {} (see oasis --help)\n", e.what());
    return oasis::app::kUsage;
  }
  return exit_code;
}
