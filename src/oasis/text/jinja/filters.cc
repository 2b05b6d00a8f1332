#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_set>

#include "oasis/text/jinja/builtins.h"
#include "oasis/text/jinja/json.h"
#include "oasis/text/jinja/operators.h"
#include "oasis/text/jinja/python_text.h"
#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

MarkedText as_text(Context& context, const Value& value) { return to_text(value, context.budget); }

// --- text ---
Value apply_string(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("string", {});
  return Value::string(as_text(context, value));
}

Value apply_trim(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("trim", {"chars"});
  const MarkedText text = as_text(context, value);
  if (args[0].is(Kind::kUndefined) || args[0].is(Kind::kNone)) return Value::string(strip(text, true, true));
  return Value::string(strip(text, text_argument(args[0], "trim's chars").str(), true, true));
}

template <MarkedText (*kMap)(const MarkedText&)>
Value apply_case(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("the filter", {});
  return Value::string(kMap(as_text(context, value)));
}

Value apply_replace(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("replace", {"old", "new", "count"});
  const MarkedText old = as_text(context, args[0]), by = as_text(context, args[1]);
  const int64_t count = args[2].is(Kind::kNone) ? -1 : integer_argument(args[2], -1, "replace's count");
  return Value::string(replace(as_text(context, value), old.str(), by, count, context.budget));
}

Value apply_indent(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("indent", {"width", "first", "blank"});
  const MarkedText text = as_text(context, value);
  MarkedText indention;
  if (args[0].is(Kind::kString)) {
    indention = args[0].text();
  } else {
    const int64_t width = std::max<int64_t>(integer_argument(args[0], 4, "indent's width"), 0);
    context.budget.spend(static_cast<uint64_t>(width));
    indention.append(std::string(static_cast<size_t>(width), ' '));
  }
  const bool first = is_true(args[1]), blank = is_true(args[2]);
  MarkedText with_end = text;
  with_end.append("\n");  // as jinja2: a last empty line stays a line
  const std::vector<MarkedText> lines = split_lines(with_end);
  MarkedText out;
  for (size_t i = 0; i < lines.size(); ++i) {
    context.budget.spend(indention.size() + 1);
    if (i > 0) out.append("\n");
    if (i == 0 ? first : blank || !lines[i].empty()) out.append(indention);
    out.append(lines[i]);
  }
  return Value::string(std::move(out));
}

Value apply_safe(Context& context, const Value& value, const Arguments& arguments) {
  return apply_string(context, value, arguments);  // nothing is escaped here
}

Value apply_tojson(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = is_true(args[0]);
  style.sort_keys = is_true(args[3]);
  if (!args[1].is(Kind::kNone) && !args[1].is(Kind::kUndefined)) {
    style.indent = static_cast<int>(std::clamp<int64_t>(integer_argument(args[1], 0, "tojson's indent"), 0, 1024));
    style.item_separator = std::string(1, ',');  // as json.dumps with an indent
  }
  if (args[2].is_sequence() && args[2].items().size() == 2) {
    style.item_separator = text_argument(args[2].items()[0], "tojson's separators").str();
    style.key_separator = text_argument(args[2].items()[1], "tojson's separators").str();
  } else if (!args[2].is(Kind::kNone) && !args[2].is(Kind::kUndefined)) {
    fail("tojson's separators are {}, not two strings", describe(args[2]));
  }
  return Value::string(dump_json(value, style, context.budget));
}

