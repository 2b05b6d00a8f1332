#include "oasis/serve/endpoints.h"

#include <fmt/format.h>

#include "oasis/serve/answer.h"
#include "oasis/serve/page/page.h"
#include "oasis/serve/request.h"
#include "oasis/serve/state.h"
#include "oasis/text/utf8.h"

namespace oasis::serve {
namespace {

using Object = nlohmann::ordered_json;

struct Entry {
  const char* path;
  Endpoint endpoint;
  const char* method;
  bool needs_key;
};

// Text of users goes through the endpoints with a key; the others tell of the server alone.
constexpr Entry kEntries[] = {{"/", Endpoint::kPage, "GET", false},
                              {"/health", Endpoint::kHealth, "GET", false},
                              {"/ready", Endpoint::kReady, "GET", false},
                              {"/version", Endpoint::kVersion, "GET", false},
                              {"/metrics", Endpoint::kMetrics, "GET", false},
                              {"/state", Endpoint::kState, "GET", false},
                              {"/v1/models", Endpoint::kModels, "GET", true},
                              {"/v1/completions", Endpoint::kCompletions, "POST", true},
                              {"/v1/chat/completions", Endpoint::kChat, "POST", true},
                              {"/tokenize", Endpoint::kTokenize, "POST", true},
                              {"/detokenize", Endpoint::kDetokenize, "POST", true},
                              {"/tokenizer_info", Endpoint::kTokenizerInfo, "GET", true}};
constexpr std::string_view kModelPath = "/v1/models/";

// %41 -> A; what is no escape stays.
std::string unescape(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Object model_json(const ServedModel& model) {
  return {{"id", model.name},   {"object", "model"}, {"created", model.created},      {"owned_by", "oasiskv"},
          {"root", model.name}, {"parent", nullptr}, {"max_model_len", model.context}};
}

Reply json(const Object& body) { return {.body = dump(body)}; }

Reply model_reply(const ServedModel& model, const std::string& name) {
  if (name == model.name) return json(model_json(model));
  return to_reply(
      {.status = 404,
       .message = fmt::format("the model '{}' does not exist: this server has '{}'", name.substr(0, 100), model.name),
       .param = "model",
       .code = "model_not_found"});
}

Reply tokenize(const ServedModel& model, const Json& body) {
  if (Failure failure = check_model(body, model)) return to_reply(*failure);
  std::vector<int32_t> ids;
  Fields f(body);
  bool add_special = true, strings = false;
  std::string prompt;
  f.boolean("add_special_tokens", add_special);
  f.boolean("return_token_strs", strings);
  f.text("prompt", prompt);
  if (f.failed()) return to_reply(*f.failure());
  if (f.find("messages")) {
    if (Failure failure = encode_messages(body, model, ids)) return to_reply(*failure);
  } else if (f.find("prompt")) {
    ids = model.tokenizer->encode(prompt, true, add_special && model.tokenizer->add_bos());
  } else {
    return to_reply(bad_request("give a prompt or messages", "prompt"));
  }
  Object out = {{"count", ids.size()}, {"max_model_len", model.context}, {"tokens", ids}, {"token_strs", nullptr}};
  if (strings) {
    out["token_strs"] = Object::array();
    for (const int32_t id : ids) out["token_strs"].push_back(text::to_valid_utf8(model.tokenizer->token_bytes(id)));
  }
  return json(out);
}

// What a client needs to use /tokenize in the place of a tokenizer of its own.
Reply tokenizer_info(const ServedModel& model) {
  const text::Tokenizer& t = *model.tokenizer;
  const auto token = [&](int32_t id) { return id < 0 ? Object() : Object(text::to_valid_utf8(t.token_bytes(id))); };
  return json({{"eos_token", token(t.eos())},
               {"bos_token", token(t.bos())},
               {"add_bos_token", t.add_bos()},
               {"chat_template", t.chat_template().empty() ? Object() : Object(t.chat_template())},
               {"model_max_length", model.context}});
}

Reply detokenize(const ServedModel& model, const Json& body) {
  if (Failure failure = check_model(body, model)) return to_reply(*failure);
  std::vector<int32_t> ids;
  Fields f(body);
  if (!f.find("tokens")) return to_reply(bad_request("tokens: is missing", "tokens"));
  f.ids("tokens", model.vocab, ids);
  if (f.failed()) return to_reply(*f.failure());
  return json({{"prompt", model.tokenizer->decode(ids)}});
}

}  // namespace

Reply to_reply(const ApiError& error) {
  return {.status = error.status, .body = to_json(error), .retry_after = error.retry_after};
}

Route find_route(std::string_view target) {
  const std::string_view path = target.substr(0, target.find('?'));
  for (const Entry& e : kEntries) {
    if (path == e.path) return {.endpoint = e.endpoint, .name = e.path, .method = e.method, .needs_key = e.needs_key};
  }
  if (path.starts_with(kModelPath) && path.size() > kModelPath.size()) {
    return {.endpoint = Endpoint::kModel,
            .name = "/v1/models/{model}",
            .method = "GET",
            .needs_key = true,
            .argument = unescape(path.substr(kModelPath.size()))};
  }
  return {};
}

Reply answer_get(const Service& service, const Route& route) {
  switch (route.endpoint) {
    case Endpoint::kPage:
      return {.type = "text/html; charset=utf-8", .body = std::string(page())};
    case Endpoint::kHealth:
      return json({{"status", "ok"}});
    case Endpoint::kReady:
      if (service.draining) return to_reply(unavailable("the server is shutting down"));
      return json({{"status", "ready"}});
    case Endpoint::kVersion:
      return json({{"version", kVersion}});
    case Endpoint::kMetrics:
      return {.type = "text/plain; version=0.0.4; charset=utf-8",
              .body = service.metrics.text(service.engine.metrics(), service.engine.plan())};
    case Endpoint::kState:
      return {.body = state_json(service.engine, service.model,
                                 {.max_sequences = service.engine.config().max_sequences,
                                  .max_queue = service.config.max_queue,
                                  .body_bytes = service.config.body_bytes},
                                 service.metrics, service.uptime_seconds(), service.draining)};
    case Endpoint::kModels:
      return json({{"object", "list"}, {"data", Object::array({model_json(service.model)})}});
    case Endpoint::kModel:
      return model_reply(service.model, route.argument);
    case Endpoint::kTokenizerInfo:
      return tokenizer_info(service.model);
    default:
      return to_reply({.status = 500, .message = "no such answer", .type = "server_error"});
  }
}

Reply answer_tokens(const ServedModel& model, Endpoint endpoint, std::string_view body) {
  Json json_body;
  if (Failure failure = parse_object(body, json_body)) return to_reply(*failure);
  return endpoint == Endpoint::kTokenize ? tokenize(model, json_body) : detokenize(model, json_body);
}

}  // namespace oasis::serve
