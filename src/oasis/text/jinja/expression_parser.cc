#include "oasis/text/jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>

#include "oasis/text/jinja/builtins.h"

namespace oasis::text::jinja {

ExprPtr ExpressionParser::make(Op op, int line, std::initializer_list<ExprPtr*> args) {
  auto expr = std::make_unique<Expr>();
  expr->op = op;
  expr->line = line;
  for (ExprPtr* arg : args) adopt(*expr, std::move(*arg));
  return expr;
}
void ExpressionParser::adopt(Expr& parent, ExprPtr child) {
  check_depth(parent, child);
  parent.args.push_back(std::move(child));
}
void ExpressionParser::adopt(Expr& parent, std::string name, ExprPtr child) {
  check_depth(parent, child);
  parent.named.emplace_back(std::move(name), std::move(child));
}
void ExpressionParser::check_depth(Expr& parent, const ExprPtr& child) {
  if (child == nullptr) return;
  parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxTreeDepth) fail_here("an expression has more than {} levels", kMaxTreeDepth);
}

// --- expressions, from the loosest to the tightest ---
ExprPtr ExpressionParser::parse_tuple(bool with_conditional) {
  const int line = peek().line;
  ExprPtr first = with_conditional ? parse_expression() : parse_or();
  if (!is_operator(",")) return first;
  ExprPtr tuple = make(Op::kTuple, line, {&first});
  while (skip_operator(",")) {
    if (peek().kind == TokenKind::kVariableEnd || peek().kind == TokenKind::kBlockEnd || is_operator(")")) break;
    adopt(*tuple, with_conditional ? parse_expression() : parse_or());
  }
  return tuple;
}

ExprPtr ExpressionParser::parse_expression() {
  const Nested nested(*this);
  ExprPtr value = parse_or();
  while (is_name("if")) {
    const int line = take().line;
    ExprPtr condition = parse_or();
    ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    value = make(Op::kConditional, line, {&value, &condition, &otherwise});
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    const int line = take().line;
    ExprPtr right = parse_and();
    left = make(Op::kOr, line, {&left, &right});
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    const int line = take().line;
    ExprPtr right = parse_not();
    left = make(Op::kAnd, line, {&left, &right});
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nested nested(*this);
  const int line = take().line;
  ExprPtr operand = parse_not();
  return make(Op::kNot, line, {&operand});
}

std::optional<Comparison> ExpressionParser::take_comparison() {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual}, {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">", Comparison::kGreater},   {">=", Comparison::kGreaterEqual}};
  for (const auto& [text, comparison] : kOperators) {
    if (skip_operator(text)) return comparison;
  }
  if (skip_name("in")) return Comparison::kIn;
  if (is_name("not") && peek(1).kind == TokenKind::kName && peek(1).text == "in") {
    take();
    take();
    return Comparison::kNotIn;
  }
  return std::nullopt;
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = peek().line;
  ExprPtr left = parse_sum();
  auto comparison = take_comparison();
  if (!comparison) return left;
  ExprPtr compare = make(Op::kCompare, line, {&left});
  for (; comparison; comparison = take_comparison()) {
    compare->comparisons.push_back(*comparison);
    adopt(*compare, parse_sum());
  }
  return compare;
}

ExprPtr ExpressionParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    const Token token = take();
    ExprPtr right = parse_concat();
    left = make(token.text == "+" ? Op::kAdd : Op::kSubtract, token.line, {&left, &right});
  }
  return left;
}

ExprPtr ExpressionParser::parse_concat() {
  const int line = peek().line;
  ExprPtr left = parse_product();
  if (!is_operator("~")) return left;
  ExprPtr concat = make(Op::kConcat, line, {&left});
  while (skip_operator("~")) adopt(*concat, parse_product());
  return concat;
}

ExprPtr ExpressionParser::parse_product() {
  ExprPtr left = parse_power();
  for (;;) {
    const Op op = is_operator("*")    ? Op::kMultiply
                  : is_operator("/")  ? Op::kDivide
                  : is_operator("//") ? Op::kFloorDivide
                  : is_operator("%")  ? Op::kModulo
                                      : Op::kLiteral;
    if (op == Op::kLiteral) return left;
    const int line = take().line;
    ExprPtr right = parse_power();
    left = make(op, line, {&left, &right});
  }
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary(true);
  while (is_operator("**")) {
    const int line = take().line;
    ExprPtr right = parse_unary(true);
    left = make(Op::kPower, line, {&left, &right});
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  ExprPtr value;
  if (is_operator("-") || is_operator("+")) {
    const Nested nested(*this);
    const Token token = take();
    ExprPtr operand = parse_unary(false);
    value = make(token.text == "-" ? Op::kNegative : Op::kPositive, token.line, {&operand});
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters(std::move(value)) : std::move(value);
}

bool ExpressionParser::is_constant(std::string_view name) {
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) return true;
  }
  return false;
}

