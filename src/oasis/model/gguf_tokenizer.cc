#include "oasis/model/gguf_model.h"

namespace oasis::model {

namespace {

Status read_id(const GgufFile& file, const std::string& key, size_t vocab, int32_t& out) {
  if (!file.has(key)) return {};
  OASIS_ASSIGN_OR_RETURN(const uint64_t id, file.u64(key));
  if (id >= vocab)
    return data_corruption("'{}': metadata key '{}' is {}, outside the vocabulary of {}", file.path(), key, id, vocab);
  out = static_cast<int32_t>(id);
  return {};
}

Status read_types(const GgufFile& file, text::TokenizerSpec& spec) {
  const std::string key = "tokenizer.ggml.token_type";
  if (!file.has(key)) return {};
  OASIS_ASSIGN_OR_RETURN(const std::vector<int64_t> types, file.integers(key));
  if (types.size() != spec.tokens.size())
    return data_corruption("'{}': metadata key '{}' has {} elements for {} tokens", file.path(), key, types.size(),
                           spec.tokens.size());
  for (int64_t type : types) {
    if (type < text::kNormal || type > text::kByte)
      return data_corruption("'{}': metadata key '{}' holds {}, it must be 1 to 6", file.path(), key, type);
    spec.types.push_back(static_cast<uint8_t>(type));
  }
  return {};
}

}  // namespace

Result<text::TokenizerSpec> tokenizer_from_gguf(const GgufFile& file) {
  OASIS_ASSIGN_OR_RETURN(const std::string_view kind, file.string("tokenizer.ggml.model"));
  if (kind != "gpt2")
    return unsupported("'{}': tokenizer '{}' is not implemented, only byte-level BPE ('gpt2')", file.path(),
                       printable(kind));
  text::TokenizerSpec spec;
  OASIS_ASSIGN_OR_RETURN(const std::string_view pre, file.string("tokenizer.ggml.pre"));
  OASIS_ASSIGN_OR_RETURN(spec.pre, text::parse_pre_tokenizer(pre));
  text::set_family_defaults(spec);
  OASIS_ASSIGN_OR_RETURN(const auto tokens, file.strings("tokenizer.ggml.tokens"));
  spec.tokens.assign(tokens.begin(), tokens.end());
  OASIS_RETURN_IF_ERROR(read_types(file, spec));
  OASIS_ASSIGN_OR_RETURN(const auto merges, file.strings("tokenizer.ggml.merges"));
  spec.merges.assign(merges.begin(), merges.end());
  OASIS_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.bos_token_id", spec.tokens.size(), spec.bos));
  OASIS_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.eos_token_id", spec.tokens.size(), spec.eos));
  OASIS_RETURN_IF_ERROR(read_id(file, "tokenizer.ggml.padding_token_id", spec.tokens.size(), spec.pad));
  // Files without the key rely on the reader to know that Llama 3 wants its BOS.
  spec.add_bos = spec.pre == text::PreTokenizer::kLlama3 && spec.bos >= 0;
  if (file.has("tokenizer.ggml.add_bos_token")) {
    OASIS_ASSIGN_OR_RETURN(spec.add_bos, file.boolean("tokenizer.ggml.add_bos_token"));
  }
  if (file.has("tokenizer.chat_template")) {
    OASIS_ASSIGN_OR_RETURN(const std::string_view chat_template, file.string("tokenizer.chat_template"));
    spec.chat_template = chat_template;
  }
  return spec;
}

}  // namespace oasis::model
