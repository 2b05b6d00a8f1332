#include "oasis/text/jinja/value.h"

#include <algorithm>

#include "oasis/text/jinja/python_text.h"
#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

int checked_depth(int deepest) {
  if (deepest >= kMaxValueDepth) fail_limit("a value is nested more than {} deep", kMaxValueDepth);
  return deepest + 1;
}

}  // namespace

Value Value::undefined(std::string what) {
  Value value(Kind::kUndefined);
  value.object_ = std::make_shared<const std::string>(std::move(what));
  return value;
}

Value Value::boolean(bool b) {
  Value value(Kind::kBool);
  value.number_.i = b;
  return value;
}

Value Value::integer(int64_t i) {
  Value value(Kind::kInt);
  value.number_.i = i;
  return value;
}

Value Value::floating(double f, std::string literal) {
  Value value(Kind::kFloat);
  value.number_.f = f;
  if (!literal.empty()) value.object_ = std::make_shared<const std::string>(std::move(literal));
  return value;
}

Value Value::string(MarkedText text) {
  Value value(Kind::kString);
  value.object_ = std::make_shared<const MarkedText>(std::move(text));
  return value;
}

Value Value::list(std::vector<Value> items, Kind kind) {
  Value value(kind);
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  value.depth_ = checked_depth(deepest);
  value.object_ = std::make_shared<const std::vector<Value>>(std::move(items));
  return value;
}

Value Value::dict(Dict dict) {
  Value value(Kind::kDict);
  int deepest = 0;
  for (const auto& [key, item] : dict.items()) deepest = std::max(deepest, item.depth());
  value.depth_ = checked_depth(deepest);
  value.object_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value Value::space(Namespace* space) {
  Value value(Kind::kNamespace);
  value.number_.pointer = space;
  return value;
}

Value Value::loop(std::shared_ptr<const LoopState> loop) {
  Value value(Kind::kLoop);
  value.depth_ = checked_depth(loop->items.depth());
  value.object_ = std::move(loop);
  return value;
}

Value Value::macro(const Stmt* definition) {
  Value value(Kind::kMacro);
  value.number_.pointer = const_cast<Stmt*>(definition);
  return value;
}

Value Value::function(std::string name) {
  Value value(Kind::kFunction);
  value.object_ = std::make_shared<const std::string>(std::move(name));
  return value;
}

Value Value::method(Method method) {
  Value value(Kind::kMethod);
  value.depth_ = checked_depth(method.self.depth());
  value.object_ = std::make_shared<const Method>(std::move(method));
  return value;
}

double Value::as_double() const { return kind_ == Kind::kFloat ? number_.f : static_cast<double>(number_.i); }

const std::string& Value::literal() const {
  static const std::string kNone;
  return object_ ? *static_cast<const std::string*>(object_.get()) : kNone;
}

const Value* Dict::find(std::string_view key) const {
  if (items_.size() < kIndexFrom) {
    for (const Item& item : items_) {
      if (item.first.str() == key) return &item.second;
    }
    return nullptr;
  }
  const auto at = index_.find(std::string(key));
  return at == index_.end() ? nullptr : &items_[at->second].second;
}

void Dict::set(MarkedText key, Value value) {
  if (const Value* old = find(key.str())) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  items_.emplace_back(std::move(key), std::move(value));
  if (items_.size() == kIndexFrom) {
    for (size_t i = 0; i < items_.size(); ++i) index_.emplace(items_[i].first.str(), i);
  } else if (items_.size() > kIndexFrom) {
    index_.emplace(items_.back().first.str(), items_.size() - 1);
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    case Kind::kMacro:
      return "macro";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "method";
  }
  return "?";
}

std::string describe(const Value& value) {
  if (!value.is(Kind::kUndefined)) return fmt::format("a value of type {}", type_name(value));
  return value.has_name() ? fmt::format("{}, which is undefined", value.name()) : "an undefined value";
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return value.dict().size() != 0;
    default:
      return true;
  }
}

