// Which endpoints there are, and the answers that need no generation.
#pragma once

#include <string>
#include <string_view>

#include "oasis/serve/api_error.h"
#include "oasis/serve/service.h"

namespace oasis::serve {

struct Reply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  int retry_after = 0;  // seconds; 0: no such header
  std::string allow;    // the methods that would do, with 405
};
Reply to_reply(const ApiError& error);

enum class Endpoint {
  kNone,
  kPage,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kState,
  kModels,
  kModel,
  kCompletions,
  kChat,
  kTokenize,
  kDetokenize,
  kTokenizerInfo
};

struct Route {
  Endpoint endpoint = Endpoint::kNone;
  const char* name = "unknown";  // for logs and metrics
  const char* method = "";       // GET (HEAD too) or POST
  bool needs_key = false;        // where the server has keys
  std::string argument;          // kModel: the model's name
};
// `target`: path and query of the request.
Route find_route(std::string_view target);

// The endpoints answered by GET.
Reply answer_get(const Service& service, const Route& route);
// /tokenize and /detokenize. From any thread: reads the model alone.
Reply answer_tokens(const ServedModel& model, Endpoint endpoint, std::string_view body);

}  // namespace oasis::serve
