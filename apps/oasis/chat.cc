// oasis chat: a conversation in the terminal, or line by line through a pipe.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <limits>

#include "oasis/checks.h"
#include "oasis/common.h"
#include "oasis/flags.h"
#include "oasis/text/chat_prompt.h"

namespace oasis::app {
namespace {

struct ChatFlags : EngineFlags {
  std::string system;
  int max_tokens = 512;
  SamplingFlags sampling;
};

constexpr std::string_view kHelp =
    "/reset  start a new conversation\n"
    "/stats  what the last answer cost\n"
    "/help   this text\n"
    "/quit   end (or Ctrl-D)\n";

class Conversation {
 public:
  Conversation(ChatFlags& flags, OpenModel& model, engine::Engine& engine, text::ChatTemplate chat_template)
      : f_(flags), model_(model), engine_(engine), template_(std::move(chat_template)) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!f_.system.empty()) messages_.push_back({.role = "system", .content = f_.system});
  }

  // Streams the answer to stdout. An error leaves the conversation as it was.
  Status say(const std::string& line) {
    messages_.push_back({.role = "user", .content = line});
    text::ChatInput input;
    input.messages = messages_;
    auto ids = text::encode_chat(*model_.tokenizer, template_, std::move(input));
    Status status = ids.ok() ? answer(std::move(*ids)) : ids.status();
    if (!status.ok()) messages_.pop_back();
    return status;
  }

  void print_stats() const {
    const auto m = engine_.metrics();
    emit("{} prompt tokens, {} of them cached; first token after {:.2f} s; {} tokens in {:.2f} s; agreement {:.3f}\n",
         stats_.prompt_tokens, stats_.cached_tokens, stats_.queued_seconds + stats_.prefill_seconds,
         stats_.output_tokens, stats_.decode_seconds, m.core.agreement());
  }

 private:
  Status answer(std::vector<int32_t> ids) {
    Progress progress("prefill");
    std::string text;
    Status error;
    engine::Request r;
    r.prompt = std::move(ids);
    r.max_tokens = f_.max_tokens;
    r.sampling = f_.sampling.params;
    r.on_event = [&](const engine::Event& e) {
      if (e.tokens.empty() && e.finish == engine::FinishReason::kNone) {
        progress.update(e.prefilled, e.prompt_tokens);
      } else {
        progress.clear();
      }
      text += e.text;
      write_out(e.text);
      if (e.finish == engine::FinishReason::kError) error = e.error;
    };
    OASIS_ASSIGN_OR_RETURN(const auto id, engine_.submit(std::move(r)));
    do {
      if (interrupted() != 0 || output_lost()) engine_.cancel(id);
    } while (engine_.step());
    progress.clear();
    write_out("\n");
    stats_ = engine_.take_stats(id).value_or(engine::RequestStats{});
    if (!error.ok()) return error;
    messages_.push_back({.role = "assistant", .content = text});
    return {};
  }

  ChatFlags& f_;
  OpenModel& model_;
  engine::Engine& engine_;
  text::ChatTemplate template_;
  std::vector<text::ChatMessage> messages_;
  engine::RequestStats stats_;
};

// Until /quit or the end of the input. In a terminal, Ctrl-C ends an answer, or, between two of them, the program.
int converse(Conversation& conversation, bool terminal) {
  if (terminal) write_out(kHelp);
  std::string line;
  while (!output_lost()) {
    if (terminal) write_out("> ");
    const bool got = static_cast<bool>(std::getline(std::cin, line));
    if (interrupted() != 0) return 128 + interrupted();
    if (!got || line == "/quit") break;
    if (line.empty()) continue;
    if (line == "/reset") {
      conversation.reset();
    } else if (line == "/stats") {
      conversation.print_stats();
    } else if (line == "/help") {
      write_out(kHelp);
    } else if (Status s = conversation.say(line); !s.ok()) {
      fail(s);
      if (!terminal) return kFailed;
      write_out("(/reset starts a new conversation)\n");
    } else if (interrupted() == SIGINT && terminal) {
      forget_interrupt();
    } else if (interrupted() != 0) {
      return 128 + interrupted();
    }
  }
  return kDone;
}

int run(ChatFlags& f) {
  if (Status s = f.resolve(); !s.ok()) return fail(s);
  if (Status s = f.sampling.resolve(); !s.ok()) return fail(s);
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  if (opened->tokenizer->chat_template().empty()) {
    return fail(unsupported("'{}' has no chat template: use oasis generate", f.model));
  }
  auto chat_template = text::ChatTemplate::compile(opened->tokenizer->chat_template());
  if (!chat_template.ok()) return fail(chat_template.status());
  watch_interrupt();
  auto engine = engine::Engine::create(*opened->device, *opened->checkpoint, &*opened->tokenizer, f.config);
  if (!engine.ok()) return fail(engine.status());
  Conversation conversation(f, *opened, **engine, std::move(*chat_template));
  const int code = converse(conversation, ::isatty(STDIN_FILENO) == 1);
  if (code == kDone) {
    if (Status s = (*engine)->save_prefix_cache(); !s.ok()) complain(s.message());
  }
  return code;
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  auto* sub = app.add_subcommand("chat", "talk to a model");
  flags->add_model(*sub);
  sub->add_option("--system", flags->system, "the system message")->type_name("TEXT");
  sub->add_option("-n,--max-tokens", flags->max_tokens, "tokens of an answer at most")
      ->type_name("N")
      ->check(whole_number(1, std::numeric_limits<int32_t>::max()))
      ->capture_default_str();
  flags->sampling.add(*sub);
  flags->add_engine(*sub);
  sub->get_option("--context")->description("longest conversation in tokens; default: the model's context");
  sub->footer(
      fmt::format("Earlier turns come from the prefix cache, so a later turn costs only what is new.\n"
                  "Without a terminal, every line of standard input is a message.\n\nIn a conversation:\n{}\n"
                  "Example:\n  oasis chat -m model.gguf --system 'You answer briefly.' --fast-memory 64MiB\n{}",
                  kHelp, kExitCodes));
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
