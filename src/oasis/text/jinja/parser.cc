#include "oasis/text/jinja/parser.h"

#include <initializer_list>
#include <string>

#include "oasis/text/jinja/expression_parser.h"

namespace oasis::text::jinja {

namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Block run() { return parse_block({}); }

 private:
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

  int loops_ = 0;   // around here
  int scopes_ = 0;  // loops, macros and {% set %} blocks around here
};

}  // namespace

Block parse(std::string_view source) { return Parser(lex(source)).run(); }

}  // namespace oasis::text::jinja
