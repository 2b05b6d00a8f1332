// Any tokenizer.json gives an error or a tokenizer that encodes and decodes; the second part of the input, after a zero
// byte, is the text.
#include <cstdint>
#include <string_view>

#include "oasis/base/status.h"
#include "oasis/text/tokenizer.h"
#include "oasis/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oasis::text;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const std::string_view file = input.substr(0, cut);
  const std::string_view text = cut == std::string_view::npos ? std::string_view() : input.substr(cut + 1);
  auto spec = parse_tokenizer_json(file, file);
  if (!spec.ok()) spec = parse_tokenizer_json(file, "");
  if (!spec.ok()) return 0;
  const auto tokenizer = Tokenizer::create(std::move(*spec));
  if (!tokenizer.ok()) return 0;
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer->encode(text, parse_special, tokenizer->add_bos());
    StreamingDetokenizer stream(*tokenizer);
    std::string streamed;
    for (const int32_t id : ids) {
      OASIS_CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {} of {}", id, tokenizer->vocab_size());
      streamed += stream.push(id);
    }
    streamed += stream.finish();
    OASIS_CHECK(is_valid_utf8(streamed) && streamed == tokenizer->decode(ids), "stream and decode differ");
  }
  return 0;
}
