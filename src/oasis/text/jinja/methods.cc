// Attributes, items and methods of values.
#include <algorithm>

#include "oasis/text/jinja/builtins.h"
#include "oasis/text/jinja/operators.h"
#include "oasis/text/jinja/python_text.h"
#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

// startswith and endswith take a string or a tuple of strings.
template <typename F>
Value any_affix(const Value& affixes, std::string_view what, F&& matches) {
  if (!affixes.is(Kind::kTuple)) return Value::boolean(matches(text_argument(affixes, what).str()));
  return Value::boolean(std::any_of(affixes.items().begin(), affixes.items().end(),
                                    [&](const Value& affix) { return matches(text_argument(affix, what).str()); }));
}

std::vector<Value> to_values(std::vector<MarkedText> parts, Budget& budget) {
  budget.spend(64 * parts.size());
  std::vector<Value> values;
  for (MarkedText& part : parts) values.push_back(Value::string(std::move(part)));
  return values;
}

using StringMethod = Value (*)(Context& context, const MarkedText& self, const Arguments& arguments);

template <bool kLeft, bool kRight>
Value method_strip(Context&, const MarkedText& self, const Arguments& arguments) {
  const auto args = arguments.bind("strip", {"chars"});
  if (args[0].is(Kind::kUndefined) || args[0].is(Kind::kNone)) return Value::string(strip(self, kLeft, kRight));
  return Value::string(strip(self, text_argument(args[0], "strip's chars").str(), kLeft, kRight));
}

Value method_split(Context& context, const MarkedText& self, const Arguments& arguments) {
  const auto args = arguments.bind("split", {"sep", "maxsplit"});
  const int64_t max_splits = integer_argument(args[1], -1, "split's maxsplit");
  if (args[0].is(Kind::kUndefined) || args[0].is(Kind::kNone)) {
    return Value::list(to_values(split(self, max_splits), context.budget));
  }
  const MarkedText& separator = text_argument(args[0], "split's sep");
  if (separator.empty()) fail("split's separator is empty");
  return Value::list(to_values(split(self, separator.str(), max_splits), context.budget));
}

Value method_splitlines(Context& context, const MarkedText& self, const Arguments& arguments) {
  arguments.bind("splitlines", {});
  return Value::list(to_values(split_lines(self), context.budget));
}

Value method_startswith(Context&, const MarkedText& self, const Arguments& arguments) {
  return any_affix(arguments.bind("startswith", {"prefix"})[0], "startswith's prefix",
                   [&](const std::string& prefix) { return self.str().starts_with(prefix); });
}

Value method_endswith(Context&, const MarkedText& self, const Arguments& arguments) {
  return any_affix(arguments.bind("endswith", {"suffix"})[0], "endswith's suffix",
                   [&](const std::string& suffix) { return self.str().ends_with(suffix); });
}

Value method_replace(Context& context, const MarkedText& self, const Arguments& arguments) {
  const auto args = arguments.bind("replace", {"old", "new", "count"});
  return Value::string(replace(self, text_argument(args[0], "replace's old").str(),
                               text_argument(args[1], "replace's new"),
                               integer_argument(args[2], -1, "replace's count"), context.budget));
}

Value method_find(Context&, const MarkedText& self, const Arguments& arguments) {
  const auto args = arguments.bind("find", {"sub"});
  const size_t at = find_text(self.str(), text_argument(args[0], "find's sub").str());
  if (at == std::string_view::npos) return Value::integer(-1);
  return Value::integer(static_cast<int64_t>(count_utf8(std::string_view(self.str()).substr(0, at))));
}

