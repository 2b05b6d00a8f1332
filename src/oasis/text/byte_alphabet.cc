#include "oasis/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "oasis/text/utf8.h"

namespace oasis::text {

namespace {

// Bytes 21..7E, A1..AC and AE..FF stand for themselves, the others, ascending, are U+0100, U+0101, ...
constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kEnd = 0x100 + 68;  // 68 bytes do not stand for themselves

constexpr std::array<int16_t, kEnd> make_bytes() {
  std::array<int16_t, kEnd> bytes{};
  for (auto& b : bytes) b = -1;
  int next = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) bytes[stands_for_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr auto kBytes = make_bytes();

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    if (!step.valid || step.code_point >= kBytes.size() || kBytes[step.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[step.code_point]);
    pos += step.size;
  }
  return bytes;
}

}  // namespace oasis::text
