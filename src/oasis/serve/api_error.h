// What a client is told when it cannot be served: the OpenAI API's error object.
#pragma once

#include <optional>
#include <string>

#include "oasis/base/status.h"

namespace oasis::serve {

struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;    // the field at fault; empty: none
  std::string code;     // for programs; empty: none
  int retry_after = 0;  // seconds; 0: no Retry-After header
};
// Nothing: no fault.
using Failure = std::optional<ApiError>;

inline ApiError bad_request(std::string message, std::string param = "", std::string code = "") {
  return {.message = std::move(message), .param = std::move(param), .code = std::move(code)};
}
// The server has too much to do: try again.
ApiError overloaded(std::string message);
ApiError unavailable(std::string message);
// Of the engine: what it says, with the HTTP status that fits. `submitted`: it was accepted first and failed later.
ApiError from_engine(const Status& status, bool submitted);

// {"error": {"message", "type", "param", "code"}}
std::string to_json(const ApiError& error);

}  // namespace oasis::serve
