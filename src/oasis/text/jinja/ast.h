// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "oasis/text/jinja/value.h"

namespace oasis::text::jinja {

struct Filter;
struct Test;

// Trees are at most this deep, so that recursion over them is bounded.
inline constexpr int kMaxTreeDepth = 200;

enum class Op {
  kLiteral,
  kName,       // name
  kList,       // args
  kTuple,      // args
  kDict,       // args: key, value, key, value, ...
  kAttribute,  // args[0].name
  kItem,       // args[0][args[1]]
  kSlice,      // args[0][args[1]:args[2]:args[3]], absent ones null
  kCall,       // args[0](args[1..], named)
  kFilter,     // args[0] | filter(args[1..], named)
  kTest,       // args[0] is test(args[1..], named)
  kNot,
  kNegative,
  kPositive,
  kAnd,
  kOr,
  kConditional,  // args[0] if args[1] else args[2] (or null)
  kCompare,      // args[0] compare[0] args[1] compare[1] args[2] ...
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,
};

enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expr {
  Op op = Op::kLiteral;
  int line = 0;
  int depth = 1;
  std::string name;
  Value literal;
  std::vector<std::unique_ptr<Expr>> args;
  std::vector<std::pair<std::string, std::unique_ptr<Expr>>> named;
  std::vector<Comparison> comparisons;
  const Filter* filter = nullptr;
  const Test* test = nullptr;
};
using ExprPtr = std::unique_ptr<Expr>;

enum class StmtKind {
  kText,
  kOutput,    // expr
  kIf,        // branches; the last may have no condition
  kFor,       // targets in expr if condition: body, otherwise
  kSet,       // targets (or targets[0].attribute) = expr
  kSetBlock,  // targets[0] (or targets[0].attribute) = what body writes
  kMacro,     // targets: name, then parameters; defaults: of the parameters, null where there is none
  kBreak,
  kContinue,
  kGroup,  // body, as it is ({% generation %})
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Branch {
  ExprPtr condition;  // null: else
  Block body;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  Value text;
  ExprPtr expr;
  ExprPtr condition;
  std::vector<std::string> targets;
  bool unpack = false;  // targets are a tuple
  std::string attribute;
  std::vector<ExprPtr> defaults;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
};

}  // namespace oasis::text::jinja
