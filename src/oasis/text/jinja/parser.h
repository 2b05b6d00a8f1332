#pragma once

#include <string_view>

#include "oasis/text/jinja/ast.h"

namespace oasis::text::jinja {

// Throws Failure: for a syntax error and for what this engine does not support.
Block parse(std::string_view source);

}  // namespace oasis::text::jinja
