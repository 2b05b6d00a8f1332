#include "oasis/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace oasis::text {

namespace {

// The number of leading bytes that are ASCII, by words.
size_t ascii_prefix(std::string_view text, size_t pos) {
  const size_t begin = pos;
  while (pos + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + pos, 8);
    if (word & 0x8080808080808080ull) break;
    pos += 8;
  }
  while (pos < text.size() && static_cast<uint8_t>(text[pos]) < 0x80) ++pos;
  return pos - begin;
}

}  // namespace

Utf8Step next_utf8(std::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(pos);
  if (lead < 0x80) return {lead, 1, true, false};
  // Table 3-7 of the Unicode standard: the second byte's range depends on the first, the rest are 80..BF.
  int size = 0;
  uint8_t low = 0x80, high = 0xBF;
  char32_t code_point = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    size = 2, code_point = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    size = 3, code_point = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    size = 4, code_point = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, false, false};
  }
  for (int i = 1; i < size; ++i) {
    if (pos + i >= text.size()) return {0xFFFD, i, false, true};
    const uint8_t b = byte(pos + i);
    if (b < low || b > high) return {0xFFFD, i, false, false};
    low = 0x80, high = 0xBF;
    code_point = (code_point << 6) | (b & 0x3F);
  }
  return {code_point, size, true, false};
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0;;) {
    pos += ascii_prefix(text, pos);
    if (pos == text.size()) return true;
    const Utf8Step step = next_utf8(text, pos);
    if (!step.valid) return false;
    pos += step.size;
  }
}

std::string to_valid_utf8(std::string_view text) {
  if (is_valid_utf8(text)) return std::string(text);
  std::string out;
  out.reserve(text.size() + 16);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    out += step.valid ? text.substr(pos, step.size) : kReplacement;
    pos += step.size;
  }
  return out;
}

size_t complete_utf8_size(std::string_view text) {
  const size_t from = text.size() > 3 ? text.size() - 3 : 0;
  for (size_t pos = from; pos < text.size(); ++pos) {
    const auto byte = static_cast<uint8_t>(text[pos]);
    if (byte >= 0xC2 && next_utf8(text, pos).truncated) return pos;
  }
  return text.size();
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t count_utf8(std::string_view valid) {
  size_t n = 0;
  for (const char c : valid) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

}  // namespace oasis::text
