#include "oasis/text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "oasis/text/jinja/failure.h"
#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

[[noreturn]] void fail_at(int line, std::string message) {
  throw Failure{StatusCode::kInvalidArgument, std::move(message), line};
}

// "\r\n" and "\r" to "\n", and one line end at the very end dropped.
std::string normalise_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) {
      const size_t tag = next_tag();
      if (tag == std::string::npos) {
        add_data(source_.substr(pos_));
        break;
      }
      open_tag(tag);
    }
    tokens_.push_back({TokenKind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  size_t next_tag() const {
    for (size_t i = source_.find('{', pos_); i != std::string::npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && std::string_view("%{#").find(source_[i + 1]) != std::string_view::npos) return i;
    }
    return std::string::npos;
  }

  void open_tag(size_t tag) {
    std::string data = source_.substr(pos_, tag - pos_);
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    const size_t lines = static_cast<size_t>(std::count(data.begin(), data.end(), '\n'));
    strip_before_tag(data, sign, kind != '{');
    add_data(std::move(data));
    line_ += static_cast<int>(lines);
    pos_ = tag + 2 + (sign == '-' || sign == '+');
    if (kind == '#') return skip_comment();
    if (kind == '{') return lex_tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd);
    if (at_raw_tag()) return lex_raw();
    lex_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd);
  }

  // White space before a tag: "{%-" takes all of it, a block or comment (lstrip_blocks) that from the line's start on.
  void strip_before_tag(std::string& data, char sign, bool lstrip_blocks) const {
    if (sign == '-') {
      data.erase(data.find_last_not_of(kSpaces) + 1);  // npos + 1 is 0
    } else if (sign != '+' && lstrip_blocks) {
      const size_t line_start = data.rfind('\n') + 1;
      if ((line_start > 0 || at_line_start_) && data.find_first_not_of(kSpaces, line_start) == std::string::npos) {
        data.erase(line_start);
      }
    }
  }

  void add_data(std::string data) {
    if (!data.empty()) tokens_.push_back({TokenKind::kData, std::move(data), line_});
  }

  void move_to(size_t pos) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(pos), '\n'));
    pos_ = pos;
  }

  // The position after a tag's end at `pos` ("%}", "-%}", "+%}" and the white space that goes with it), or npos.
  size_t tag_end(size_t pos, std::string_view end, bool trims) const {
    const char sign = pos < source_.size() ? source_[pos] : ' ';
    const bool has_sign = sign == '-' || (sign == '+' && trims);
    const size_t at = pos + has_sign;
    if (source_.compare(at, end.size(), end) != 0) return std::string::npos;
    size_t after = at + end.size();
    if (has_sign && sign == '-') {
      after = std::min(source_.find_first_not_of(kSpaces, after), source_.size());
    } else if (!has_sign && trims && after < source_.size() && source_[after] == '\n') {
      ++after;
    }
    return after;
  }

  void finish_tag(size_t after) {
    at_line_start_ = source_[after - 1] == '\n';
    move_to(after);
  }

  void skip_comment() {
    const size_t at = source_.find("#}", pos_);
    if (at == std::string::npos) fail_at(line_, "a comment {# has no end #}");
    const bool has_sign = at > pos_ && (source_[at - 1] == '-' || source_[at - 1] == '+');
    finish_tag(tag_end(at - has_sign, "#}", true));
  }

  bool at_raw_tag() const {
    const size_t name = std::min(source_.find_first_not_of(kSpaces, pos_), source_.size());
    if (source_.compare(name, 3, "raw") != 0) return false;
    return tag_end(std::min(source_.find_first_not_of(kSpaces, name + 3), source_.size()), "%}", false) !=
           std::string::npos;
  }

  void lex_raw() {
    const size_t name = source_.find("raw", pos_);
    finish_tag(tag_end(std::min(source_.find_first_not_of(kSpaces, name + 3), source_.size()), "%}", false));
    for (size_t at = source_.find("{%", pos_); at != std::string::npos; at = source_.find("{%", at + 1)) {
      const char sign = at + 2 < source_.size() ? source_[at + 2] : ' ';
      const size_t word = source_.find_first_not_of(kSpaces, at + 2 + (sign == '-' || sign == '+'));
      if (word == std::string::npos || source_.compare(word, 6, "endraw") != 0) continue;
      const size_t close = std::min(source_.find_first_not_of(kSpaces, word + 6), source_.size());
      const size_t after = tag_end(close, "%}", true);
      if (after == std::string::npos) continue;
      std::string data = source_.substr(pos_, at - pos_);
      strip_before_tag(data, sign, true);
      add_data(std::move(data));
      return finish_tag(after);
    }
    fail_at(line_, "{% raw %} has no {% endraw %}");
  }

  void lex_tag(TokenKind begin, TokenKind end) {
    const bool block = begin == TokenKind::kBlockBegin;
    const int first_line = line_;
    tokens_.push_back({begin, "", line_});
    std::string brackets;  // open ones: inside, "}}" is two brackets
    for (;;) {
      if (pos_ >= source_.size()) fail_at(first_line, block ? "a tag {% has no end %}" : "a tag {{ has no end }}");
      if (brackets.empty()) {
        const size_t after = tag_end(pos_, block ? "%}" : "}}", block);
        if (after != std::string::npos) {
          tokens_.push_back({end, "", line_});
          return finish_tag(after);
        }
      }
      const char c = source_[pos_];
      if (is_space(c)) {
        move_to(pos_ + 1);
      } else if (c == '"' || c == '\'') {
        lex_string(c);
      } else if (is_digit(c)) {
        lex_number();
      } else if (is_name_start(c)) {
        size_t to = pos_ + 1;
        while (to < source_.size() && (is_name_start(source_[to]) || is_digit(source_[to]))) ++to;
        add(TokenKind::kName, to);
      } else {
        lex_operator(brackets);
      }
    }
  }

  void add(TokenKind kind, size_t to) {
    tokens_.push_back({kind, source_.substr(pos_, to - pos_), line_});
    pos_ = to;
  }

  void lex_operator(std::string& brackets) {
    static constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view two = std::string_view(source_).substr(pos_, 2);
    if (std::find(std::begin(kDouble), std::end(kDouble), two) != std::end(kDouble)) {
      return add(TokenKind::kOperator, pos_ + 2);
    }
    const char c = source_[pos_];
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      const Utf8Step step = next_utf8(source_, pos_);
      fail_at(line_, fmt::format("unexpected character '{}'", source_.substr(pos_, step.size)));
    }
    const size_t opens = std::string_view("([{").find(c), closes = std::string_view(")]}").find(c);
    if (opens != std::string_view::npos) brackets += ")]}"[opens];
    if (closes != std::string_view::npos) {
      if (brackets.empty() || brackets.back() != c) fail_at(line_, fmt::format("unexpected '{}'", c));
      brackets.pop_back();
    }
    add(TokenKind::kOperator, pos_ + 1);
  }

  // 12, 1_000, 0x1F, 1.5, 1e-3, 1.5e3. Not the ".5" of ".5" nor the "." of "1.x".
  void lex_number() {
    size_t to = pos_;
    const auto digits = [&] {
      while (to < source_.size() &&
             (is_digit(source_[to]) || (source_[to] == '_' && to + 1 < source_.size() && is_digit(source_[to + 1])))) {
        ++to;
      }
    };
    if (source_[pos_] == '0' && pos_ + 1 < source_.size() && is_name_start(source_[pos_ + 1])) {
      to = pos_ + 2;  // its digits are checked by the parser
      while (to < source_.size() && (is_digit(source_[to]) || is_name_start(source_[to]))) ++to;
      return add(TokenKind::kInteger, to);
    }
    digits();
    TokenKind kind = TokenKind::kInteger;
    if (to + 1 < source_.size() && source_[to] == '.' && is_digit(source_[to + 1])) {
      kind = TokenKind::kFloat;
      ++to;
      digits();
    }
    if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
      const size_t sign = to + 1 < source_.size() && (source_[to + 1] == '+' || source_[to + 1] == '-');
      if (to + 1 + sign < source_.size() && is_digit(source_[to + 1 + sign])) {
        kind = TokenKind::kFloat;
        to += 1 + sign;
        digits();
      }
    }
    add(kind, to);
  }

  void lex_string(char quote) {
    const int first_line = line_;
    std::string value;
    size_t at = pos_ + 1;
    for (; at < source_.size() && source_[at] != quote;) {
      if (source_[at] != '\\') {
        value += source_[at++];
      } else if (at + 1 < source_.size()) {
        at = lex_escape(at + 1, value);
      } else {
        ++at;
      }
    }
    if (at >= source_.size()) fail_at(first_line, "a string has no end");
    tokens_.push_back({TokenKind::kString, std::move(value), first_line});
    move_to(at + 1);
  }

  // Python's escapes. `at` is after the backslash; returns the position after the escape.
  size_t lex_escape(size_t at, std::string& value) {
    static constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at];
    if (const size_t simple = kNames.find(c); simple != std::string_view::npos) {
      value += kValues[simple];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    if (c == 'x' || c == 'u' || c == 'U') return lex_code_point(at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, value);
    if (c >= '0' && c <= '7') {
      size_t digits = 1;
      while (digits < 3 && at + digits < source_.size() && source_[at + digits] >= '0' && source_[at + digits] <= '7') {
        ++digits;
      }
      return lex_code_point(at, digits, 8, value);
    }
    if (c == 'N') fail_at(line_, "the escape \\N{...} in a string is not supported");
    value += '\\';  // an unknown escape stands for itself
    return at;
  }
  size_t lex_code_point(size_t at, size_t digits, uint32_t base, std::string& value) {
    uint32_t code_point = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = at + i < source_.size() ? source_[at + i] : ' ';
      const uint32_t digit = is_digit(c)            ? c - '0'
                             : c >= 'a' && c <= 'f' ? c - 'a' + 10u
                             : c >= 'A' && c <= 'F' ? c - 'A' + 10u
                                                    : 99;
      if (digit >= base || code_point > 0x10FFFF) fail_at(line_, "a string holds an escape with wrong digits");
      code_point = code_point * base + digit;
    }
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) {
      fail_at(line_, fmt::format("a string holds an escape for U+{:04X}, which is no character", code_point));
    }
    append_utf8(value, code_point);
    return at + digits;
  }

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;  // the last tag took the line's end with it
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source) { return Lexer(normalise_lines(source)).run(); }

}  // namespace oasis::text::jinja
