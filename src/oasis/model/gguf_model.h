// What the metadata of a GGUF file say about the model and its tokenizer.
#pragma once

#include "oasis/base/status.h"
#include "oasis/model/config.h"
#include "oasis/model/gguf.h"
#include "oasis/text/tokenizer.h"

namespace oasis::model {

// Validated. Architectures llama and qwen3.
Result<ModelConfig> config_from_gguf(const GgufFile& file);

// Byte-level BPE (tokenizer.ggml.model "gpt2").
Result<text::TokenizerSpec> tokenizer_from_gguf(const GgufFile& file);

}  // namespace oasis::model
