// Python's operators on values.
#pragma once

#include "oasis/text/jinja/ast.h"
#include "oasis/text/jinja/value.h"

namespace oasis::text::jinja {

// kAdd .. kPower.
Value arithmetic(Op op, const Value& a, const Value& b, Budget& budget);
Value negative(const Value& value);
bool compare(Comparison comparison, const Value& a, const Value& b, Budget& budget);
// `item in container`
bool contains(const Value& container, const Value& item, Budget& budget);
// value[start:stop:step]; undefined or none: left out.
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget);

}  // namespace oasis::text::jinja
