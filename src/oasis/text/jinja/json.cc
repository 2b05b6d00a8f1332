#include "oasis/text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "oasis/text/jinja/python_text.h"
#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

using nlohmann::json;

// Builds values from the parser's events: no recursion, whatever the nesting of the text.
class ValueBuilder : public nlohmann::json_sax<json> {
 public:
  explicit ValueBuilder(std::string& error) : error_(error) {}
  Value take() { return std::move(root_); }

  bool null() override { return add(Value::none()); }
  bool boolean(bool b) override { return add(Value::boolean(b)); }
  bool number_integer(int64_t i) override { return add(Value::integer(i)); }
  bool number_unsigned(uint64_t u) override {
    if (u <= INT64_MAX) return add(Value::integer(static_cast<int64_t>(u)));
    return add(Value::floating(static_cast<double>(u), std::to_string(u)));
  }
  bool number_float(double f, const std::string& literal) override {
    // Python's integers have no bound: keep the digits of one that is too long.
    const bool integer = literal.find_first_of(".eE") == std::string::npos;
    return add(Value::floating(f, integer ? literal : std::string()));
  }
  bool string(std::string& s) override { return add(Value::string(MarkedText::from_input(s))); }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool end_object() override {
    Dict dict = std::move(open_.back().dict);
    open_.pop_back();
    return add(Value::dict(std::move(dict)));
  }
  bool start_array(size_t) override { return open(false); }
  bool end_array() override {
    std::vector<Value> list = std::move(open_.back().list);
    open_.pop_back();
    return add(Value::list(std::move(list)));
  }
  bool key(std::string& s) override {
    open_.back().key = s;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = e.what();
    return false;
  }

 private:
  static constexpr size_t kMaxDepth = 100;  // leaves room for what the renderer wraps around it
  static_assert(kMaxDepth < kMaxValueDepth - 8);
  struct Open {
    bool is_dict;
    Dict dict;
    std::vector<Value> list;
    std::string key;
  };

  bool open(bool is_dict) {
    if (open_.size() == kMaxDepth) {
      error_ = fmt::format("it is nested more than {} deep", kMaxDepth);
      return false;
    }
    open_.push_back({is_dict, {}, {}, {}});
    return true;
  }
  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_dict) {
      open_.back().dict.set(MarkedText::from_input(std::move(open_.back().key)), std::move(value));
    } else {
      open_.back().list.push_back(std::move(value));
    }
    return true;
  }

  std::string& error_;
  std::vector<Open> open_;
  Value root_;
};

class Dumper {
 public:
  Dumper(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}
  MarkedText take() { return std::move(out_); }

  void dump(const Value& value, int level) {
    budget_.spend(1);
    switch (value.kind()) {
      case Kind::kNone:
        return out_.append("null");
      case Kind::kBool:
        return out_.append(value.as_bool() ? "true" : "false");
      case Kind::kInt:
        return out_.append(std::to_string(value.as_int()));
      case Kind::kFloat:
        return dump_float(value);
      case Kind::kString:
        return dump_string(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return dump_container("[", value.items(), "]", level, [&](const Value& v) { dump(v, level + 1); });
      case Kind::kDict:
        return dump_dict(value.dict(), level);
      default:
        fail("{} cannot be written as JSON", describe(value));
    }
  }

 private:
  void dump_float(const Value& value) {
    const double f = value.as_double();
    if (!value.literal().empty()) return out_.append(value.literal());
    if (std::isnan(f)) return out_.append("NaN");
    if (std::isinf(f)) return out_.append(f < 0 ? "-Infinity" : "Infinity");
    out_.append(python_float(f));
  }

  void dump_dict(const Dict& dict, int level) {
    std::vector<const Dict::Item*> items;
    for (const Dict::Item& item : dict.items()) items.push_back(&item);
    if (style_.sort_keys) {
      std::sort(items.begin(), items.end(), [](auto* a, auto* b) { return a->first.str() < b->first.str(); });
    }
    dump_container("{", items, "}", level, [&](const Dict::Item* item) {
      dump_string(item->first);
      out_.append(style_.key_separator);
      dump(item->second, level + 1);
    });
  }

  template <typename Items, typename F>
  void dump_container(const char* open, const Items& items, const char* close, int level, F&& dump_item) {
    out_.append(open);
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_.append(style_.item_separator);
      first = false;
      new_line(level + 1);
      dump_item(item);
    }
    if (!first) new_line(level);
    out_.append(close);
  }
  void new_line(int level) {
    if (style_.indent < 0) return;
    const size_t spaces = static_cast<size_t>(style_.indent) * static_cast<size_t>(level);
    budget_.spend(spaces);
    out_.append("\n");
    out_.append(std::string(spaces, ' '));
  }

  void dump_string(const MarkedText& text) {
    budget_.spend(text.size());
    out_.append("\"");
    size_t plain = 0;  // start of the run that needs no escape
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Step step = next_utf8(text.str(), pos);
      const std::string escaped = escape(step.code_point);
      if (!escaped.empty()) {
        out_.append(text, plain, pos - plain);
        out_.append(escaped, text.is_from_input(pos));
        plain = pos + step.size;
      }
      pos += step.size;
    }
    out_.append(text, plain, text.size() - plain);
    out_.append("\"");
  }
  std::string escape(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    if (c < 0x20 || (style_.ensure_ascii && c >= 0x80 && c < 0x10000)) {
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    }
    if (!style_.ensure_ascii || c < 0x80) return {};
    const uint32_t offset = static_cast<uint32_t>(c) - 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
  }

  const JsonStyle& style_;
  Budget& budget_;
  MarkedText out_;
};

}  // namespace

std::optional<Value> parse_json(std::string_view text, std::string& error) {
  ValueBuilder builder(error);
  try {
    if (!json::sax_parse(text.begin(), text.end(), &builder)) return std::nullopt;
  } catch (const std::exception& e) {
    error = e.what();
    return std::nullopt;
  }
  return builder.take();
}

MarkedText dump_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Dumper dumper(style, budget);
  dumper.dump(value, 0);
  return dumper.take();
}

}  // namespace oasis::text::jinja
