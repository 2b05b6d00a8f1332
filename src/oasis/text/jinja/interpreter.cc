#include "oasis/text/jinja/interpreter.h"

#include <algorithm>

#include "oasis/text/jinja/operators.h"

namespace oasis::text::jinja {

namespace {

constexpr int kMaxNesting = 600;  // of statements and expressions together, through macros

}  // namespace

class Interpreter::Nested {
 public:
  explicit Nested(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.nesting_ > kMaxNesting)
      fail_limit("the template nests or recurses more than {} deep", kMaxNesting);
  }
  ~Nested() { --interpreter_.nesting_; }
  Nested(const Nested&) = delete;

 private:
  Interpreter& interpreter_;
};

MarkedText Interpreter::run(const Block& block, Variables variables) {
  frames_.clear();
  frames_.push_back(std::move(variables));
  try {
    execute(block);
  } catch (Failure& failure) {
    if (failure.line == 0) failure.line = line_;
    throw;
  }
  return std::move(out_);
}

void Interpreter::write(const MarkedText& text) {
  context_.budget.spend(text.size());
  out_.append(text);
}

MarkedText Interpreter::capture(const Block& block) {
  MarkedText outer = std::move(out_);
  out_ = {};
  execute(block);
  return std::exchange(out_, std::move(outer));
}

Value Interpreter::lookup(const std::string& name) {
  for (size_t i = frames_.size(); i-- > 0;) {
    if (i != 0 && i < first_visible_) continue;
    for (const auto& [known, value] : frames_[i]) {
      if (known == name) return value;
    }
  }
  return is_function(name) ? Value::function(name) : Value::undefined(fmt::format("'{}'", name));
}

void Interpreter::assign(const std::string& name, Value value) {
  for (auto& [known, old] : frames_.back()) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  frames_.back().emplace_back(name, std::move(value));
}

// --- statements ---

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const auto& stmt : block) {
    const Flow flow = execute(*stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt) {
  const Nested nested(*this);
  context_.budget.spend(1);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      write(stmt.text.text());
      break;
    case StmtKind::kOutput:
      write(to_text(evaluate(*stmt.expr), context_.budget));
      break;
    case StmtKind::kIf:
      return execute_if(stmt);
    case StmtKind::kFor:
      execute_for(stmt);
      break;
    case StmtKind::kSet:
      execute_set(stmt, evaluate(*stmt.expr));
      break;
    case StmtKind::kSetBlock: {
      frames_.emplace_back();
      MarkedText text = capture(stmt.body);
      frames_.pop_back();
      execute_set(stmt, Value::string(std::move(text)));
      break;
    }
    case StmtKind::kMacro:
      assign(stmt.targets[0], Value::macro(&stmt));
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    case StmtKind::kGroup:
      return execute(stmt.body);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (branch.condition == nullptr || is_true(evaluate(*branch.condition))) return execute(branch.body);
  }
  return Flow::kNext;
}

void Interpreter::execute_for(const Stmt& stmt) {
  auto loop = std::make_shared<LoopState>();
  loop->items = Value::list(loop_items(stmt));
  const std::vector<Value>& items = loop->items.items();
  if (items.empty()) {
    frames_.emplace_back();
    execute(stmt.otherwise);
    frames_.pop_back();
    return;
  }
  for (; loop->index0 < items.size(); ++loop->index0) {
    context_.budget.spend(4);
    frames_.emplace_back();
    assign("loop", Value::loop(loop));
    assign_targets(stmt, items[loop->index0]);
    const Flow flow = execute(stmt.body);
    frames_.pop_back();
    if (flow == Flow::kBreak) return;
  }
}

std::vector<Value> Interpreter::loop_items(const Stmt& stmt) {
  std::vector<Value> items = elements_of(evaluate(*stmt.expr), context_.budget);
  if (stmt.condition == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    frames_.emplace_back();
    assign_targets(stmt, item);
    if (is_true(evaluate(*stmt.condition))) chosen.push_back(std::move(item));
    frames_.pop_back();
  }
  return chosen;
}

