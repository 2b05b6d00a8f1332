// JSON to values and back, as Python's json module does it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "oasis/text/jinja/value.h"

namespace oasis::text::jinja {

// Nothing where `text` is not JSON or nested too deep; `error` then says why. All its strings count as input.
std::optional<Value> parse_json(std::string_view text, std::string& error);

struct JsonStyle {
  int indent = -1;  // spaces a level; negative: one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// json.dumps(value).
MarkedText dump_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace oasis::text::jinja
