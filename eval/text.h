// The text that is evaluated on, and its cutting into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::eval {

struct Text {
  std::string kind;  // "prose", "code", "tables", or the name of a user's file
  std::vector<int32_t> tokens;
};

// Text that Debian packages carry, at most `bytes` of it: "prose" (manuals), "code" (the C++ library's headers),
// "tables" (character and time-zone data). The same on every machine with the same packages; an error names the package
// that is missing.
Result<std::string> debian_text(const std::string& kind, size_t bytes);

// Piece `index` of `count` pieces of `length` tokens each, spread evenly over the text. An error says how many tokens
// are there and how many are needed.
Result<std::vector<int32_t>> cut(const Text& text, int64_t length, int index, int count);

}  // namespace oasis::eval
