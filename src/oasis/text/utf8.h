// UTF-8, checked. "Maximal invalid subsequence" is Unicode's and Python's: the longest run of bytes that starts like a
// character but does not complete one, or a single byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace oasis::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  char32_t code_point = 0;  // U+FFFD where not valid
  int size = 0;             // bytes of the character or of the maximal invalid subsequence; 0: the end of the text
  bool valid = false;
  bool truncated = false;  // invalid only because the text ends here
};

// The character that starts at `pos`.
Utf8Step next_utf8(std::string_view text, size_t pos);

bool is_valid_utf8(std::string_view text);

// `text` with every maximal invalid subsequence replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

// The size of `text` without an incomplete character at its end.
size_t complete_utf8_size(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// The number of characters in valid UTF-8.
size_t count_utf8(std::string_view valid);

}  // namespace oasis::text
