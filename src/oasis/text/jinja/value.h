// What expressions evaluate to: Python's values as far as templates see them, immutable but for namespaces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "oasis/text/jinja/failure.h"
#include "oasis/text/jinja/marked_text.h"

namespace oasis::text::jinja {

enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,  // namespace(...): the one mutable thing
  kLoop,       // `loop` inside {% for %}
  kMacro,
  kFunction,  // a global: range, raise_exception, ...
  kMethod,    // text.strip and the like, not yet called
};

class Dict;
struct Namespace;
struct LoopState;
struct Method;
struct Stmt;  // a macro's definition

// Nesting is bounded when a value is made, so that recursion over values is.
inline constexpr int kMaxValueDepth = 128;

class Value {
 public:
  Value() = default;                         // undefined
  static Value undefined(std::string what);  // what was looked up, for messages
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b);
  static Value integer(int64_t i);
  // `literal`: how the number is written, where a double does not hold it (integers past 64 bits).
  static Value floating(double f, std::string literal = "");
  static Value string(MarkedText text);
  static Value list(std::vector<Value> items, Kind kind = Kind::kList);
  static Value dict(Dict dict);
  static Value space(Namespace* space);  // owned by the rendering
  static Value loop(std::shared_ptr<const LoopState> loop);
  static Value macro(const Stmt* definition);
  static Value function(std::string name);
  static Value method(Method method);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::kInt || kind_ == Kind::kFloat || kind_ == Kind::kBool; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  // Each only for its kind.
  bool as_bool() const { return number_.i != 0; }
  int64_t as_int() const { return number_.i; }  // also of a bool
  double as_double() const;                     // of any number
  const std::string& literal() const;           // of kFloat; mostly empty
  const MarkedText& text() const { return *static_cast<const MarkedText*>(object_.get()); }
  const std::string& str() const { return text().str(); }
  const std::vector<Value>& items() const { return *static_cast<const std::vector<Value>*>(object_.get()); }
  const Dict& dict() const { return *static_cast<const Dict*>(object_.get()); }
  Namespace* space() const { return static_cast<Namespace*>(number_.pointer); }
  const LoopState& loop() const { return *static_cast<const LoopState*>(object_.get()); }
  const Stmt* macro() const { return static_cast<const Stmt*>(number_.pointer); }
  const std::string& name() const { return *static_cast<const std::string*>(object_.get()); }  // function, undefined
  bool has_name() const { return object_ != nullptr; }
  const Method& method() const { return *static_cast<const Method*>(object_.get()); }

  int depth() const { return depth_; }  // 1 + that of the deepest element

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kUndefined;
  int depth_ = 0;
  union {
    int64_t i;
    double f;
    void* pointer;
  } number_ = {0};
  std::shared_ptr<const void> object_;
};

// In the order of insertion, as in Python. Keys are strings.
class Dict {
 public:
  using Item = std::pair<MarkedText, Value>;
  const std::vector<Item>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  const Value* find(std::string_view key) const;
  void set(MarkedText key, Value value);  // an existing key keeps its place

 private:
  static constexpr size_t kIndexFrom = 16;  // smaller ones are searched
  std::vector<Item> items_;
  std::unordered_map<std::string, size_t> index_;
};

struct Namespace {
  Dict values;
};

struct LoopState {
  Value items;  // a list
  size_t index0 = 0;
  int depth = 1;
};

struct Method {
  Value self;
  std::string name;
};

// "str", "int", "NoneType", ...
std::string_view type_name(const Value& value);
// For messages: "'x' is undefined" or the type.
std::string describe(const Value& value);

bool is_true(const Value& value);
bool equals(const Value& a, const Value& b, Budget& budget);
// a < b; an error for values that have no order.
bool less(const Value& a, const Value& b, Budget& budget);

// str(value), as {{ }} writes it.
MarkedText to_text(const Value& value, Budget& budget);
// The elements a {% for %} visits: of a list, a tuple, a dict (its keys), a string (its characters), undefined (none).
std::vector<Value> elements_of(const Value& value, Budget& budget);

}  // namespace oasis::text::jinja
