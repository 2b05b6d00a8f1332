// Cuts a template into tokens, with Jinja's rules for white space (trim_blocks and lstrip_blocks on).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oasis::text::jinja {

enum class TokenKind {
  kData,  // text outside of tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // text: the string's value
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// Throws Failure.
std::vector<Token> lex(std::string_view source);

}  // namespace oasis::text::jinja