Value method_count(Context&, const MarkedText& self, const Arguments& arguments) {
  const auto args = arguments.bind("count", {"sub"});
  const std::string& part = text_argument(args[0], "count's sub").str();
  if (part.empty()) return Value::integer(static_cast<int64_t>(count_utf8(self.str())) + 1);
  int64_t count = 0;
  for (size_t at = find_text(self.str(), part); at != std::string_view::npos;
       at = find_text(self.str(), part, at + part.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value method_join(Context& context, const MarkedText& self, const Arguments& arguments) {
  const auto args = arguments.bind("join", {"iterable"});
  MarkedText out;
  bool first = true;
  for (const Value& item : elements_of(args[0], context.budget)) {
    const MarkedText& text = text_argument(item, "an item to join");
    context.budget.spend(self.size() + text.size() + 1);
    if (!first) out.append(self);
    first = false;
    out.append(text);
  }
  return Value::string(std::move(out));
}

template <MarkedText (*kMap)(const MarkedText&)>
Value method_case(Context&, const MarkedText& self, const Arguments& arguments) {
  arguments.bind("the method", {});
  return Value::string(kMap(self));
}

Value method_isdigit(Context&, const MarkedText& self, const Arguments& arguments) {
  arguments.bind("isdigit", {});
  return Value::boolean(!self.empty() && self.str().find_first_not_of("0123456789") == std::string::npos);
}

Value method_isspace(Context&, const MarkedText& self, const Arguments& arguments) {
  arguments.bind("isspace", {});
  return Value::boolean(!self.empty() && strip(self, true, false).empty());
}

constexpr std::pair<std::string_view, StringMethod> kStringMethods[] = {
    {"capitalize", method_case<to_capitalized>},
    {"count", method_count},
    {"endswith", method_endswith},
    {"find", method_find},
    {"isdigit", method_isdigit},
    {"isspace", method_isspace},
    {"join", method_join},
    {"lower", method_case<to_lower>},
    {"lstrip", method_strip<true, false>},
    {"replace", method_replace},
    {"rstrip", method_strip<false, true>},
    {"split", method_split},
    {"splitlines", method_splitlines},
    {"startswith", method_startswith},
    {"strip", method_strip<true, true>},
    {"title", method_case<to_title>},
    {"upper", method_case<to_upper>},
};

StringMethod find_string_method(std::string_view name) {
  for (const auto& [known, method] : kStringMethods) {
    if (known == name) return method;
  }
  return nullptr;
}

Value call_dict_method(Context& context, const Value& self, std::string_view name, const Arguments& arguments) {
  const Dict& dict = self.dict();
  if (name == "get") {
    const auto args = arguments.bind("get", {"key", "default"});
    const Value* found = args[0].is(Kind::kString) ? dict.find(args[0].str()) : nullptr;
    if (found != nullptr) return *found;
    return args[1].is(Kind::kUndefined) ? Value::none() : args[1];
  }
  arguments.bind(name, {});
  context.budget.spend(64 * dict.size());
  std::vector<Value> out;
  for (const auto& [key, value] : dict.items()) {
    if (name == "keys") {
      out.push_back(Value::string(key));
    } else if (name == "values") {
      out.push_back(value);
    } else if (name == "items") {
      out.push_back(Value::list({Value::string(key), value}, Kind::kTuple));
    } else {
      fail_unsupported("the method '{}' of a dict is not supported", name);
    }
  }
  return Value::list(std::move(out));
}

Value call_list_method(Context& context, const Value& self, std::string_view name, const Arguments& arguments) {
  const Value item = arguments.bind(name, {"value"})[0];
  const std::vector<Value>& items = self.items();
  const auto is_item = [&](const Value& v) { return equals(v, item, context.budget); };
  if (name == "count") return Value::integer(std::count_if(items.begin(), items.end(), is_item));
  if (name != "index") fail_unsupported("the method '{}' of a list is not supported: lists do not change", name);
  const auto at = std::find_if(items.begin(), items.end(), is_item);
  if (at == items.end()) fail("index: the item is not in the list");
  return Value::integer(at - items.begin());
}

Value loop_attribute(const LoopState& loop, const std::string& name) {
  const std::vector<Value>& items = loop.items.items();
  const auto index = static_cast<int64_t>(loop.index0), length = static_cast<int64_t>(items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(1);  // recursive loops are not supported
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return index > 0 ? items[index - 1] : Value::undefined("loop.previtem");
  if (name == "nextitem") return index + 1 < length ? items[index + 1] : Value::undefined("loop.nextitem");
  fail_unsupported("'loop.{}' is not supported", name);
}

Value element(const Value& value, int64_t index) {
  if (value.is(Kind::kString)) {
    // A character's place is only known by counting.
    const MarkedText& text = value.text();
    if (index < 0) index += static_cast<int64_t>(count_utf8(text.str()));
    for (size_t pos = 0; index >= 0 && pos < text.size(); --index) {
      const auto n = static_cast<size_t>(next_utf8(text.str(), pos).size);
      if (index == 0) return Value::string(text.substr(pos, n));
      pos += n;
    }
    return Value::undefined("a character past the end of a string");
  }
  const auto size = static_cast<int64_t>(value.items().size());
  if (index < 0) index += size;
  return index >= 0 && index < size ? value.items()[index] : Value::undefined("an item past the end of a list");
}

}  // namespace

bool is_method(const Value& value, std::string_view name) {
  static constexpr std::string_view kDictMethods[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                      "pop",   "popitem", "setdefault", "update", "values"};
  static constexpr std::string_view kListMethods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                                      "insert", "pop",   "remove", "reverse", "sort"};
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  switch (value.kind()) {
    case Kind::kString:
      return find_string_method(name) != nullptr;
    case Kind::kDict:
      return among(kDictMethods);
    case Kind::kList:
      return among(kListMethods);
    case Kind::kTuple:
      return name == "count" || name == "index";
    case Kind::kLoop:
      return name == "cycle";
    default:
      return false;
  }
}

Value call_method(Context& context, const Value& self, std::string_view name, const Arguments& arguments) {
  switch (self.kind()) {
    case Kind::kString:
      context.budget.spend(self.text().size() + 16);
      return find_string_method(name)(context, self.text(), arguments);
    case Kind::kDict:
      return call_dict_method(context, self, name, arguments);
    case Kind::kLoop:
      if (arguments.positional.empty()) fail("loop.cycle needs an argument");
      return arguments.positional[self.loop().index0 % arguments.positional.size()];
    default:
      return call_list_method(context, self, name, arguments);
  }
}

Value get_attribute(Context& context, const Value& value, const std::string& name) {
  context.budget.spend(1);
  if (is_method(value, name)) return Value::method({value, name});
  const Value* found = nullptr;
  switch (value.kind()) {
    case Kind::kUndefined:
      fail("'{}' is asked of {}", name, describe(value));
    case Kind::kLoop:
      return loop_attribute(value.loop(), name);
    case Kind::kDict:
      found = value.dict().find(name);
      break;
    case Kind::kNamespace:
      found = value.space()->values.find(name);
      break;
    default:
      break;
  }
  return found != nullptr ? *found : Value::undefined(fmt::format("'{}' of {}", name, describe(value)));
}

Value get_item(Context& context, const Value& value, const Value& key) {
  context.budget.spend(1);
  if (value.is(Kind::kUndefined)) fail("an item is asked of {}", describe(value));
  if (key.is(Kind::kString)) {
    // An item goes before a method of that name.
    const Value* found = value.is(Kind::kDict) ? value.dict().find(key.str()) : nullptr;
    return found != nullptr ? *found : get_attribute(context, value, key.str());
  }
  const bool has_elements = value.is_sequence() || value.is(Kind::kString);
  if (has_elements && (key.is(Kind::kInt) || key.is(Kind::kBool))) {
    if (value.is(Kind::kString)) context.budget.spend(value.text().size() / 8);
    return element(value, key.as_int());
  }
  return Value::undefined(fmt::format("an item of {}", describe(value)));
}

}  // namespace oasis::text::jinja