bool equals(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) return a.as_int() == b.as_int();
    return a.as_double() == b.as_double() && a.literal() == b.literal();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      budget.spend(a.text().size() / 8);
      return a.str() == b.str();
    case Kind::kList:
    case Kind::kTuple:
      return a.items().size() == b.items().size() &&
             std::equal(a.items().begin(), a.items().end(), b.items().begin(),
                        [&](const Value& x, const Value& y) { return equals(x, y, budget); });
    case Kind::kDict:
      return a.dict().size() == b.dict().size() &&
             std::all_of(a.dict().items().begin(), a.dict().items().end(), [&](const Dict::Item& item) {
               const Value* other = b.dict().find(item.first.str());
               return other != nullptr && equals(item.second, *other, budget);
             });
    case Kind::kNamespace:
      return a.space() == b.space();
    case Kind::kMacro:
      return a.macro() == b.macro();
    default:
      return false;
  }
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) return a.as_int() < b.as_int();
    return a.as_double() < b.as_double();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    budget.spend(std::min(a.text().size(), b.text().size()) / 8);
    return a.str() < b.str();  // UTF-8 sorts as its code points do
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n; ++i) {
      if (!equals(a.items()[i], b.items()[i], budget)) return less(a.items()[i], b.items()[i], budget);
    }
    return a.items().size() < b.items().size();
  }
  fail("{} and {} have no order", describe(a), describe(b));
}

namespace {

void append_repr(MarkedText& out, const Value& value, Budget& budget);

template <typename Items, typename F>
void append_joined(MarkedText& out, const char* open, const Items& items, const char* close, F&& append_item) {
  out.append(open);
  bool first = true;
  for (const auto& item : items) {
    if (!first) out.append(", ");
    first = false;
    append_item(item);
  }
  out.append(close);
}

// repr(value).
void append_repr(MarkedText& out, const Value& value, Budget& budget) {
  budget.spend(1);
  switch (value.kind()) {
    case Kind::kString:
      budget.spend(value.text().size());
      return append_python_repr(out, value.text());
    case Kind::kList:
      return append_joined(out, "[", value.items(), "]", [&](const Value& v) { append_repr(out, v, budget); });
    case Kind::kTuple:
      return append_joined(out, "(", value.items(), value.items().size() == 1 ? ",)" : ")",
                           [&](const Value& v) { append_repr(out, v, budget); });
    case Kind::kDict:
      return append_joined(out, "{", value.dict().items(), "}", [&](const Dict::Item& item) {
        budget.spend(item.first.size());
        append_python_repr(out, item.first);
        out.append(": ");
        append_repr(out, item.second, budget);
      });
    case Kind::kUndefined:
      return out.append("Undefined");
    default:
      return out.append(to_text(value, budget));
  }
}

}  // namespace

MarkedText to_text(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kNone:
      return MarkedText("None");
    case Kind::kBool:
      return MarkedText(value.as_bool() ? "True" : "False");
    case Kind::kInt:
      return MarkedText(std::to_string(value.as_int()));
    case Kind::kFloat:
      return MarkedText(value.literal().empty() ? python_float(value.as_double()) : value.literal());
    case Kind::kString:
      budget.spend(value.text().size());
      return value.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict: {
      MarkedText out;
      append_repr(out, value, budget);
      return out;
    }
    default:
      fail_unsupported("writing {} as text is not supported", describe(value));
  }
}

std::vector<Value> elements_of(const Value& value, Budget& budget) {
  std::vector<Value> out;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kList:
    case Kind::kTuple:
      budget.spend(8 * value.items().size());
      return value.items();
    case Kind::kDict:
      budget.spend(64 * value.dict().size());
      for (const auto& [key, item] : value.dict().items()) out.push_back(Value::string(key));
      break;
    case Kind::kString: {
      const MarkedText& text = value.text();
      budget.spend(32 * text.size());
      for (size_t pos = 0; pos < text.size();) {
        const auto n = static_cast<size_t>(next_utf8(text.str(), pos).size);
        out.push_back(Value::string(text.substr(pos, n)));
        pos += n;
      }
      break;
    }
    default:
      fail("{} has no elements to go over", describe(value));
  }
  return out;
}

}  // namespace oasis::text::jinja
