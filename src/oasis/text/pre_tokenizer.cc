#include "oasis/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <utility>

namespace oasis::text {

namespace {

// Letters and numbers that Unicode 15 and 16 added. The reference tokenizers know them; PCRE2 10.42 stops at
// Unicode 14.
#define OASIS_NEW_LETTERS                                                                                               \
  R"(\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d65}\x{10d6f}-\x{10d85})"     \
  R"(\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e}\x{11390}-\x{113b5}\x{113b7})"          \
  R"(\x{113d1}\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10}\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446})" \
  R"(\x{13460}-\x{143fa}\x{16100}-\x{1611d}\x{16d40}-\x{16d6c}\x{18cff}\x{1b132}\x{1b155}\x{1df25}-\x{1df2a})"          \
  R"(\x{1e030}-\x{1e06d}\x{1e4d0}-\x{1e4eb}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})"
#define OASIS_NEW_NUMBERS                                                                                                 \
  R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-\x{16139}\x{16d70}-\x{16d79})" \
  R"(\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})"
// Numbers of Unicode 17, which the reference's digit splitter (but not its regular expressions) knows.
#define OASIS_NEWER_NUMBERS R"(\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6})"
// Inside brackets: letters, numbers, and Unicode's White_Space (PCRE2's \s holds U+180E as well, the reference's does
// not).
#define OASIS_L R"(\p{L})" OASIS_NEW_LETTERS
#define OASIS_N R"(\p{N})" OASIS_NEW_NUMBERS
#define OASIS_DIGITS OASIS_N OASIS_NEWER_NUMBERS
#define OASIS_S R"(\t-\r\x{85}\p{Z})"

#define OASIS_GPT2_WORDS R"('s|'t|'re|'ve|'m|'ll|'d| ?[)" OASIS_L R"(]+)"
#define OASIS_QWEN2(DIGITS)                                                                                 \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n)" OASIS_L OASIS_N R"(]?[)" OASIS_L R"(]+|[)" OASIS_N "]" DIGITS    \
  R"(| ?[^)" OASIS_S OASIS_L OASIS_N R"(]+[\r\n]*|[)" OASIS_S R"(]*[\r\n]+|[)" OASIS_S R"(]+(?![^)" OASIS_S \
  R"(])|[)" OASIS_S R"(]+)"

const char* pattern_of(PreTokenizer pre) {
  switch (pre) {
    case PreTokenizer::kGpt2:
      return OASIS_GPT2_WORDS R"(| ?[)" OASIS_N R"(]+| ?[^)" OASIS_S OASIS_L OASIS_N R"(]+|[)" OASIS_S
                              R"(]+(?![^)" OASIS_S R"(])|[)" OASIS_S R"(]+)";
    case PreTokenizer::kSmolLM:
      // Cutting at digits first and applying GPT-2's rule to the pieces, in one expression: a number stands alone and,
      // for the rule's lookahead, ends the text as white space does.
      return OASIS_GPT2_WORDS R"(|[)" OASIS_DIGITS R"(]| ?[^)" OASIS_S OASIS_L OASIS_DIGITS R"(]+|[)" OASIS_S
                              R"(]+(?![^)" OASIS_S OASIS_DIGITS R"(])|[)" OASIS_S R"(]+)";
    case PreTokenizer::kQwen2:
      return OASIS_QWEN2("");
    case PreTokenizer::kLlama3:
      return OASIS_QWEN2("{1,3}");
  }
  return "";
}

}  // namespace

std::string_view to_string(PreTokenizer pre) {
  switch (pre) {
    case PreTokenizer::kGpt2:
      return "gpt-2";
    case PreTokenizer::kSmolLM:
      return "smollm";
    case PreTokenizer::kQwen2:
      return "qwen2";
    case PreTokenizer::kLlama3:
      return "llama-bpe";
  }
  return "?";
}

Result<PreTokenizer> parse_pre_tokenizer(std::string_view name) {
  if (name == "llama3" || name == "llama-v3") return PreTokenizer::kLlama3;
  for (const auto pre : {PreTokenizer::kGpt2, PreTokenizer::kSmolLM, PreTokenizer::kQwen2, PreTokenizer::kLlama3}) {
    if (to_string(pre) == name) return pre;
  }
  return unsupported("pre-tokenizer '{}' is not known (known: gpt-2, smollm, qwen2, llama-bpe)", name);
}

Result<PieceSplitter> PieceSplitter::create(PreTokenizer pre) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern_of(pre)), PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code == nullptr) {
    return unsupported(
        "PCRE2 cannot compile the pattern of pre-tokenizer {} (error {} at {}); it needs Unicode support",
        to_string(pre), error, offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same pieces, more slowly
  return PieceSplitter(code);
}

PieceSplitter::PieceSplitter(PieceSplitter&& other) noexcept : code_(std::exchange(other.code_, nullptr)) {}
PieceSplitter& PieceSplitter::operator=(PieceSplitter&& other) noexcept {
  std::swap(code_, other.code_);
  return *this;
}
PieceSplitter::~PieceSplitter() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

PieceSplitter::Scratch::Scratch(const PieceSplitter& splitter)
    : match_data_(pcre2_match_data_create_from_pattern(static_cast<pcre2_code*>(splitter.code_), nullptr)) {
  OASIS_CHECK(match_data_ != nullptr, "out of memory");
}
PieceSplitter::Scratch::~Scratch() { pcre2_match_data_free(static_cast<pcre2_match_data*>(match_data_)); }

PieceSplitter::Span PieceSplitter::next(std::string_view text, size_t pos, Scratch& scratch) const {
  const auto* code = static_cast<const pcre2_code*>(code_);
  auto* match_data = static_cast<pcre2_match_data*>(scratch.match_data_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = pcre2_match(code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK, match_data, nullptr);
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
    // The JIT's stack or a match limit ran out. The interpreter works on the heap; give it all it wants.
    pcre2_match_context* context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(context, UINT32_MAX);
    pcre2_set_depth_limit(context, UINT32_MAX);
    pcre2_set_heap_limit(context, UINT32_MAX);
    rc = pcre2_match(code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match_data, context);
    pcre2_match_context_free(context);
  }
  // No match, or no memory for one: the rest is a single piece, so no text is ever lost.
  if (rc < 0) return {text.size(), text.size()};
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_data);
  return {range[0], range[1]};
}

}  // namespace oasis::text