void Interpreter::assign_targets(const Stmt& stmt, const Value& value) {
  if (!stmt.unpack) return assign(stmt.targets[0], value);
  const std::vector<Value> parts = elements_of(value, context_.budget);
  if (parts.size() != stmt.targets.size()) {
    fail("{} values cannot be unpacked into {} names", parts.size(), stmt.targets.size());
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(stmt.targets[i], parts[i]);
}

void Interpreter::execute_set(const Stmt& stmt, Value value) {
  if (stmt.attribute.empty()) return assign_targets(stmt, value);
  const Value target = lookup(stmt.targets[0]);
  if (!target.is(Kind::kNamespace)) {
    fail("'{}.{}' cannot be set: '{}' is {}, not a namespace", stmt.targets[0], stmt.attribute, stmt.targets[0],
         describe(target));
  }
  target.space()->values.set(MarkedText(stmt.attribute), std::move(value));
}

// --- expressions ---

Value Interpreter::evaluate(const Expr& expr) {
  const Nested nested(*this);
  context_.budget.spend(1);
  line_ = expr.line;
  const auto arg = [&](size_t i) { return evaluate(*expr.args[i]); };
  switch (expr.op) {
    case Op::kLiteral:
      return expr.literal;
    case Op::kName:
      return lookup(expr.name);
    case Op::kList:
    case Op::kTuple: {
      context_.budget.spend(8 * expr.args.size());
      std::vector<Value> items;
      for (const ExprPtr& item : expr.args) items.push_back(evaluate(*item));
      return Value::list(std::move(items), expr.op == Op::kList ? Kind::kList : Kind::kTuple);
    }
    case Op::kDict: {
      context_.budget.spend(64 * expr.args.size());
      Dict dict;
      for (size_t i = 0; i < expr.args.size(); i += 2) {
        const Value key = arg(i);
        if (!key.is(Kind::kString)) fail_unsupported("a dict's key is {}; only strings are supported", describe(key));
        dict.set(key.text(), arg(i + 1));
      }
      return Value::dict(std::move(dict));
    }
    case Op::kAttribute:
      return get_attribute(context_, arg(0), expr.name);
    case Op::kItem: {
      const Value container = arg(0);
      return get_item(context_, container, arg(1));
    }
    case Op::kSlice: {
      const Value container = arg(0);
      const Value start = evaluate_or_undefined(expr.args[1]), stop = evaluate_or_undefined(expr.args[2]);
      return slice(container, start, stop, evaluate_or_undefined(expr.args[3]), context_.budget);
    }
    case Op::kCall:
      return evaluate_call(expr);
    case Op::kFilter: {
      const Value value = arg(0);
      return expr.filter->apply(context_, value, evaluate_arguments(expr));
    }
    case Op::kTest: {
      const Value value = arg(0);
      return Value::boolean(expr.test->holds(context_, value, evaluate_arguments(expr)));
    }
    case Op::kNot:
      return Value::boolean(!is_true(arg(0)));
    case Op::kNegative:
      return negative(arg(0));
    case Op::kPositive: {
      Value value = arg(0);
      if (!value.is_number()) fail("+ cannot be applied to {}", describe(value));
      return value.is(Kind::kBool) ? Value::integer(value.as_int()) : value;
    }
    case Op::kAnd: {
      Value left = arg(0);
      return is_true(left) ? arg(1) : left;
    }
    case Op::kOr: {
      Value left = arg(0);
      return is_true(left) ? left : arg(1);
    }
    case Op::kConditional:
      return is_true(arg(1)) ? arg(0) : evaluate_or_undefined(expr.args[2]);
    case Op::kCompare:
      return Value::boolean(compare_chain(expr));
    case Op::kConcat: {
      context_.budget.spend(16);
      MarkedText text;
      for (const ExprPtr& part : expr.args) {
        const MarkedText more = to_text(evaluate(*part), context_.budget);
        context_.budget.spend(more.size());
        text.append(more);
      }
      return Value::string(std::move(text));
    }
    default: {
      const Value left = arg(0);
      return arithmetic(expr.op, left, arg(1), context_.budget);
    }
  }
}

bool Interpreter::compare_chain(const Expr& expr) {
  Value left = evaluate(*expr.args[0]);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    Value right = evaluate(*expr.args[i + 1]);
    if (!compare(expr.comparisons[i], left, right, context_.budget)) return false;
    left = std::move(right);
  }
  return true;
}

Arguments Interpreter::evaluate_arguments(const Expr& expr) {
  Arguments arguments;
  for (size_t i = 1; i < expr.args.size(); ++i) arguments.positional.push_back(evaluate(*expr.args[i]));
  for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Interpreter::evaluate_call(const Expr& expr) {
  const Value callee = evaluate(*expr.args[0]);
  const Arguments arguments = evaluate_arguments(expr);
  line_ = expr.line;
  switch (callee.kind()) {
    case Kind::kMethod:
      return call_method(context_, callee.method().self, callee.method().name, arguments);
    case Kind::kFunction:
      return call_function(context_, callee.name(), arguments);
    case Kind::kMacro:
      return call_macro(*callee.macro(), arguments);
    default:
      fail("{} cannot be called", describe(callee));
  }
}

Value Interpreter::call_macro(const Stmt& macro, const Arguments& arguments) {
  const std::string& name = macro.targets[0];
  const size_t parameters = macro.targets.size() - 1;
  if (arguments.positional.size() > parameters) {
    fail("macro '{}' takes at most {} arguments, {} given", name, parameters, arguments.positional.size());
  }
  for (const auto& [given, value] : arguments.named) {
    if (std::find(macro.targets.begin() + 1, macro.targets.end(), given) == macro.targets.end()) {
      fail("macro '{}' has no parameter '{}'", name, given);
    }
  }
  const size_t outer_visible = std::exchange(first_visible_, frames_.size());
  frames_.emplace_back();
  for (size_t i = 0; i < parameters; ++i) {
    const std::string& parameter = macro.targets[i + 1];
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == parameter; });
    if (i < arguments.positional.size()) {
      assign(parameter, arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      assign(parameter, named->second);
    } else {
      assign(parameter, macro.defaults[i] == nullptr ? Value::undefined(fmt::format("parameter '{}'", parameter))
                                                     : evaluate(*macro.defaults[i]));
    }
  }
  MarkedText text = capture(macro.body);
  frames_.pop_back();
  first_visible_ = outer_visible;
  return Value::string(std::move(text));
}

}  // namespace oasis::text::jinja
