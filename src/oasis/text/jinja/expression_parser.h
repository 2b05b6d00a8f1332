// The part of the parser that reads expressions, by recursive descent along Jinja's grammar.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "oasis/text/jinja/ast.h"
#include "oasis/text/jinja/failure.h"
#include "oasis/text/jinja/lexer.h"

namespace oasis::text::jinja {

class ExpressionParser {
 protected:
  static constexpr int kMaxNesting = 100;  // of brackets, blocks and unary operators

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // An expression, or several with commas between: a tuple. Where "if" follows in another meaning, no conditional.
  ExprPtr parse_tuple(bool with_conditional = true);
  ExprPtr parse_expression();
  static bool is_constant(std::string_view name);

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
        return fmt::format("'{}'", std::string_view(token.text).substr(0, 40));
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
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.fail_here("nested more than {} deep", kMaxNesting);
    }
    ~Nested() { --parser_.nesting_; }
    Nested(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  // Makes and grows nodes; a tree that gets too deep is a Failure.
  ExprPtr make(Op op, int line, std::initializer_list<ExprPtr*> args = {});
  void adopt(Expr& parent, ExprPtr child);
  void adopt(Expr& parent, std::string name, ExprPtr child);
  void check_depth(Expr& parent, const ExprPtr& child);

  // From the loosest to the tightest.
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  std::optional<Comparison> take_comparison();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  template <typename F>
  void parse_elements(std::string_view close, F&& parse_element);
  ExprPtr literal(Value value, int line);
  Value number(const Token& token) const;
  ExprPtr parse_postfix(ExprPtr value);
  ExprPtr parse_subscript(ExprPtr value, int line);
  void parse_arguments(Expr& call);
  ExprPtr parse_filters(ExprPtr value);
  ExprPtr parse_filter(ExprPtr value, int line);
  ExprPtr parse_test(ExprPtr value, int line);
  bool starts_test_argument() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace oasis::text::jinja
