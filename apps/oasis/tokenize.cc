// oasis tokenize: text to ids and back.
#include "oasis/common.h"
#include "oasis/flags.h"

namespace oasis::app {
namespace {

struct TokenizeFlags : EngineFlags {
  std::optional<std::string> prompt, file, decode;
  bool special = false, json = false, count = false;
};

int run(TokenizeFlags& f) {
  if (f.prompt.has_value() + f.file.has_value() + f.decode.has_value() > 1) {
    return fail(invalid_argument("give at most one of -p TEXT, -f FILE and --decode IDS"));
  }
  std::string text = f.prompt.value_or("");
  if (!f.prompt && !f.decode) {
    auto read = read_text(f.file.value_or("-"));
    if (!read.ok()) return fail(read.status(), kFailed);
    text = std::move(*read);
  }
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  if (f.decode) {
    auto ids = parse_ids("--decode", *f.decode);
    if (!ids.ok()) return fail(ids.status());
    if (Status s = check_ids("--decode", *ids, opened->checkpoint->config().vocab); !s.ok()) return fail(s);
    emit("{}\n", opened->tokenizer->decode(*ids));
    return kDone;
  }
  const auto ids = opened->tokenizer->encode(text, f.special, false);
  if (f.count) {
    emit("{}\n", ids.size());
  } else {
    std::string list;
    for (const int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
    emit("{}{}{}\n", f.json ? "[" : "", list, f.json ? "]" : "");
  }
  return kDone;
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  auto* sub = app.add_subcommand("tokenize", "turn text into token ids, or ids into text");
  flags->add_model(*sub);
  sub->add_option("-p,--prompt", flags->prompt, "the text; without -p and -f it is read from standard input")
      ->type_name("TEXT");
  sub->add_option("-f,--file", flags->file, "read the text from a file")->type_name("FILE");
  sub->add_option("--decode", flags->decode, "ids to turn back into text, for example 1,2,3")->type_name("IDS");
  sub->add_flag("--special", flags->special, "read control tokens such as <|im_start|> as such");
  sub->add_flag("--count", flags->count, "print only the number of tokens");
  sub->add_flag("--json", flags->json, "print a JSON array");
  sub->footer(
      "Examples:\n"
      "  oasis tokenize -m model.gguf -p 'Hello there'\n"
      "  oasis tokenize -m model.gguf --count < book.txt\n"
      "  oasis tokenize -m model.gguf --decode 19556,665");
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
