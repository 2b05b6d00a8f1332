#include "oasis/base/status.h"

#include <cstdio>

namespace oasis {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kDataCorruption:
      return "data corruption";
    case StatusCode::kIo:
      return "i/o error";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

void check_failed(const char* file, int line, const char* expression, const std::string& message) {
  fmt::print(stderr, "{}:{}: broken invariant: {}: {}\n", file, line, expression, message);
  std::fflush(stderr);
  std::abort();
}

}  // namespace oasis
