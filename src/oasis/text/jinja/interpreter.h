// Runs a parsed template.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oasis/text/jinja/ast.h"
#include "oasis/text/jinja/builtins.h"

namespace oasis::text::jinja {

class Interpreter {
 public:
  using Variables = std::vector<std::pair<std::string, Value>>;

  explicit Interpreter(Context& context) : context_(context) {}

  // Throws Failure, with its line.
  MarkedText run(const Block& block, Variables variables);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Nested;

  // statements
  Flow execute(const Block& block);
  Flow execute(const Stmt& stmt);
  Flow execute_if(const Stmt& stmt);
  void execute_for(const Stmt& stmt);
  void execute_set(const Stmt& stmt, Value value);
  std::vector<Value> loop_items(const Stmt& stmt);
  void assign_targets(const Stmt& stmt, const Value& value);
  void write(const MarkedText& text);
  MarkedText capture(const Block& block);

  // expressions
  Value evaluate(const Expr& expr);
  Value evaluate_or_undefined(const ExprPtr& expr) { return expr == nullptr ? Value() : evaluate(*expr); }
  bool compare_chain(const Expr& expr);
  Value evaluate_call(const Expr& expr);
  Value call_macro(const Stmt& macro, const Arguments& arguments);
  Arguments evaluate_arguments(const Expr& expr);

  // variables: those of the innermost frame go first. A macro sees its own frames and the template's.
  Value lookup(const std::string& name);
  void assign(const std::string& name, Value value);

  Context& context_;
  std::vector<Variables> frames_;
  size_t first_visible_ = 0;
  MarkedText out_;
  int nesting_ = 0;
  int line_ = 0;
};

}  // namespace oasis::text::jinja
