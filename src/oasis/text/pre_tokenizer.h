// The regular expressions that cut text into the pieces BPE works on.
#pragma once

#include <string_view>

#include "oasis/base/status.h"
#include "oasis/text/tokenizer.h"

namespace oasis::text {

class PieceSplitter {
 public:
  static Result<PieceSplitter> create(PreTokenizer pre);
  PieceSplitter(PieceSplitter&&) noexcept;
  PieceSplitter& operator=(PieceSplitter&&) noexcept;
  ~PieceSplitter();

  // One call's scratch memory.
  class Scratch {
   public:
    explicit Scratch(const PieceSplitter& splitter);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class PieceSplitter;
    void* match_data_;
  };

  // Calls piece(std::string_view) for every piece of `text` (valid UTF-8), in order; the pieces joined are the text.
  template <typename F>
  void split(std::string_view text, Scratch& scratch, F&& piece) const {
    for (size_t pos = 0; pos < text.size();) {
      const Span match = next(text, pos, scratch);
      if (match.begin > pos) piece(text.substr(pos, match.begin - pos));
      if (match.end > match.begin) piece(text.substr(match.begin, match.end - match.begin));
      pos = match.end;
    }
  }

 private:
  struct Span {
    size_t begin, end;
  };
  explicit PieceSplitter(void* code) : code_(code) {}
  Span next(std::string_view text, size_t pos, Scratch& scratch) const;

  void* code_ = nullptr;  // pcre2_code*: immutable once compiled
};

}  // namespace oasis::text
