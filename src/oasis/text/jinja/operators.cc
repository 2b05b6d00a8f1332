#include "oasis/text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "oasis/text/jinja/python_text.h"
#include "oasis/text/utf8.h"

namespace oasis::text::jinja {

namespace {

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSubtract:
      return "-";
    case Op::kMultiply:
      return "*";
    case Op::kDivide:
      return "/";
    case Op::kFloorDivide:
      return "//";
    case Op::kModulo:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void fail_overflow(Op op) { fail_unsupported("the result of {} does not fit 64 bits", symbol(op)); }

Value integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  // |base| >= 2 overflows within 63 steps; the others need no loop.
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow(Op::kPower);
  }
  return Value::integer(result);
}

Value integer_arithmetic(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow(op);
      return Value::integer(result);
    case Op::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow(op);
      return Value::integer(result);
    case Op::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow(op);
      return Value::integer(result);
    case Op::kPower:
      if (b >= 0) return integer_power(a, b);
      if (a == 0) fail("0 has no negative power");
      return Value::floating(std::pow(static_cast<double>(a), static_cast<double>(b)));
    default:
      break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::kDivide) return Value::floating(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    if (op == Op::kModulo) return Value::integer(0);
    return integer_arithmetic(Op::kSubtract, 0, a);
  }
  // Python rounds towards minus infinity and gives the remainder the divisor's sign.
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  return Value::integer(op == Op::kModulo ? remainder + (adjust ? b : 0) : a / b - (adjust ? 1 : 0));
}

Value float_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value::floating(a + b);
    case Op::kSubtract:
      return Value::floating(a - b);
    case Op::kMultiply:
      return Value::floating(a * b);
    case Op::kPower:
      return Value::floating(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::kDivide) return Value::floating(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value::floating(op == Op::kModulo ? remainder : std::round((a - remainder) / b));
}

Value repeated(const Value& value, int64_t times, Budget& budget) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  const uint64_t size = value.is(Kind::kString) ? value.text().size() : 8 * value.items().size();
  uint64_t total = 0;
  if (__builtin_mul_overflow(n, size, &total)) total = UINT64_MAX;
  budget.spend(total);
  if (value.is(Kind::kString)) {
    MarkedText text;
    if (size > 0) {
      for (uint64_t i = 0; i < n; ++i) text.append(value.text());
    }
    return Value::string(std::move(text));
  }
  std::vector<Value> items;
  if (size > 0) {
    for (uint64_t i = 0; i < n; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return Value::list(std::move(items), value.kind());
}

// A slice's bounds for `size` elements, by Python's rules: from `begin`, `count` elements, `step` apart.
struct Bounds {
  int64_t begin, count, step;
};

std::optional<int64_t> slice_index(const Value& value) {
  if (value.is(Kind::kUndefined) || value.is(Kind::kNone)) return std::nullopt;
  if (!value.is(Kind::kInt) && !value.is(Kind::kBool)) fail("a slice bound is {}, not an integer", describe(value));
  return value.as_int();
}

Bounds slice_bounds(int64_t size, const Value& start, const Value& stop, const Value& step_value) {
  const int64_t step = slice_index(step_value).value_or(1);
  if (step == 0) fail("a slice's step is 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    const auto index = slice_index(value);
    if (!index) return otherwise;
    return std::clamp(*index < 0 ? *index + size : *index, low, high);
  };
  const int64_t begin = bound(start, step > 0 ? low : high), end = bound(stop, step > 0 ? high : low);
  const int64_t distance = step > 0 ? end - begin : begin - end;
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  if (distance <= 0) return {0, 0, 1};
  return {begin, static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride + 1), step};
}

}  // namespace

