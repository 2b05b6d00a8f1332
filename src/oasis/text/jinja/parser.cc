#include "oasis/text/jinja/parser.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string>

#include "oasis/text/jinja/builtins.h"
#include "oasis/text/jinja/lexer.h"

namespace oasis::text::jinja {

namespace {

constexpr int kMaxNesting = 100;  // of brackets, blocks and unary operators

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block run() { return parse_block({}); }

 private:
  // --- tokens ---
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token take() {
    Token token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(TokenKind kind, std::string_view text) const { return peek().kind == kind && peek().text == text; }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator, text); }
  bool is_name(std::string_view text) const { return is(TokenKind::kName, text); }
  bool skip_operator(std::string_view text) {
    if (!is_operator(text)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view text) {
    if (!is_name(text)) return false;
    take();
    return true;
  }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) fail_here("expected '{}', found {}", text, shown(peek()));
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::kName) fail_here("expected a name, found {}", shown(peek()));
    return take().text;
  }
  void expect(TokenKind kind) {
    if (peek().kind != kind) fail_here("expected the end of the tag, found {}", shown(peek()));
    take();
  }
  static std::string shown(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kVariableEnd:
        return "'}}'";
      case TokenKind::kBlockEnd:
        return "'%}'";
      default:
        return "'" + token.text.substr(0, 40) + "'";
    }
  }

  template <typename... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> f, Args&&... args) const {
    throw Failure{StatusCode::kInvalidArgument, fmt::format(f, std::forward<Args>(args)...), peek().line};
  }
  template <typename... Args>
  [[noreturn]] void unsupported_here(fmt::format_string<Args...> f, Args&&... args) const {
    throw Failure{StatusCode::kUnsupported, fmt::format(f, std::forward<Args>(args)...), peek().line};
  }

  // Counts nesting while it lives.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail_here("nested more than {} deep", kMaxNesting);
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  ExprPtr make(Op op, int line, std::initializer_list<ExprPtr*> args = {}) {
    auto expr = std::make_unique<Expr>();
    expr->op = op;
    expr->line = line;
    for (ExprPtr* arg : args) adopt(*expr, std::move(*arg));
    return expr;
  }
  void adopt(Expr& parent, ExprPtr child) {
    check_depth(parent, child);
    parent.args.push_back(std::move(child));
  }
  void adopt(Expr& parent, std::string name, ExprPtr child) {
    check_depth(parent, child);
    parent.named.emplace_back(std::move(name), std::move(child));
  }
  void check_depth(Expr& parent, const ExprPtr& child) {
    if (child == nullptr) return;
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxTreeDepth) fail_here("an expression has more than {} levels", kMaxTreeDepth);
  }

  // --- statements ---
  // Up to a tag whose name is in `ends`, or the end of the template. The tag itself is left.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Block block;
    for (;;) {
      const Token& token = peek();
      if (token.kind == TokenKind::kEnd) return block;
      if (token.kind == TokenKind::kData) {
        auto stmt = make_stmt(StmtKind::kText);
        stmt->text = Value::string(MarkedText(take().text));
        block.push_back(std::move(stmt));
      } else if (token.kind == TokenKind::kVariableBegin) {
        auto stmt = make_stmt(StmtKind::kOutput);
        take();
        stmt->expr = parse_tuple();
        expect(TokenKind::kVariableEnd);
        block.push_back(std::move(stmt));
      } else {
        const std::string& name = peek(1).text;
        for (const std::string_view end : ends) {
          if (name == end) return block;
        }
        take();
        block.push_back(parse_statement());
      }
    }
  }

  // The body up to {% end %} or one of the others, which are left for the caller.
  Block parse_body(std::initializer_list<std::string_view> ends, std::string_view opened_by, int line) {
    expect(TokenKind::kBlockEnd);
    Block body = parse_block(ends);
    if (peek().kind == TokenKind::kEnd) {
      throw Failure{StatusCode::kInvalidArgument, fmt::format("{{% {} %}} has no end", opened_by), line};
    }
    take();  // "{%"
    return body;
  }

  std::unique_ptr<Stmt> make_stmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = peek().line;
    return stmt;
  }

  std::unique_ptr<Stmt> parse_statement() {
    if (peek().kind != TokenKind::kName) fail_here("expected the name of a tag, found {}", shown(peek()));
    const std::string name = peek().text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "break" || name == "continue") return parse_loop_control(name);
    if (name == "generation") return parse_generation();
    for (const char* known : {"block", "extends", "include", "import", "from", "call", "filter", "with", "autoescape",
                              "do", "trans", "debug"}) {
      if (name == known) unsupported_here("the tag {{% {} %}} is not supported", name);
    }
    fail_here("unknown or misplaced tag '{}'", name);
  }

  std::unique_ptr<Stmt> parse_if() {
    auto stmt = make_stmt(StmtKind::kIf);
    take();
    for (bool more = true; more;) {
      Branch branch;
      branch.condition = parse_tuple(/*with_conditional=*/false);
      branch.body = parse_body({"elif", "else", "endif"}, "if", stmt->line);
      stmt->branches.push_back(std::move(branch));
      more = skip_name("elif");
    }
    if (skip_name("else")) {
      Branch branch;
      branch.body = parse_body({"endif"}, "if", stmt->line);
      stmt->branches.push_back(std::move(branch));
    }
    take();  // endif
    expect(TokenKind::kBlockEnd);
    return stmt;
  }

  std::unique_ptr<Stmt> parse_for() {
    auto stmt = make_stmt(StmtKind::kFor);
    take();
    parse_targets(*stmt);
    if (!skip_name("in")) fail_here("expected 'in', found {}", shown(peek()));
    stmt->expr = parse_tuple(/*with_conditional=*/false);
    if (skip_name("if")) stmt->condition = parse_expression();
    if (is_name("recursive")) unsupported_here("recursive loops are not supported");
    ++loops_;
    ++scopes_;
    stmt->body = parse_body({"else", "endfor"}, "for", stmt->line);
    --loops_;
    if (skip_name("else")) stmt->otherwise = parse_body({"endfor"}, "for", stmt->line);
    --scopes_;
    take();  // endfor
    expect(TokenKind::kBlockEnd);
    return stmt;
  }

  void parse_targets(Stmt& stmt) {
    const bool bracket = skip_operator("(");
    do {
      if (is_operator(")") || (stmt.unpack && peek().kind != TokenKind::kName)) break;  // "a, b,"
      stmt.targets.push_back(expect_name());
      if (stmt.targets.back() == "loop" || is_constant(stmt.targets.back())) {
        fail_here("'{}' cannot be assigned to", stmt.targets.back());
      }
      if (is_operator(",")) stmt.unpack = true;
    } while (skip_operator(","));
    if (bracket) expect_operator(")");
    if (stmt.targets.empty()) fail_here("expected a name, found {}", shown(peek()));
  }

  std::unique_ptr<Stmt> parse_set() {
    auto stmt = make_stmt(StmtKind::kSet);
    take();
    parse_targets(*stmt);
    if (!stmt->unpack && skip_operator(".")) stmt->attribute = expect_name();
    if (skip_operator("=")) {
      stmt->expr = parse_tuple();
      expect(TokenKind::kBlockEnd);
      return stmt;
    }
    if (is_operator("|")) unsupported_here("a filter on a {{% set %}} block is not supported");
    if (stmt->unpack) fail_here("expected '=', found {}", shown(peek()));
    stmt->kind = StmtKind::kSetBlock;
    ++scopes_;
    stmt->body = parse_body({"endset"}, "set", stmt->line);
    --scopes_;
    take();  // endset
    expect(TokenKind::kBlockEnd);
    return stmt;
  }

  std::unique_ptr<Stmt> parse_macro() {
    auto stmt = make_stmt(StmtKind::kMacro);
    if (scopes_ > 0) unsupported_here("a macro inside a loop, block or macro is not supported");
    take();
    stmt->targets.push_back(expect_name());
    expect_operator("(");
    while (!skip_operator(")")) {
      if (stmt->targets.size() > 1) expect_operator(",");
      stmt->targets.push_back(expect_name());
      const bool has_default = skip_operator("=");
      if (!has_default && !stmt->defaults.empty() && stmt->defaults.back() != nullptr) {
        fail_here("a parameter without a default follows one with a default");
      }
      stmt->defaults.push_back(has_default ? parse_expression() : nullptr);
    }
    ++scopes_;
    stmt->body = parse_body({"endmacro"}, "macro", stmt->line);
    --scopes_;
    take();  // endmacro
    expect(TokenKind::kBlockEnd);
    return stmt;
  }

  std::unique_ptr<Stmt> parse_loop_control(const std::string& name) {
    if (loops_ == 0) fail_here("{{% {} %}} stands outside of a loop", name);
    auto stmt = make_stmt(name == "break" ? StmtKind::kBreak : StmtKind::kContinue);
    take();
    expect(TokenKind::kBlockEnd);
    return stmt;
  }

  std::unique_ptr<Stmt> parse_generation() {
    auto stmt = make_stmt(StmtKind::kGroup);
    take();
    stmt->body = parse_body({"endgeneration"}, "generation", stmt->line);
    take();  // endgeneration
    expect(TokenKind::kBlockEnd);
    return stmt;
  }

  // --- expressions, from the loosest to the tightest ---
  ExprPtr parse_tuple(bool with_conditional = true) {
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

  ExprPtr parse_expression() {
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

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (is_name("or")) {
      const int line = take().line;
      ExprPtr right = parse_and();
      left = make(Op::kOr, line, {&left, &right});
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (is_name("and")) {
      const int line = take().line;
      ExprPtr right = parse_not();
      left = make(Op::kAnd, line, {&left, &right});
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nested nested(*this);
    const int line = take().line;
    ExprPtr operand = parse_not();
    return make(Op::kNot, line, {&operand});
  }

  std::optional<Comparison> take_comparison() {
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

  ExprPtr parse_compare() {
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

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (is_operator("+") || is_operator("-")) {
      const Token token = take();
      ExprPtr right = parse_concat();
      left = make(token.text == "+" ? Op::kAdd : Op::kSubtract, token.line, {&left, &right});
    }
    return left;
  }

  ExprPtr parse_concat() {
    const int line = peek().line;
    ExprPtr left = parse_product();
    if (!is_operator("~")) return left;
    ExprPtr concat = make(Op::kConcat, line, {&left});
    while (skip_operator("~")) adopt(*concat, parse_product());
    return concat;
  }

  ExprPtr parse_product() {
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

  ExprPtr parse_power() {
    ExprPtr left = parse_unary(true);
    while (is_operator("**")) {
      const int line = take().line;
      ExprPtr right = parse_unary(true);
      left = make(Op::kPower, line, {&left, &right});
    }
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
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

  static bool is_constant(std::string_view name) {
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) return true;
    }
    return false;
  }

  ExprPtr parse_primary() {
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
  void parse_elements(std::string_view close, F&& parse_element) {
    for (bool first = true; !skip_operator(close); first = false) {
      if (!first) {
        expect_operator(",");
        if (skip_operator(close)) return;
      }
      parse_element();
    }
  }

  ExprPtr literal(Value value, int line) {
    ExprPtr expr = make(Op::kLiteral, line);
    expr->literal = std::move(value);
    return expr;
  }

  Value number(const Token& token) const {
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

  ExprPtr parse_postfix(ExprPtr value) {
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

  ExprPtr parse_subscript(ExprPtr value, int line) {
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
  void parse_arguments(Expr& call) {
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

  ExprPtr parse_filters(ExprPtr value) {
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

  ExprPtr parse_filter(ExprPtr value, int line) {
    const std::string name = expect_name();
    ExprPtr filter = make(Op::kFilter, line, {&value});
    filter->filter = find_filter(name);
    if (filter->filter == nullptr) unsupported_here("the filter '{}' is not supported", name);
    if (is_operator("(")) parse_arguments(*filter);
    return filter;
  }

  ExprPtr parse_test(ExprPtr value, int line) {
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
  bool starts_test_argument() const {
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;   // around here
  int scopes_ = 0;  // loops, macros and {% set %} blocks around here
};

}  // namespace

Block parse(std::string_view source) { return Parser(lex(source)).run(); }

}  // namespace oasis::text::jinja
