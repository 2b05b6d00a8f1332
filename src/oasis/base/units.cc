#include "oasis/base/units.h"

#include <cctype>
#include <charconv>
#include <cmath>

namespace oasis {

Result<uint64_t> parse_bytes(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !(value >= 0)) {
    return invalid_argument("'{}' is not a size: write a number with a unit, for example 64MiB or 1.5GiB", text);
  }
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ' || !unit.empty()) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  double factor = 0;
  if (unit.empty() || unit == "b") {
    factor = 1;
  } else {
    constexpr std::string_view prefixes = "kmgt";
    const size_t power = prefixes.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power != std::string_view::npos && (rest.empty() || rest == "ib" || rest == "i")) {
      factor = std::ldexp(1.0, 10 * static_cast<int>(power + 1));
    } else if (power != std::string_view::npos && rest == "b") {
      factor = std::pow(1000.0, static_cast<double>(power + 1));
    }
  }
  if (factor == 0)
    return invalid_argument("'{}' has an unknown unit '{}': use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB", text, unit);
  if (value * factor >= 0x1p63) return invalid_argument("'{}' is 2^63 bytes or more", text);
  return static_cast<uint64_t>(std::llround(value * factor));
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}

}  // namespace oasis