Value arithmetic(Op op, const Value& a, const Value& b, Budget& budget) {
  budget.spend(1);
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::kFloat) || b.is(Kind::kFloat)) return float_arithmetic(op, a.as_double(), b.as_double());
    return integer_arithmetic(op, a.as_int(), b.as_int());
  }
  const auto is_integer = [](const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBool); };
  const auto repeats = [](const Value& v) { return v.is(Kind::kString) || v.is_sequence(); };
  if (op == Op::kMultiply && repeats(a) && is_integer(b)) return repeated(a, b.as_int(), budget);
  if (op == Op::kMultiply && repeats(b) && is_integer(a)) return repeated(b, a.as_int(), budget);
  if (op == Op::kAdd && a.is(Kind::kString) && b.is(Kind::kString)) {
    budget.spend(16 + a.text().size() + b.text().size());
    MarkedText text = a.text();
    text.append(b.text());
    return Value::string(std::move(text));
  }
  if (op == Op::kAdd && a.is_sequence() && a.kind() == b.kind()) {
    budget.spend(8 * (a.items().size() + b.items().size()));
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return Value::list(std::move(items), a.kind());
  }
  if (op == Op::kModulo && a.is(Kind::kString)) fail_unsupported("formatting a string with % is not supported");
  fail("{} cannot be applied to {} and {}", symbol(op), describe(a), describe(b));
}

Value negative(const Value& value) {
  if (value.is(Kind::kFloat)) return Value::floating(-value.as_double());
  if (!value.is_number()) fail("- cannot be applied to {}", describe(value));
  return integer_arithmetic(Op::kSubtract, 0, value.as_int());
}

bool compare(Comparison comparison, const Value& a, const Value& b, Budget& budget) {
  switch (comparison) {
    case Comparison::kEqual:
      return equals(a, b, budget);
    case Comparison::kNotEqual:
      return !equals(a, b, budget);
    case Comparison::kLess:
      return less(a, b, budget);
    case Comparison::kGreater:
      return less(b, a, budget);
    case Comparison::kLessEqual:
      return less(a, b, budget) || equals(a, b, budget);
    case Comparison::kGreaterEqual:
      return less(b, a, budget) || equals(a, b, budget);
    case Comparison::kIn:
      return contains(b, a, budget);
    case Comparison::kNotIn:
      return !contains(b, a, budget);
  }
  return false;
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  budget.spend(1);
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString)) fail("'in' a string needs a string, not {}", describe(item));
      budget.spend(container.text().size() / 8);
      return find_text(container.str(), item.str()) != std::string_view::npos;
    case Kind::kDict:
      return item.is(Kind::kString) && container.dict().find(item.str()) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const Value& v) { return equals(v, item, budget); });
    default:
      fail("'in' cannot be applied to {}", describe(container));
  }
}

Value slice(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  if (value.is_sequence()) {
    const Bounds bounds = slice_bounds(static_cast<int64_t>(value.items().size()), start, stop, step);
    budget.spend(8 * static_cast<uint64_t>(bounds.count));
    std::vector<Value> items;
    for (int64_t i = 0; i < bounds.count; ++i) items.push_back(value.items()[bounds.begin + i * bounds.step]);
    return Value::list(std::move(items), value.kind());
  }
  if (value.is(Kind::kString)) {
    const MarkedText& text = value.text();
    budget.spend(text.size());
    std::vector<size_t> starts;  // of the characters, and the end
    for (size_t pos = 0; pos < text.size(); pos += next_utf8(text.str(), pos).size) starts.push_back(pos);
    starts.push_back(text.size());
    const Bounds bounds = slice_bounds(static_cast<int64_t>(starts.size()) - 1, start, stop, step);
    if (bounds.step == 1) {
      const size_t begin = starts[bounds.begin];
      return Value::string(text.substr(begin, starts[bounds.begin + bounds.count] - begin));
    }
    MarkedText out;
    for (int64_t i = 0; i < bounds.count; ++i) {
      const int64_t c = bounds.begin + i * bounds.step;
      out.append(text, starts[c], starts[c + 1] - starts[c]);
    }
    return Value::string(std::move(out));
  }
  fail("{} cannot be sliced", describe(value));
}

}  // namespace oasis::text::jinja
