#include "oasis/serve/api_error.h"

#include <nlohmann/json.hpp>

namespace oasis::serve {

ApiError overloaded(std::string message) {
  return {.status = 429,
          .message = std::move(message),
          .type = "rate_limit_error",
          .code = "rate_limit_exceeded",
          .retry_after = 1};
}

ApiError unavailable(std::string message) {
  return {
      .status = 503, .message = std::move(message), .type = "server_error", .code = "unavailable", .retry_after = 5};
}

ApiError from_engine(const Status& status, bool submitted) {
  ApiError error{.message = status.message()};
  if (!submitted && (status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported ||
                     status.code() == StatusCode::kResourceExhausted)) {
    return error;
  }
  error.status = status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kCancelled ? 503 : 500;
  error.type = "server_error";
  error.code = std::string(to_string(status.code()));
  return error;
}

std::string to_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? nlohmann::json() : nlohmann::json(text); };
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", error.message},
                                         {"type", error.type},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace oasis::serve
