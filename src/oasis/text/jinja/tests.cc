#include <algorithm>

#include "oasis/text/jinja/builtins.h"
#include "oasis/text/jinja/operators.h"

namespace oasis::text::jinja {

namespace {

template <Kind... kKinds>
bool is_kind(Context&, const Value& value, const Arguments& arguments) {
  arguments.bind("the test", {});
  return (value.is(kKinds) || ...);
}

bool is_defined(Context&, const Value& value, const Arguments&) { return !value.is(Kind::kUndefined); }
bool is_true_value(Context&, const Value& value, const Arguments&) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_false_value(Context&, const Value& value, const Arguments&) {
  return value.is(Kind::kBool) && !value.as_bool();
}

template <Comparison kComparison>
bool holds(Context& context, const Value& value, const Arguments& arguments) {
  return compare(kComparison, value, arguments.bind("the test", {"other"})[0], context.budget);
}

bool is_same(Context& context, const Value& value, const Arguments& arguments) {
  const Value other = arguments.bind("sameas", {"other"})[0];
  if (value.kind() != other.kind()) return false;
  if (value.is(Kind::kString) || value.is_sequence() || value.is(Kind::kDict)) {
    fail_unsupported("sameas cannot compare values of type {}", type_name(value));
  }
  return equals(value, other, context.budget);
}

int64_t remainder(Context& context, const Value& value, const Value& divisor) {
  const Value rest = arithmetic(Op::kModulo, value, divisor, context.budget);
  return rest.is(Kind::kFloat) ? (rest.as_double() == 1 ? 1 : rest.as_double() == 0 ? 0 : 2) : rest.as_int();
}
bool is_odd(Context& context, const Value& value, const Arguments&) {
  return remainder(context, value, Value::integer(2)) == 1;
}
bool is_even(Context& context, const Value& value, const Arguments&) {
  return remainder(context, value, Value::integer(2)) == 0;
}
bool is_divisible(Context& context, const Value& value, const Arguments& arguments) {
  return remainder(context, value, arguments.bind("divisibleby", {"num"})[0]) == 0;
}

constexpr Test kTests[] = {
    {"!=", holds<Comparison::kNotEqual>},
    {"<", holds<Comparison::kLess>},
    {"<=", holds<Comparison::kLessEqual>},
    {"==", holds<Comparison::kEqual>},
    {">", holds<Comparison::kGreater>},
    {">=", holds<Comparison::kGreaterEqual>},
    {"boolean", is_kind<Kind::kBool>},
    {"callable", is_kind<Kind::kUndefined, Kind::kMacro, Kind::kFunction, Kind::kMethod>},
    {"defined", is_defined},
    {"divisibleby", is_divisible},
    {"eq", holds<Comparison::kEqual>},
    {"equalto", holds<Comparison::kEqual>},
    {"even", is_even},
    {"false", is_false_value},
    {"float", is_kind<Kind::kFloat>},
    {"ge", holds<Comparison::kGreaterEqual>},
    {"greaterthan", holds<Comparison::kGreater>},
    {"gt", holds<Comparison::kGreater>},
    {"in", holds<Comparison::kIn>},
    {"integer", is_kind<Kind::kInt>},
    {"iterable", is_kind<Kind::kUndefined, Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kLoop>},
    {"le", holds<Comparison::kLessEqual>},
    {"lessthan", holds<Comparison::kLess>},
    {"lt", holds<Comparison::kLess>},
    {"mapping", is_kind<Kind::kDict>},
    {"ne", holds<Comparison::kNotEqual>},
    {"none", is_kind<Kind::kNone>},
    {"number", is_kind<Kind::kBool, Kind::kInt, Kind::kFloat>},
    {"odd", is_odd},
    {"sameas", is_same},
    {"sequence", is_kind<Kind::kUndefined, Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict>},
    {"string", is_kind<Kind::kString>},
    {"true", is_true_value},
    {"undefined", is_kind<Kind::kUndefined>},
};

}  // namespace

const Test* find_test(std::string_view name) {
  const auto at = std::find_if(std::begin(kTests), std::end(kTests), [&](const Test& t) { return t.name == name; });
  return at == std::end(kTests) ? nullptr : at;
}

}  // namespace oasis::text::jinja
