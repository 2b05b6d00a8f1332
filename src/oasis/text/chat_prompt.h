// From a conversation to the model's input ids.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/text/chat_template.h"
#include "oasis/text/tokenizer.h"

namespace oasis::text {

// Renders and encodes. Control tokens come from the template alone: the renderer tracks, byte by byte, what came from
// the conversation, tools or extra variables, and no control token is recognised in text that contains such a byte, so
// neither a message nor a message joined to the template's text can forge one. (User-defined tokens such as `<think>`
// are text and recognised everywhere, as they are in training.)
// BOS is put in front where the tokenizer asks for it and the template has not written it. Empty bos_token and
// eos_token are filled in from the tokenizer.
Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                         ChatInput input);

}  // namespace oasis::text