// --- numbers ---
// float(text); nothing where Python raises ValueError.
std::optional<double> parse_float(Context& context, const MarkedText& text) {
  const std::string digits = strip(text, true, true).str();
  context.budget.spend(digits.size());
  if (digits.empty() || digits.find_first_of("xX") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  return end == digits.c_str() + digits.size() ? std::optional(number) : std::nullopt;
}

Value apply_int(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("int", {"default", "base"});
  const Value otherwise = args[0].is(Kind::kUndefined) ? Value::integer(0) : args[0];
  if (!args[1].is(Kind::kUndefined)) fail_unsupported("int's base is not supported");
  if (value.is(Kind::kInt) || value.is(Kind::kBool)) return Value::integer(value.as_int());
  if (value.is(Kind::kUndefined)) fail("int cannot be applied to {}", describe(value));
  double number = 0;
  if (value.is(Kind::kString)) {
    const std::string text = strip(value.text(), true, true).str();
    const char* begin = text.c_str() + (text.starts_with('+') ? 1 : 0);
    int64_t integer = 0;
    const auto parsed = std::from_chars(begin, text.c_str() + text.size(), integer);
    if (parsed.ec == std::errc() && parsed.ptr == text.c_str() + text.size()) return Value::integer(integer);
    const auto floating = parse_float(context, value.text());
    if (!floating || !std::isfinite(*floating)) return otherwise;
    number = *floating;
  } else if (value.is(Kind::kFloat)) {
    number = value.as_double();
  } else {
    return otherwise;
  }
  if (!(std::fabs(number) < 9.2e18)) fail_unsupported("int: {} does not fit 64 bits", number);
  return Value::integer(static_cast<int64_t>(number));
}

Value apply_float(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("float", {"default"});
  const Value otherwise = args[0].is(Kind::kUndefined) ? Value::floating(0) : args[0];
  if (value.is_number()) return Value::floating(value.as_double());
  if (value.is(Kind::kUndefined)) fail("float cannot be applied to {}", describe(value));
  const auto number = value.is(Kind::kString) ? parse_float(context, value.text()) : std::nullopt;
  return number ? Value::floating(*number) : otherwise;
}

// --- collections ---
Value apply_length(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("length", {});
  switch (value.kind()) {
    case Kind::kUndefined:
      return Value::integer(0);
    case Kind::kString:
      context.budget.spend(value.text().size() / 8);
      return Value::integer(static_cast<int64_t>(count_utf8(value.str())));
    case Kind::kList:
    case Kind::kTuple:
      return Value::integer(static_cast<int64_t>(value.items().size()));
    case Kind::kDict:
      return Value::integer(static_cast<int64_t>(value.dict().size()));
    case Kind::kLoop:
      return get_attribute(context, value, "length");
    default:
      fail("{} has no length", describe(value));
  }
}

Value apply_list(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("list", {});
  return Value::list(elements_of(value, context.budget));
}

Value apply_items(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("items", {});
  if (value.is(Kind::kUndefined)) return Value::list({});
  if (!value.is(Kind::kDict)) fail("items cannot be applied to {}", describe(value));
  return call_method(context, value, "items", {});
}

Value apply_first(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("first", {});
  const std::vector<Value> items = elements_of(value, context.budget);
  return items.empty() ? Value::undefined("the first item of an empty sequence") : items.front();
}

Value apply_last(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("last", {});
  const std::vector<Value> items = elements_of(value, context.budget);
  return items.empty() ? Value::undefined("the last item of an empty sequence") : items.back();
}

Value apply_reverse(Context& context, const Value& value, const Arguments& arguments) {
  arguments.bind("reverse", {});
  const Value step = Value::integer(-1);
  if (value.is(Kind::kString)) return slice(value, Value(), Value(), step, context.budget);
  return slice(Value::list(elements_of(value, context.budget)), Value(), Value(), step, context.budget);
}

Value apply_default(Context&, const Value& value, const Arguments& arguments) {
  auto args = arguments.bind("default", {"default_value", "boolean"});
  const bool replaced = value.is(Kind::kUndefined) || (is_true(args[1]) && !is_true(value));
  if (!replaced) return value;
  return args[0].is(Kind::kUndefined) ? Value::string({}) : args[0];
}

// "a.b" of a value: attributes or items, one after the other.
Value attribute_path(Context& context, const Value& value, const Value& path) {
  if (path.is(Kind::kInt)) return get_item(context, value, path);
  Value current = value;
  for (const MarkedText& part : split(text_argument(path, "an attribute"), ".", -1)) {
    const bool index =
        !part.empty() && part.str().find_first_not_of("0123456789") == std::string::npos && part.size() < 10;
    current = get_item(context, current, index ? Value::integer(std::atoll(part.str().c_str())) : Value::string(part));
  }
  return current;
}

Value apply_join(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("join", {"d", "attribute"});
  const MarkedText separator = as_text(context, args[0]);
  MarkedText out;
  bool first = true;
  for (const Value& item : elements_of(value, context.budget)) {
    context.budget.spend(separator.size() + 1);
    if (!first) out.append(separator);
    first = false;
    const bool plain = args[1].is(Kind::kUndefined) || args[1].is(Kind::kNone);
    out.append(as_text(context, plain ? item : attribute_path(context, item, args[1])));
  }
  return Value::string(std::move(out));
}

// map('upper'), map('default', 'x'), map(attribute='role', default='x')
Value apply_map(Context& context, const Value& value, const Arguments& arguments) {
  constexpr int kMaxNesting = 16;  // map('map', 'map', ...)
  std::vector<Value> out;
  const std::vector<Value> items = elements_of(value, context.budget);
  if (arguments.positional.empty()) {
    const auto args = arguments.bind("map", {"attribute", "default"});
    for (const Value& item : items) {
      context.budget.spend(32);
      Value found = attribute_path(context, item, args[0]);
      if (found.is(Kind::kUndefined) && !args[1].is(Kind::kUndefined)) found = args[1];
      out.push_back(std::move(found));
    }
    return Value::list(std::move(out));
  }
  const std::string& name = text_argument(arguments.positional[0], "map's filter").str();
  const Filter* filter = find_filter(name);
  if (filter == nullptr) fail_unsupported("the filter '{}' is not supported", name);
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  if (++context.map_nesting > kMaxNesting) fail_limit("map is nested more than {} deep", kMaxNesting);
  for (const Value& item : items) {
    context.budget.spend(32);
    out.push_back(filter->apply(context, item, rest));
  }
  --context.map_nesting;
  return Value::list(std::move(out));
}

// The items for which a test (by default: truth) of the item, or of one of its attributes, is `wanted`.
Value select(Context& context, const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  std::vector<Value> rest = arguments.positional;
  Value path;
  if (by_attribute) {
    if (rest.empty()) fail("selectattr and rejectattr need the name of an attribute");
    path = rest[0];
    rest.erase(rest.begin());
  }
  const Test* test = nullptr;
  if (!rest.empty()) {
    const std::string& name = text_argument(rest[0], "the test").str();
    test = find_test(name);
    if (test == nullptr) fail_unsupported("the test '{}' is not supported", name);
    rest.erase(rest.begin());
  }
  const Arguments test_arguments{rest, arguments.named};
  std::vector<Value> out;
  for (const Value& item : elements_of(value, context.budget)) {
    context.budget.spend(32);
    const Value tested = by_attribute ? attribute_path(context, item, path) : item;
    if ((test == nullptr ? is_true(tested) : test->holds(context, tested, test_arguments)) == wanted)
      out.push_back(item);
  }
  return Value::list(std::move(out));
}
template <bool kByAttribute, bool kWanted>
Value apply_select(Context& context, const Value& value, const Arguments& arguments) {
  return select(context, value, arguments, kByAttribute, kWanted);
}

Value folded(const Value& value, bool case_sensitive) {
  return value.is(Kind::kString) && !case_sensitive ? Value::string(to_lower(value.text())) : value;
}

Value apply_sort(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : elements_of(value, context.budget)) {
    const bool plain = args[2].is(Kind::kUndefined) || args[2].is(Kind::kNone);
    keyed.emplace_back(folded(plain ? item : attribute_path(context, item, args[2]), is_true(args[1])), item);
  }
  const bool reverse = is_true(args[0]);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, context.budget) : less(a.first, b.first, context.budget);
  });
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return Value::list(std::move(out));
}

