// From tokens to the text that may be shown: whole characters, cut at the first stop string.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "oasis/text/tokenizer.h"

namespace oasis::engine {

class OutputText {
 public:
  OutputText(const text::Tokenizer& tokenizer, std::vector<std::string> stops, bool skip_special);
  // Text that became certain with this token. Sets `stopped` when a stop string is complete: what precedes it is
  // returned, nothing comes after.
  std::string push(int32_t token, bool& stopped);
  // What was held back because it might have been the start of a stop string or of a character.
  std::string finish();

 private:
  std::string release(bool& stopped);
  text::StreamingDetokenizer detokenizer_;
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace oasis::engine