ExprPtr ExpressionParser::parse_primary() {
  const Token token = peek();
  switch (token.kind) {
    case TokenKind::kName: {
      take();
      ExprPtr expr = make(is_constant(token.text) ? Op::kLiteral : Op::kName, token.line);
      expr->name = token.text;
      if (expr->op == Op::kLiteral) {
        const char first = token.text[0];
        expr->literal = first == 'n' || first == 'N' ? Value::none() : Value::boolean(first == 't' || first == 'T');
      }
      return expr;
    }
    case TokenKind::kString: {
      std::string text;
      while (peek().kind == TokenKind::kString) text += take().text;  // "a" "b" is one string
      return literal(Value::string(MarkedText(std::move(text))), token.line);
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      take();
      return literal(number(token), token.line);
    default:
      break;
  }
  if (skip_operator("(")) {
    ExprPtr inner = is_operator(")") ? make(Op::kTuple, token.line) : parse_tuple();
    expect_operator(")");
    return inner;
  }
  if (skip_operator("[")) {
    ExprPtr list = make(Op::kList, token.line);
    parse_elements("]", [&] { adopt(*list, parse_expression()); });
    return list;
  }
  if (skip_operator("{")) {
    ExprPtr dict = make(Op::kDict, token.line);
    parse_elements("}", [&] {
      adopt(*dict, parse_expression());
      expect_operator(":");
      adopt(*dict, parse_expression());
    });
    return dict;
  }
  fail_here("expected an expression, found {}", shown(token));
}

template <typename F>
void ExpressionParser::parse_elements(std::string_view close, F&& parse_element) {
  for (bool first = true; !skip_operator(close); first = false) {
    if (!first) {
      expect_operator(",");
      if (skip_operator(close)) return;
    }
    parse_element();
  }
}

ExprPtr ExpressionParser::literal(Value value, int line) {
  ExprPtr expr = make(Op::kLiteral, line);
  expr->literal = std::move(value);
  return expr;
}

Value ExpressionParser::number(const Token& token) const {
  std::string digits;
  for (const char c : token.text) {
    if (c != '_') digits += c;
  }
  if (token.kind == TokenKind::kFloat) return Value::floating(std::strtod(digits.c_str(), nullptr));
  int base = 10;
  const char* begin = digits.c_str();
  const char* end = begin + digits.size();
  if (digits.size() > 2 && digits[0] == '0' && digits[1] > '9') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    begin += 2;
  }
  int64_t value = 0;
  if (base == 0 || std::from_chars(begin, end, value, base).ptr != end) fail_here("'{}' is no number", token.text);
  if (std::from_chars(begin, end, value, base).ec != std::errc()) {
    unsupported_here("the integer {} does not fit 64 bits", token.text.substr(0, 40));
  }
  return Value::integer(value);
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr value) {
  for (;;) {
    const int line = peek().line;
    if (skip_operator(".")) {
      if (peek().kind == TokenKind::kInteger) {  // x.0 is x[0]
        ExprPtr key = literal(number(take()), line);
        value = make(Op::kItem, line, {&value, &key});
        continue;
      }
      const std::string name = expect_name();
      value = make(Op::kAttribute, line, {&value});
      value->name = name;
    } else if (skip_operator("[")) {
      value = parse_subscript(std::move(value), line);
    } else if (is_operator("(")) {
      value = make(Op::kCall, line, {&value});
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr value, int line) {
  ExprPtr parts[3];
  int count = 0;
  bool slice = false;
  for (;;) {
    if (!is_operator(":") && !is_operator("]")) parts[count] = parse_expression();
    if (!is_operator(":") || count == 2) break;
    take();
    slice = true;
    ++count;
  }
  if (is_operator(",")) unsupported_here("a subscript with several parts is not supported");
  expect_operator("]");
  if (slice) return make(Op::kSlice, line, {&value, &parts[0], &parts[1], &parts[2]});
  if (parts[0] == nullptr) fail_here("a subscript is empty");
  return make(Op::kItem, line, {&value, &parts[0]});
}

// "(a, b, c=d)"
void ExpressionParser::parse_arguments(Expr& call) {
  expect_operator("(");
  parse_elements(")", [&] {
    if (is_operator("*") || is_operator("**")) unsupported_here("* and ** arguments are not supported");
    if (peek().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator && peek(1).text == "=") {
      std::string name = take().text;
      take();
      adopt(call, std::move(name), parse_expression());
    } else if (!call.named.empty()) {
      fail_here("a positional argument follows a named one");
    } else {
      adopt(call, parse_expression());
    }
  });
}

ExprPtr ExpressionParser::parse_filters(ExprPtr value) {
  for (;;) {
    const int line = peek().line;
    if (skip_operator("|")) {
      value = parse_filter(std::move(value), line);
    } else if (skip_name("is")) {
      value = parse_test(std::move(value), line);
    } else if (is_operator("(")) {
      value = make(Op::kCall, line, {&value});
      parse_arguments(*value);
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::parse_filter(ExprPtr value, int line) {
  const std::string name = expect_name();
  ExprPtr filter = make(Op::kFilter, line, {&value});
  filter->filter = find_filter(name);
  if (filter->filter == nullptr) unsupported_here("the filter '{}' is not supported", name);
  if (is_operator("(")) parse_arguments(*filter);
  return filter;
}

ExprPtr ExpressionParser::parse_test(ExprPtr value, int line) {
  const bool negated = skip_name("not");
  const std::string name = expect_name();
  ExprPtr test = make(Op::kTest, line, {&value});
  test->test = find_test(name);
  if (test->test == nullptr) unsupported_here("the test '{}' is not supported", name);
  if (is_operator("(")) {
    parse_arguments(*test);
  } else if (starts_test_argument()) {
    const Nested nested(*this);
    adopt(*test, parse_postfix(parse_primary()));
  }
  return negated ? make(Op::kNot, line, {&test}) : std::move(test);
}
bool ExpressionParser::starts_test_argument() const {
  const Token& token = peek();
  if (token.kind == TokenKind::kName) {
    for (const char* word : {"else", "or", "and", "is", "if", "in", "not"}) {
      if (token.text == word) return false;
    }
    return true;
  }
  return token.kind == TokenKind::kString || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
         is_operator("[") || is_operator("{");
}

}  // namespace oasis::text::jinja
