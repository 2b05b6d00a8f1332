// Python's string functions, on UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/text/jinja/failure.h"
#include "oasis/text/jinja/marked_text.h"

namespace oasis::text::jinja {

// str.isspace() of one character.
bool is_python_space(char32_t c);

// str.strip(), lstrip(), rstrip(): white space, or any of `characters`.
MarkedText strip(const MarkedText& text, bool left, bool right);
MarkedText strip(const MarkedText& text, std::string_view characters, bool left, bool right);

// The first `part` at or after `pos`, or npos; linear time.
size_t find_text(std::string_view text, std::string_view part, size_t pos = 0);

// str.split(): at white space, or at `separator` (not empty). At most `max_splits` cuts; negative: any number.
std::vector<MarkedText> split(const MarkedText& text, int64_t max_splits);
std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t max_splits);
// str.splitlines().
std::vector<MarkedText> split_lines(const MarkedText& text);

// str.replace(); `count` negative: all.
MarkedText replace(const MarkedText& text, std::string_view old, const MarkedText& by, int64_t count, Budget& budget);

// Character by character: one whose case mapping has several characters (as sharp s) keeps its case.
MarkedText to_upper(const MarkedText& text);
MarkedText to_lower(const MarkedText& text);
MarkedText to_title(const MarkedText& text);        // str.title()
MarkedText to_capitalized(const MarkedText& text);  // str.capitalize()

// repr() of a string.
void append_python_repr(MarkedText& out, const MarkedText& text);
// repr() of a float.
std::string python_float(double value);

}  // namespace oasis::text::jinja
