#include "oasis/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>

namespace oasis::app {
namespace {

// All of the text, or nothing.
template <typename T>
std::optional<T> parse(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Whole numbers are written back in one form: CLI11 itself would read 010 as octal.
template <typename T, typename Accept>
CLI::Validator check(std::string wanted, Accept accept) {
  return CLI::Validator(
      [wanted = std::move(wanted), accept](std::string& text) {
        const auto value = parse<T>(text);
        if (!value || !accept(*value)) return fmt::format("'{}' is not {}", text, wanted);
        if constexpr (std::is_integral_v<T>) text = std::to_string(*value);
        return std::string();
      },
      "");
}

}  // namespace

CLI::Validator whole_number(int64_t low, int64_t high) {
  return check<int64_t>(fmt::format("a whole number in {} .. {}", low, high),
                        [=](int64_t x) { return x >= low && x <= high; });
}

CLI::Validator one_of(std::vector<int64_t> values) {
  std::string wanted = "one of";
  for (const int64_t value : values) wanted += ' ' + std::to_string(value);
  return check<int64_t>(std::move(wanted),
                        [=](int64_t x) { return std::find(values.begin(), values.end(), x) != values.end(); });
}

CLI::Validator seed_number() {
  return check<uint64_t>(fmt::format("a whole number in 0 .. {}", std::numeric_limits<uint64_t>::max()),
                         [](uint64_t) { return true; });
}

CLI::Validator number(double low, double high) {
  return check<double>(fmt::format("a number in {} .. {}", low, high), [=](double x) { return x >= low && x <= high; });
}

CLI::Validator number_above(double low, double high) {
  return check<double>(fmt::format("a number above {} and up to {}", low, high),
                       [=](double x) { return x > low && x <= high; });
}

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); }, "");
}

}  // namespace oasis::app