Value apply_unique(Context& context, const Value& value, const Arguments& arguments) {
  const auto args = arguments.bind("unique", {"case_sensitive", "attribute"});
  std::vector<Value> keys, out;
  std::unordered_set<std::string> strings;
  for (const Value& item : elements_of(value, context.budget)) {
    const bool plain = args[1].is(Kind::kUndefined) || args[1].is(Kind::kNone);
    const Value key = folded(plain ? item : attribute_path(context, item, args[1]), is_true(args[0]));
    if (key.is(Kind::kString)) {
      if (strings.insert(key.str()).second) out.push_back(item);
    } else if (!contains(Value::list(keys), key, context.budget)) {
      context.budget.spend(keys.size());
      keys.push_back(key);
      out.push_back(item);
    }
  }
  return Value::list(std::move(out));
}

constexpr Filter kFilters[] = {
    {"capitalize", apply_case<to_capitalized>},
    {"count", apply_length},
    {"d", apply_default},
    {"default", apply_default},
    {"first", apply_first},
    {"float", apply_float},
    {"indent", apply_indent},
    {"int", apply_int},
    {"items", apply_items},
    {"join", apply_join},
    {"last", apply_last},
    {"length", apply_length},
    {"list", apply_list},
    {"lower", apply_case<to_lower>},
    {"map", apply_map},
    {"reject", apply_select<false, false>},
    {"rejectattr", apply_select<true, false>},
    {"replace", apply_replace},
    {"reverse", apply_reverse},
    {"safe", apply_safe},
    {"select", apply_select<false, true>},
    {"selectattr", apply_select<true, true>},
    {"sort", apply_sort},
    {"string", apply_string},
    {"title", apply_case<to_title>},
    {"tojson", apply_tojson},
    {"trim", apply_trim},
    {"unique", apply_unique},
    {"upper", apply_case<to_upper>},
};

}  // namespace

const Filter* find_filter(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](const Filter& f) { return f.name == name; });
  return at == std::end(kFilters) ? nullptr : at;
}

}  // namespace oasis::text::jinja
