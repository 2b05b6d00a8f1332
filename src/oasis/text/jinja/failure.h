// How the template engine stops: a Failure is thrown inside it and becomes a Status where it is left
// (chat_template.cc).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "oasis/base/status.h"

namespace oasis::text::jinja {

struct Failure {
  StatusCode code;
  std::string message;
  int line = 0;  // of the template; 0: filled in by whoever knows it
};

// What Python would raise an exception for.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> f, Args&&... args) {
  throw Failure{StatusCode::kInvalidArgument, fmt::format(f, std::forward<Args>(args)...)};
}
// What Python might do and this engine does not.
template <typename... Args>
[[noreturn]] void fail_unsupported(fmt::format_string<Args...> f, Args&&... args) {
  throw Failure{StatusCode::kUnsupported, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
[[noreturn]] void fail_limit(fmt::format_string<Args...> f, Args&&... args) {
  throw Failure{StatusCode::kResourceExhausted, fmt::format(f, std::forward<Args>(args)...)};
}

// Bounds the time and memory of one rendering: a unit is a step of evaluation or some four bytes of memory.
class Budget {
 public:
  explicit Budget(uint64_t units) : left_(units), all_(units) {}
  void spend(uint64_t units) {
    if (units > left_) fail_limit("the template does more than {} units of work on this input", all_);
    left_ -= units;
  }

 private:
  uint64_t left_;
  uint64_t all_;
};

}  // namespace oasis::text::jinja
