// A string that knows, byte by byte, whether it came from the input (a message, a tool) and not from the template.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace oasis::text::jinja {

class MarkedText {
 public:
  MarkedText() = default;
  explicit MarkedText(std::string text) : text_(std::move(text)) {}
  static MarkedText from_input(std::string text) {
    MarkedText marked(std::move(text));
    marked.marks_.assign(marked.text_.size(), 1);
    return marked;
  }

  const std::string& str() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  const std::string& marks() const { return marks_; }  // 1 or 0 per byte; empty: nothing from the input
  bool is_from_input(size_t i) const { return !marks_.empty() && marks_[i] != 0; }

  MarkedText substr(size_t pos, size_t n = std::string::npos) const {
    MarkedText part(text_.substr(pos, n));
    if (!marks_.empty()) part.marks_ = marks_.substr(pos, n);
    return part;
  }
  void append(std::string_view text, bool from_input = false) {
    if (from_input && marks_.empty()) marks_.assign(text_.size(), 0);
    text_ += text;
    if (from_input || !marks_.empty()) marks_.resize(text_.size(), from_input ? 1 : 0);
  }
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  void append(const MarkedText& other, size_t pos, size_t n) {
    if (!other.marks_.empty() && marks_.empty()) marks_.assign(text_.size(), 0);
    text_.append(other.text_, pos, n);
    if (!other.marks_.empty()) {
      marks_.append(other.marks_, pos, n);
    } else if (!marks_.empty()) {
      marks_.resize(text_.size(), 0);
    }
  }

 private:
  std::string text_;
  std::string marks_;
};

}  // namespace oasis::text::jinja
