// oasis serve: the engine behind the OpenAI API.
#include <csignal>
#include <filesystem>

#include "oasis/base/units.h"
#include "oasis/checks.h"
#include "oasis/common.h"
#include "oasis/flags.h"
#include "oasis/serve/server.h"

namespace oasis::app {
namespace {

struct ServeFlags : EngineFlags {
  serve::ServeConfig config_of_server;
  std::string model_name, log_format = "text", body_limit = "16MiB";
  std::optional<std::string> api_key_file;
};

Status resolve_server(ServeFlags& f) {
  auto& c = f.config_of_server;
  if (f.log_format == "json") {
    c.log_format = serve::LogFormat::kJson;
  } else if (f.log_format != "text") {
    return invalid_argument("--log-format {}: text or json", f.log_format);
  }
  auto bytes = parse_bytes(f.body_limit);
  if (!bytes.ok()) return invalid_argument("--body-limit: {}", bytes.status().message());
  if (*bytes == 0 || *bytes > uint64_t{1} << 30) {
    return invalid_argument("--body-limit {}: must lie in 1 .. 1GiB", f.body_limit);
  }
  c.body_bytes = static_cast<int64_t>(*bytes);
  c.total_body_bytes = std::max(c.total_body_bytes, 2 * c.body_bytes);
  if (f.api_key_file) {
    OASIS_ASSIGN_OR_RETURN(c.keys, serve::ApiKeys::read(*f.api_key_file));
  }
  return {};
}

// The file or folder without its ending: models/Qwen3-0.6B.gguf -> Qwen3-0.6B.
std::string default_name(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

int run(ServeFlags& f) {
  if (Status s = f.resolve(); !s.ok()) return fail(s);
  if (Status s = resolve_server(f); !s.ok()) return fail(s);
  auto opened = open_model(f);
  if (!opened.ok()) return fail(opened.status(), kFailed);
  auto engine = engine::Engine::create(*opened->device, *opened->checkpoint, &*opened->tokenizer, f.config);
  if (!engine.ok()) return fail(engine.status());
  const std::string name = f.model_name.empty() ? default_name(f.model) : f.model_name;
  auto model = serve::served_model(**engine, opened->checkpoint->config(), *opened->tokenizer, name);
  const bool open_to_all = f.config_of_server.keys.open() && f.config_of_server.host != "127.0.0.1" &&
                           f.config_of_server.host != "::1" && f.config_of_server.host != "localhost";
  if (!model.chat_template) complain(fmt::format("chat is off: {}", model.template_error));
  auto server = serve::Server::create(**engine, std::move(model), f.config_of_server);
  if (!server.ok()) return fail(server.status(), kFailed);
  if (open_to_all) complain("anybody who reaches this address may use the model: see --api-key-file");
  emit("serving {} on {}\n", name, (*server)->url());
  const int signal = (*server)->run();
  if (Status s = (*engine)->save_prefix_cache(); !s.ok()) complain(s.message());
  return signal == SIGINT ? 128 + SIGINT : kDone;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  auto* sub = app.add_subcommand("serve", "answer requests over HTTP (the OpenAI API)");
  flags->config.max_sequences = 8;
  flags->add_model(*sub);
  auto& c = flags->config_of_server;
  const auto add = [&](const char* group, const char* name, auto& value, const char* type, const char* text) {
    return sub->add_option(name, value, text)->group(group)->type_name(type);
  };
  const char* server = "Server";
  add(server, "--host", c.host, "ADDRESS", "where to listen; 0.0.0.0: on all interfaces")->capture_default_str();
  add(server, "--port", c.port, "N", "0: any free one, printed at the start")
      ->check(whole_number(0, 65535))
      ->capture_default_str();
  add(server, "--model-name", flags->model_name, "NAME", "what clients call the model; default: its file's name");
  add(server, "--api-key-file", flags->api_key_file, "FILE",
      "only who sends one of these keys may use the model: one a line");
  add(server, "--drain-seconds", c.drain_seconds, "X", "after SIGTERM, running requests may take so long to finish")
      ->check(number(0, 86400))
      ->capture_default_str();
  const char* limits = "Limits";
  add(limits, "--max-sequences", flags->config.max_sequences, "N", "sequences that run at once")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  add(limits, "--max-queue", c.max_queue, "N", "sequences that may wait besides; beyond, clients get 429")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
  add(limits, "--body-limit", flags->body_limit, "SIZE", "largest body of a request; beyond, clients get 413")
      ->capture_default_str();
  add(limits, "--read-seconds", c.read_seconds, "X", "a request's header, and its body, must arrive within")
      ->check(number_above(0, 3600))
      ->capture_default_str();
  const char* logs = "Log (stderr, one line a request)";
  add(logs, "--log-format", flags->log_format, "FORMAT", "text or json")->capture_default_str();
  sub->add_flag("--log-prompts", c.log_prompts, "log the text of prompts too")->group(logs);
  flags->add_engine(*sub);
  sub->get_option("--context")
      ->description("longest sequence in tokens, prompt and output; default: the model's context");
  sub->footer(fmt::format(
      "Endpoints: /v1/models, /v1/completions, /v1/chat/completions, /tokenize, /detokenize,\n"
      "  /health, /ready, /version, /metrics (Prometheus), /state (JSON), / (a page for a browser).\n"
      "Examples:\n"
      "  oasis serve -m model.gguf\n"
      "  oasis serve -m model.gguf --fast-memory 64MiB --max-sequences 32 --api-key-file keys.txt\n"
      "  curl http://127.0.0.1:8000/v1/completions -d '{{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}}'\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions \\\n"
      "       -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}], \"stream\": true}}'\n"
      "Exit codes: 0 ended by SIGTERM, 1 it could not be done, 2 the command line is wrong, 130 ended by Ctrl-C."));
  sub->callback([flags, &exit_code] { exit_code = run(*flags); });
}

}  // namespace oasis::app
