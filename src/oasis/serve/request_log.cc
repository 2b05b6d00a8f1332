#include "oasis/serve/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "oasis/serve/answer.h"

namespace oasis::serve {
namespace {

std::string timestamp(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), unix_ms % 1000);
}

// As a JSON string: quoted, one line.
std::string quoted(const std::string& text) { return dump(text); }

}  // namespace

std::string format_line(const LogLine& l, LogFormat format, int64_t unix_ms) {
  if (format == LogFormat::kJson) {
    nlohmann::ordered_json j = {{"time", timestamp(unix_ms)}, {"id", l.id},         {"method", l.method},
                                {"endpoint", l.endpoint},     {"status", l.status}, {"seconds", l.seconds}};
    if (l.prompt_tokens >= 0) j["prompt_tokens"] = l.prompt_tokens;
    if (l.cached_tokens >= 0) j["cached_tokens"] = l.cached_tokens;
    if (l.output_tokens >= 0) j["output_tokens"] = l.output_tokens;
    if (l.first_token_seconds >= 0) j["ttft_seconds"] = l.first_token_seconds;
    if (!l.finish.empty()) j["finish"] = l.finish;
    if (!l.error.empty()) j["error"] = l.error;
    if (!l.prompt.empty()) j["prompt"] = l.prompt;
    return dump(j);
  }
  std::string line =
      fmt::format("{} {} {} {} {} {:.3f}s", timestamp(unix_ms), l.id, l.method, l.endpoint, l.status, l.seconds);
  if (l.prompt_tokens >= 0) line += fmt::format(" prompt={}", l.prompt_tokens);
  if (l.cached_tokens >= 0) line += fmt::format(" cached={}", l.cached_tokens);
  if (l.output_tokens >= 0) line += fmt::format(" output={}", l.output_tokens);
  if (l.first_token_seconds >= 0) line += fmt::format(" ttft={:.3f}s", l.first_token_seconds);
  if (!l.finish.empty()) line += fmt::format(" finish={}", l.finish);
  if (!l.error.empty()) line += fmt::format(" error={}", quoted(l.error));
  if (!l.prompt.empty()) line += fmt::format(" prompt_text={}", quoted(l.prompt));
  return line;
}

void write_line(const LogLine& line, LogFormat format) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::string text = format_line(line, format, ms) + '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace oasis::serve
