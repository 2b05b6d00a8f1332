// Byte-level BPE tokenizers: text to token ids and back, equal to Hugging Face's `tokenizers` for the families below.
//
// Pipeline of encode(): split added tokens off (leftmost, longest) -> NFC where the model asks for it -> pre-tokenise
// by the family's regular expression -> bytes -> BPE, lowest rank first, leftmost on a tie.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::text {

// How text is cut before BPE. No merge ever crosses such a cut.
enum class PreTokenizer {
  kGpt2,
  kSmolLM,  // digits one by one, then GPT-2's rule on what lies between
  kQwen2,   // Qwen2, Qwen2.5, Qwen3
  kLlama3,  // digits in groups of three
};

std::string_view to_string(PreTokenizer pre);

// From GGUF's tokenizer.ggml.pre. An unknown name is an error that names it.
Result<PreTokenizer> parse_pre_tokenizer(std::string_view gguf_pre);

// GGUF's tokenizer.ggml.token_type.
enum TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // has a meaning to the model or the runtime and no text of its own
  kUserDefined = 4,  // matched in the text as a whole, but ordinary text otherwise (`<think>`)
  kUnused = 5,
  kByte = 6,
};

// Everything a tokenizer is made of, as GGUF metadata or a Hugging Face folder has it.
struct TokenizerSpec {
  std::vector<std::string> tokens;  // by id. Normal tokens in the byte alphabet ("Ġthe"), added ones as plain text
  std::vector<uint8_t> types;       // TokenType by id; empty: all normal
  std::vector<std::string> merges;  // "a b" by rank
  PreTokenizer pre = PreTokenizer::kGpt2;
  int32_t bos = -1;
  int32_t eos = -1;
  int32_t pad = -1;
  bool add_bos = false;        // the model expects BOS in front of every text
  bool ignore_merges = false;  // a piece that is a token is taken whole, even if merges would not reach it
  bool nfc = false;            // normalise to Unicode form C first
  std::string chat_template;   // Jinja; empty: none
};

// GGUF does not say these: Llama-3 ignores merges for whole pieces, Qwen2 normalises to NFC. Call after `pre` is set.
void set_family_defaults(TokenizerSpec& spec);

// A Hugging Face folder: tokenizer.json and, where present, tokenizer_config.json and chat_template.jinja.
// What this library would tokenize differently from the original (another pre-tokenizer, normaliser, byte fallback,
// ...) is an error that names it.
Result<TokenizerSpec> read_tokenizer_json(const std::string& directory);

// The same from the text of the two files; `config` may be empty.
Result<TokenizerSpec> parse_tokenizer_json(std::string_view tokenizer, std::string_view config);

// Immutable once made: const methods may be called from any number of threads. Movable; a moved-from object may only be
// destroyed or assigned to.
class Tokenizer {
 public:
  static Result<Tokenizer> create(TokenizerSpec spec);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `parse_special`: the texts of control tokens become those tokens; otherwise they are ordinary text and no control
  // id comes out (user-defined tokens are matched in both cases). `add_bos` puts bos() in front, where there is one:
  // pass tokenizer.add_bos() for what the model expects of a plain text. Never fails: every maximal invalid UTF-8
  // subsequence counts as U+FFFD. A byte that the vocabulary has no token for is dropped. Time is near-linear in the
  // size of any text.
  std::vector<int32_t> encode(std::string_view text, bool parse_special, bool add_bos) const;

  // As encode(text, true, false), but a control token is only recognised where none of its bytes is untrusted.
  // `untrusted` has one char per byte of `text` (non-zero: untrusted), or is empty: all trusted. In text that is not
  // valid UTF-8 everything is untrusted.
  std::vector<int32_t> encode_marked(std::string_view text, std::string_view untrusted) const;

  // Valid UTF-8: invalid subsequences become U+FFFD. Ids outside the vocabulary have no text. `skip_special` leaves
  // control tokens out.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes a token stands for; not always whole UTF-8 characters. Empty for an id outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  bool is_control(int32_t id) const;
  // The token whose token_bytes() are `bytes`; an added token goes before a normal one.
  std::optional<int32_t> find(std::string_view bytes) const;

  int32_t vocab_size() const;
  int32_t bos() const;  // -1: none
  int32_t eos() const;  // -1: none
  int32_t pad() const;  // -1: none
  bool add_bos() const;
  PreTokenizer pre() const;
  const std::string& chat_template() const;  // empty: none

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Text as its tokens arrive, never a part of a UTF-8 character. All that push() and finish() return, joined, equals
// decode() of the same ids. The tokenizer must outlive this.
class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special = false);
  std::string push(int32_t id);
  std::string finish();  // what was held back; ready for a new text afterwards

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most an incomplete character
};

}  // namespace oasis::text
