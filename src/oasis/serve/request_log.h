// One line a request, on stderr.
#pragma once

#include <cstdint>
#include <string>

namespace oasis::serve {

struct LogLine {
  std::string id, method, endpoint;
  int status = 0;
  int64_t prompt_tokens = -1, cached_tokens = -1, output_tokens = -1;  // -1: does not apply
  double first_token_seconds = -1, seconds = 0;
  std::string finish;  // reasons of all choices; "gone": the client left
  std::string error;   // what the client was told
  std::string prompt;  // where it is asked for
};

enum class LogFormat : uint8_t { kText, kJson };

// The line without its end. Control characters are escaped: a request cannot forge a line.
std::string format_line(const LogLine& line, LogFormat format, int64_t unix_ms);
// To stderr, at once.
void write_line(const LogLine& line, LogFormat format);

}  // namespace oasis::serve
