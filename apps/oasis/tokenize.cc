// oasis tokenize: text to ids and back.
#include <iostream>
#include <iterator>

#include "oasis/common.h"
#include "oasis/flags.h"

namespace oasis::app {
namespace {

struct TokenizeFlags : EngineFlags {
  std::string prompt, file, decode;
  bool special = false, json = false, count = false;
};

int run(TokenizeFlags& f) {
  const int given = !f.prompt.empty() + !f.file.empty() + !f.decode.empty();
  if (given > 1) return fail(invalid_argument("give one of -p TEXT, -f FILE and --decode IDS"));
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status());
  if (!f.decode.empty()) {
    auto ids = parse_ids(f.decode);
    if (!ids.ok()) return fail(ids.status());
    fmt::print("{}\n", opened->tokenizer->decode(*ids));
    return kDone;
  }
  std::string text = f.prompt;
  if (!f.file.empty()) {
    auto read = read_file(f.file);
    if (!read.ok()) return fail(read.status());
    text = std::move(*read);
  } else if (given == 0) {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  const auto ids = opened->tokenizer->encode(text, f.special, false);
  if (f.count) {
    fmt::print("{}\n", ids.size());
  } else {
    fmt::print("{}{}{}\n", f.json ? "[" : "", fmt::join(ids, ","), f.json ? "]" : "");
  }
  return kDone;
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  auto* sub = app.add_subcommand("tokenize", "turn text into token ids, or ids into text");
  flags->add_model(*sub);
  sub->add_option("-p,--prompt", flags->prompt, "the text; without -p and -f it is read from standard input");
  sub->add_option("-f,--file", flags->file, "read the text from a file");
  sub->add_option("--decode", flags->decode, "ids to turn back into text, for example 1,2,3");
  sub->add_flag("--special", flags->special, "read control tokens such as <|im_start|> as such");
  sub->add_flag("--count", flags->count, "print only the number of tokens");
  sub->add_flag("--json", flags->json, "print a JSON array");
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
