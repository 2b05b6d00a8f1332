#include "oasis/text/jinja/python_text.h"

#include <fmt/format.h>
#include <string.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>

#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

MarkedText strip_if(const MarkedText& text, const std::function<bool(char32_t)>& drop, bool left, bool right) {
  const std::string& s = text.str();
  size_t begin = 0, end = s.size();
  while (left && begin < end) {
    const Utf8Step step = next_utf8(s, begin);
    if (!drop(step.code_point)) break;
    begin += step.size;
  }
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<uint8_t>(s[start]) & 0xC0) == 0x80) --start;
    if (!drop(next_utf8(s, start).code_point)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

template <typename F>
MarkedText map_characters(const MarkedText& text, F&& map) {
  MarkedText out;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text.str(), pos);
    std::string mapped;
    append_utf8(mapped, map(step.code_point));
    out.append(mapped, text.is_from_input(pos));
    pos += step.size;
  }
  return out;
}

char32_t upper(char32_t c) { return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))); }
char32_t lower(char32_t c) { return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))); }
char32_t title(char32_t c) { return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))); }

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

// str.isprintable() of one character: false for the categories "other" and "separator", but for the space.
bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

}  // namespace

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

MarkedText strip(const MarkedText& text, bool left, bool right) { return strip_if(text, is_python_space, left, right); }

MarkedText strip(const MarkedText& text, std::string_view characters, bool left, bool right) {
  std::u32string set;
  for (size_t pos = 0; pos < characters.size();) {
    const Utf8Step step = next_utf8(characters, pos);
    set += step.code_point;
    pos += step.size;
  }
  std::sort(set.begin(), set.end());
  return strip_if(text, [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); }, left, right);
}

size_t find_text(std::string_view text, std::string_view part, size_t pos) {
  if (pos > text.size()) return std::string_view::npos;
  if (part.empty()) return pos;
  const void* at = memmem(text.data() + pos, text.size() - pos, part.data(), part.size());
  return at == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

std::vector<MarkedText> split(const MarkedText& text, int64_t max_splits) {
  std::vector<MarkedText> parts;
  const MarkedText rest = strip(text, true, false);
  size_t begin = 0;
  for (size_t pos = 0; pos < rest.size() && (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits);) {
    const Utf8Step step = next_utf8(rest.str(), pos);
    if (!is_python_space(step.code_point)) {
      pos += step.size;
      continue;
    }
    parts.push_back(rest.substr(begin, pos - begin));
    while (pos < rest.size() && is_python_space(next_utf8(rest.str(), pos).code_point)) {
      pos += next_utf8(rest.str(), pos).size;
    }
    begin = pos;
  }
  if (begin < rest.size()) parts.push_back(rest.substr(begin));
  return parts;
}

std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t max_splits) {
  std::vector<MarkedText> parts;
  size_t begin = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = find_text(text.str(), separator, begin);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& text) {
  std::vector<MarkedText> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text.str(), pos);
    const char32_t c = step.code_point;
    size_t next = pos + step.size;
    if ((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) {
      lines.push_back(text.substr(begin, pos - begin));
      if (c == '\r' && next < text.size() && text.str()[next] == '\n') ++next;
      begin = next;
    }
    pos = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

MarkedText replace(const MarkedText& text, std::string_view old, const MarkedText& by, int64_t count, Budget& budget) {
  budget.spend(text.size());
  MarkedText out;
  size_t begin = 0, pos = 0;
  for (; count != 0 && pos <= text.size(); --count) {
    const size_t at = find_text(text.str(), old, pos);
    if (at == std::string_view::npos) break;
    out.append(text, begin, at - begin);
    budget.spend(by.size() + 1);
    out.append(by);
    begin = at + old.size();
    // An empty `old` is found before every character and at the end.
    pos = old.empty() ? begin + (begin < text.size() ? next_utf8(text.str(), begin).size : 1) : begin;
  }
  out.append(text, begin, text.size() - begin);
  return out;
}

MarkedText to_upper(const MarkedText& text) { return map_characters(text, upper); }
MarkedText to_lower(const MarkedText& text) { return map_characters(text, lower); }

MarkedText to_title(const MarkedText& text) {
  bool inside = false;
  return map_characters(text, [&](char32_t c) {
    const char32_t mapped = inside ? lower(c) : title(c);
    inside = is_cased(c);
    return mapped;
  });
}

MarkedText to_capitalized(const MarkedText& text) {
  bool first = true;
  return map_characters(text, [&](char32_t c) {
    const char32_t mapped = first ? title(c) : lower(c);
    first = false;
    return mapped;
  });
}

namespace {

// A character as repr() writes it between quotes; empty: as it is.
std::string escaped(char32_t c, char quote) {
  const auto code = static_cast<uint32_t>(c);
  if (c == '\\') return "\\\\";
  if (c == static_cast<char32_t>(quote)) return quote == '"' ? "\\\"" : "\\'";
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (is_printable(c)) return "";
  if (code < 0x100) return fmt::format("\\x{:02x}", code);
  return code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

}  // namespace

void append_python_repr(MarkedText& out, const MarkedText& text) {
  const std::string& s = text.str();
  const char quote = s.find('\'') != std::string::npos && s.find('"') == std::string::npos ? '"' : '\'';
  out.append({&quote, 1});
  for (size_t pos = 0; pos < s.size();) {
    const Utf8Step step = next_utf8(s, pos);
    const std::string written = escaped(step.code_point, quote);
    if (written.empty()) {
      out.append(text, pos, step.size);
    } else {
      out.append(written, text.is_from_input(pos));
    }
    pos += step.size;
  }
  out.append({&quote, 1});
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that read back the same, d.ddde+xx; Python writes exponents from 1e16 on and below 1e-4.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  text.assign(buffer, fixed_end);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace oasis::text::jinja
