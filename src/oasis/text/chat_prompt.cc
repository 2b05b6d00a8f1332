#include "oasis/text/chat_prompt.h"

#include <string>
#include <utility>

namespace oasis::text {

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                         ChatInput input) {
  if (input.bos_token.empty()) input.bos_token = tokenizer.token_bytes(tokenizer.bos());
  if (input.eos_token.empty()) input.eos_token = tokenizer.token_bytes(tokenizer.eos());
  OASIS_ASSIGN_OR_RETURN(const RenderedChat chat, chat_template.render_marked(input));
  std::vector<int32_t> ids = tokenizer.encode_marked(chat.text, chat.from_input);
  const int32_t bos = tokenizer.bos();
  if (tokenizer.add_bos() && bos >= 0 && (ids.empty() || ids[0] != bos)) ids.insert(ids.begin(), bos);
  return ids;
}

}  // namespace oasis::text
