// Errors as values. A function that can fail for a reason outside our code returns Status or Result<T>; a broken
// invariant of our own aborts through OASIS_CHECK. No exception crosses a public header.
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace oasis {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's value is wrong; trying again does not help
  kNotFound,           // a file, tensor, key or request that is not there
  kResourceExhausted,  // a limit was reached: memory, disk, queue
  kUnsupported,        // well-formed, but this build does not do it
  kDataCorruption,     // bytes that are not what they claim to be
  kIo,                 // the operating system said no
  kCancelled,
  kInternal,
};

std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // One sentence: the value, the limit, what to do. Empty when ok.
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> f, Args&&... args) {
  return {StatusCode::kInvalidArgument, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status not_found(fmt::format_string<Args...> f, Args&&... args) {
  return {StatusCode::kNotFound, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status resource_exhausted(fmt::format_string<Args...> f, Args&&... args) {
  return {StatusCode::kResourceExhausted, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status unsupported(fmt::format_string<Args...> f, Args&&... args) {
  return {StatusCode::kUnsupported, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status data_corruption(fmt::format_string<Args...> f, Args&&... args) {
  return {StatusCode::kDataCorruption, fmt::format(f, std::forward<Args>(args)...)};
}
template <typename... Args>
Status io_error(fmt::format_string<Args...> f, Args&&... args) {
  return {StatusCode::kIo, fmt::format(f, std::forward<Args>(args)...)};
}

// A value, or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) std::abort();  // an ok Status carries no value
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  T&& operator*() && { return std::move(checked()); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    if (!value_) {
      fmt::print(stderr, "Result::value() on an error: {}\n", status_.message());
      std::abort();
    }
    return *value_;
  }
  Status status_;
  std::optional<T> value_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& message);

}  // namespace oasis

#define OASIS_CONCAT_(a, b) a##b
#define OASIS_CONCAT(a, b) OASIS_CONCAT_(a, b)

// Returns the error of `expr` (a Status) to the caller.
#define OASIS_RETURN_IF_ERROR(expr)                                      \
  do {                                                                   \
    if (::oasis::Status status_ = (expr); !status_.ok()) return status_; \
  } while (0)

// OASIS_ASSIGN_OR_RETURN(auto x, make_x()): the value of a Result, or its error returned to the caller.
#define OASIS_ASSIGN_OR_RETURN(lhs, expr) OASIS_ASSIGN_OR_RETURN_(OASIS_CONCAT(result_, __LINE__), lhs, expr)
#define OASIS_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return tmp.status();           \
  lhs = std::move(tmp).value()

// A broken invariant of our own: prints and aborts. The message is a fmt string with arguments.
#define OASIS_CHECK(condition, ...)                                                                      \
  do {                                                                                                   \
    if (!(condition)) ::oasis::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (0)
