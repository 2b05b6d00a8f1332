#include "oasis/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "oasis/text/utf8.h"

namespace oasis::text {

namespace {

int combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// utf8proc orders combining marks by insertion, quadratic in a long run of them; sort each run instead.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + begin, text.begin() + end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

bool is_surely_nfc(std::string_view valid) {
  // Everything below U+0300 is a starter and composes with nothing before it. U+0300 is CC 80.
  return std::all_of(valid.begin(), valid.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string to_nfc(std::string_view valid) {
  std::vector<utf8proc_int32_t> text;
  text.reserve(valid.size() + 16);
  for (size_t pos = 0; pos < valid.size();) {
    const Utf8Step step = next_utf8(valid, pos);
    pos += step.size;
    utf8proc_int32_t parts[8];  // the longest canonical decomposition has 4
    int last_boundary_class = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code_point), parts, 8,
                                           static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE), &last_boundary_class);
    if (n > 0 && n <= 8) {
      text.insert(text.end(), parts, parts + n);
    } else {
      text.push_back(static_cast<utf8proc_int32_t>(step.code_point));
    }
  }
  order_marks(text);
  const auto size = utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()),
                                             static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  std::string out;
  out.reserve(valid.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(out, static_cast<char32_t>(text[i]));
  return out;
}

}  // namespace oasis::text
