// Filters, tests, methods and global functions.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oasis/text/jinja/failure.h"
#include "oasis/text/jinja/value.h"

namespace oasis::text::jinja {

// What one rendering shares.
struct Context {
  Budget budget;
  std::optional<int64_t> now_unix_seconds;
  std::deque<Namespace> namespaces = {};  // live until the end of the rendering: values refer to them
  int map_nesting = 0;                    // of filters called by map()
};

// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // By parameter, absent ones undefined. `callee` is for messages.
  std::vector<Value> bind(std::string_view callee, std::initializer_list<std::string_view> parameters) const;
};

struct Filter {
  std::string_view name;
  Value (*apply)(Context& context, const Value& value, const Arguments& arguments);
};
struct Test {
  std::string_view name;
  bool (*holds)(Context& context, const Value& value, const Arguments& arguments);
};
// Null: no such.
const Filter* find_filter(std::string_view name);
const Test* find_test(std::string_view name);

bool is_function(std::string_view name);
Value call_function(Context& context, std::string_view name, const Arguments& arguments);

// Whether `value.name` is a method before it is an item.
bool is_method(const Value& value, std::string_view name);
Value call_method(Context& context, const Value& self, std::string_view name, const Arguments& arguments);

// value.name and value[key]; undefined where there is none.
Value get_attribute(Context& context, const Value& value, const std::string& name);
Value get_item(Context& context, const Value& value, const Value& key);

// An integer argument; undefined gives `otherwise`.
int64_t integer_argument(const Value& value, int64_t otherwise, std::string_view what);
// A string argument; an error for anything else.
const MarkedText& text_argument(const Value& value, std::string_view what);

}  // namespace oasis::text::jinja
