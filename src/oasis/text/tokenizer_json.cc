// tokenizer.json and tokenizer_config.json of a Hugging Face folder. The format is that of the `tokenizers` library;
// what would change the ids and is not done here is an error.
#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "oasis/base/mapped_file.h"
#include "oasis/text/tokenizer.h"

namespace oasis::text {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxFileBytes = 256u << 20;  // the largest real tokenizer.json is about 33 MB
constexpr size_t kMaxHoles = 65536;           // ids that no token has; vocabularies are dense but for some reserved ids

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Absent and null are the same in these files.
std::optional<element> member(element parent, std::string_view key) {
  element value;
  if (!parent.is_object() || parent[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

std::optional<std::string_view> string_member(element parent, std::string_view key) {
  const auto value = member(parent, key);
  std::string_view text;
  if (!value || value->get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}

bool bool_member(element parent, std::string_view key, bool otherwise) {
  const auto value = member(parent, key);
  bool flag = otherwise;
  if (value && value->get(flag) != simdjson::SUCCESS) return otherwise;
  return flag;
}

Status parse(simdjson::dom::parser& parser, std::string_view text, std::string_view what, element& root) {
  if (text.size() > kMaxFileBytes) {
    return data_corruption("{} is {} bytes long; at most {} are read", what, text.size(), kMaxFileBytes);
  }
  if (const auto error = parser.parse(text.data(), text.size()).get(root); error != simdjson::SUCCESS) {
    return data_corruption("{} is not valid JSON: {}", what, simdjson::error_message(error));
  }
  if (!root.is_object()) return data_corruption("{} is not a JSON object", what);
  return {};
}

// The text of a parser's element, for messages.
std::string excerpt(element value) {
  std::string text = simdjson::minify(value);
  if (text.size() > 200) text = text.substr(0, 200) + "...";
  return text;
}

// A Sequence's parts, or the thing itself.
std::vector<element> parts_of(element value, std::string_view key) {
  std::vector<element> parts;
  array list;
  if (string_member(value, "type") != "Sequence") return {value};
  if (const auto inner = member(value, key); inner && inner->get(list) == simdjson::SUCCESS) {
    for (const element part : list) parts.push_back(part);
  }
  return parts;
}

bool is_byte_level(element part, bool use_regex) {
  return string_member(part, "type") == "ByteLevel" && !bool_member(part, "add_prefix_space", true) &&
         bool_member(part, "use_regex", true) == use_regex;
}

bool is_split_by(element part, std::string_view pattern) {
  const auto rule = member(part, "pattern");
  return string_member(part, "type") == "Split" && rule && string_member(*rule, "Regex") == pattern &&
         string_member(part, "behavior") == "Isolated" && !bool_member(part, "invert", false);
}

Status read_pre_tokenizer(element root, TokenizerSpec& spec) {
  const auto pre = member(root, "pre_tokenizer");
  if (!pre) return unsupported("tokenizer.json has no pre_tokenizer; only byte-level BPE is supported");
  const std::vector<element> parts = parts_of(*pre, "pretokenizers");
  if (parts.size() == 1 && is_byte_level(parts[0], true)) {
    spec.pre = PreTokenizer::kGpt2;
    return {};
  }
  if (parts.size() == 2 && is_byte_level(parts[1], true) && string_member(parts[0], "type") == "Digits" &&
      bool_member(parts[0], "individual_digits", false)) {
    spec.pre = PreTokenizer::kSmolLM;
    return {};
  }
  if (parts.size() == 2 && is_byte_level(parts[1], false)) {
    if (is_split_by(parts[0], kQwen2Pattern)) {
      spec.pre = PreTokenizer::kQwen2;
      return {};
    }
    if (is_split_by(parts[0], kLlama3Pattern)) {
      spec.pre = PreTokenizer::kLlama3;
      return {};
    }
  }
  return unsupported("tokenizer.json's pre_tokenizer is not one of gpt-2, smollm, qwen2, llama-bpe: {}", excerpt(*pre));
}

Status read_normalizer(element root, TokenizerSpec& spec) {
  const auto normalizer = member(root, "normalizer");
  if (!normalizer) return {};
  for (const element part : parts_of(*normalizer, "normalizers")) {
    if (string_member(part, "type") != "NFC") {
      return unsupported("tokenizer.json's normalizer is not NFC: {}", excerpt(*normalizer));
    }
    spec.nfc = true;
  }
  return {};
}

Status set_token(TokenizerSpec& spec, size_t max_ids, element id_value, std::string_view text, uint8_t type) {
  int64_t id = -1;
  if (id_value.get(id) != simdjson::SUCCESS || id < 0 || static_cast<size_t>(id) >= max_ids) {
    return data_corruption("tokenizer.json: token '{}' has id {}; with its number of tokens, ids are below {}", text,
                           excerpt(id_value), max_ids);
  }
  const auto i = static_cast<size_t>(id);
  if (i >= spec.tokens.size()) {
    spec.tokens.resize(i + 1);
    spec.types.resize(i + 1, kUnused);  // ids that no entry names
  }
  spec.tokens[i] = text;
  spec.types[i] = type;
  return {};
}

Status read_vocabulary(element model, TokenizerSpec& spec) {
  object vocab;
  if (const auto value = member(model, "vocab"); !value || value->get(vocab) != simdjson::SUCCESS) {
    return data_corruption("tokenizer.json: model.vocab is missing or not an object");
  }
  const size_t max_ids = vocab.size() + kMaxHoles;
  for (const auto& [text, id] : vocab) OASIS_RETURN_IF_ERROR(set_token(spec, max_ids, id, text, kNormal));
  return {};
}

Status read_merges(element model, TokenizerSpec& spec) {
  array merges;
  if (const auto value = member(model, "merges"); !value || value->get(merges) != simdjson::SUCCESS) {
    return data_corruption("tokenizer.json: model.merges is missing or not an array");
  }
  for (const element merge : merges) {
    std::string_view text, left, right;
    array pair;
    if (merge.get(text) == simdjson::SUCCESS) {
      spec.merges.emplace_back(text);
    } else if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2 && pair.at(0).get(left) == simdjson::SUCCESS &&
               pair.at(1).get(right) == simdjson::SUCCESS) {
      spec.merges.push_back(std::string(left) + ' ' + std::string(right));
    } else {
      return data_corruption("tokenizer.json: merge {} is {}, neither \"a b\" nor [\"a\", \"b\"]", spec.merges.size(),
                             excerpt(merge));
    }
  }
  return {};
}

Status read_model(element root, TokenizerSpec& spec) {
  const auto model = member(root, "model");
  if (!model) return data_corruption("tokenizer.json has no model");
  // Old files leave the type out.
  if (const auto type = string_member(*model, "type"); type && type != "BPE") {
    return unsupported("tokenizer.json's model is '{}'; only BPE is supported", *type);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!string_member(*model, key).value_or("").empty()) {
      return unsupported("tokenizer.json: model.{} is set; only byte-level BPE is supported", key);
    }
  }
  for (const char* key : {"byte_fallback", "dropout"}) {
    const auto value = member(*model, key);
    if (value && !(value->is_bool() && !bool(*value))) {
      return unsupported("tokenizer.json: model.{} is {}; it must be off", key, excerpt(*value));
    }
  }
  spec.ignore_merges = bool_member(*model, "ignore_merges", false);
  OASIS_RETURN_IF_ERROR(read_vocabulary(*model, spec));
  return read_merges(*model, spec);
}

// With an unknown token the reference emits it for bytes that have no token, here they are dropped.
Status check_unknown_token(element root, const TokenizerSpec& spec) {
  const auto unknown = string_member(*member(root, "model"), "unk_token");
  if (!unknown) return {};
  size_t bytes = 0;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& t = spec.tokens[id];
    // One character of the byte alphabet: all are below U+0144, one or two bytes of UTF-8.
    if (spec.types[id] == kNormal && (t.size() == 1 || (t.size() == 2 && (t[0] & 0xE0) == 0xC0))) ++bytes;
  }
  if (bytes >= 256) return {};
  return unsupported(
      "tokenizer.json: model.unk_token is '{}' and {} of 256 bytes have a token; "
      "an unknown token is not supported",
      *unknown, bytes);
}

Status read_added_tokens(element root, TokenizerSpec& spec) {
  const auto value = member(root, "added_tokens");
  array added;
  if (!value) return {};
  if (value->get(added) != simdjson::SUCCESS) return data_corruption("tokenizer.json: added_tokens is not an array");
  const size_t max_ids = spec.tokens.size() + added.size() + kMaxHoles;
  for (const element token : added) {
    const auto text = string_member(token, "content");
    const auto id = member(token, "id");
    if (!text || !id) return data_corruption("tokenizer.json: added token {} lacks content or id", excerpt(token));
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      if (bool_member(token, key, false)) {
        return unsupported("tokenizer.json: added token '{}' sets {}, which is not supported", *text, key);
      }
    }
    OASIS_RETURN_IF_ERROR(
        set_token(spec, max_ids, *id, *text, bool_member(token, "special", false) ? kControl : kUserDefined));
  }
  return {};
}

// A post-processor that puts one special token in front of a text is a BOS.
Status read_post_processor(element root, TokenizerSpec& spec) {
  const auto post = member(root, "post_processor");
  if (!post) return {};
  for (const element part : parts_of(*post, "processors")) {
    const auto type = string_member(part, "type");
    if (type == "ByteLevel") continue;  // moves offsets only
    array pieces, ids;
    const auto single = member(part, "single");
    if (type != "TemplateProcessing" || !single || single->get(pieces) != simdjson::SUCCESS) {
      return unsupported("tokenizer.json's post_processor is not supported: {}", excerpt(part));
    }
    if (pieces.size() == 1 && member(pieces.at(0), "Sequence")) continue;
    element first, second;
    if (pieces.size() != 2 || pieces.at(0).get(first) != simdjson::SUCCESS ||
        pieces.at(1).get(second) != simdjson::SUCCESS || !member(first, "SpecialToken") ||
        !member(second, "Sequence")) {
      return unsupported("tokenizer.json's post_processor adds other tokens than a BOS: {}", excerpt(*single));
    }
    const auto name = string_member(*member(first, "SpecialToken"), "id");
    const auto specials = member(part, "special_tokens");
    const auto entry = name && specials ? member(*specials, *name) : std::nullopt;
    const auto id_list = entry ? member(*entry, "ids") : std::nullopt;
    int64_t id = -1;
    if (!id_list || id_list->get(ids) != simdjson::SUCCESS || ids.size() != 1 ||
        ids.at(0).get(id) != simdjson::SUCCESS || id < 0 || static_cast<size_t>(id) >= spec.tokens.size()) {
      return data_corruption("tokenizer.json: post_processor has no single id for its token: {}", excerpt(part));
    }
    spec.bos = static_cast<int32_t>(id);
    spec.add_bos = true;
  }
  return {};
}

// "<s>" or {"content": "<s>", ...}; absent, null or not in the vocabulary: -1, as the model then has no such token.
int32_t special_id(element config, const char* key, const TokenizerSpec& spec) {
  const auto value = member(config, key);
  if (!value) return -1;
  std::string_view text;
  if (value->get(text) != simdjson::SUCCESS) {
    const auto content = string_member(*value, "content");
    if (!content) return -1;
    text = *content;
  }
  const auto at = std::find(spec.tokens.begin(), spec.tokens.end(), text);
  return at == spec.tokens.end() ? -1 : static_cast<int32_t>(at - spec.tokens.begin());
}

Status read_chat_template(element config, TokenizerSpec& spec) {
  const auto value = member(config, "chat_template");
  if (!value) return {};
  std::string_view text;
  array named;
  if (value->get(text) == simdjson::SUCCESS) {
    spec.chat_template = text;
  } else if (value->get(named) == simdjson::SUCCESS) {
    for (const element entry : named) {
      if (string_member(entry, "name") == "default") spec.chat_template = string_member(entry, "template").value_or("");
    }
  } else {
    return data_corruption("tokenizer_config.json: chat_template is neither a string nor a list");
  }
  return {};
}

Status read_config(std::string_view text, TokenizerSpec& spec) {
  simdjson::dom::parser parser;
  element config;
  OASIS_RETURN_IF_ERROR(parse(parser, text, "tokenizer_config.json", config));
  if (spec.bos < 0) spec.bos = special_id(config, "bos_token", spec);
  spec.eos = special_id(config, "eos_token", spec);
  spec.pad = special_id(config, "pad_token", spec);
  if (bool_member(config, "add_bos_token", false) && spec.bos >= 0) spec.add_bos = true;
  return read_chat_template(config, spec);
}

// Nothing where there is no such file.
Result<std::optional<std::string>> read_if_present(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return std::optional<std::string>();
  if (static_cast<size_t>(info.st_size) > kMaxFileBytes) {
    return data_corruption("{} is {} bytes long; at most {} are read", path, info.st_size, kMaxFileBytes);
  }
  if (info.st_size == 0) return std::optional<std::string>("");
  OASIS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return std::optional(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()));
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view tokenizer, std::string_view config) {
  simdjson::dom::parser parser;
  element root;
  OASIS_RETURN_IF_ERROR(parse(parser, tokenizer, "tokenizer.json", root));
  TokenizerSpec spec;
  OASIS_RETURN_IF_ERROR(read_pre_tokenizer(root, spec));
  OASIS_RETURN_IF_ERROR(read_normalizer(root, spec));
  OASIS_RETURN_IF_ERROR(read_model(root, spec));
  OASIS_RETURN_IF_ERROR(check_unknown_token(root, spec));
  OASIS_RETURN_IF_ERROR(read_added_tokens(root, spec));
  OASIS_RETURN_IF_ERROR(read_post_processor(root, spec));
  if (!config.empty()) OASIS_RETURN_IF_ERROR(read_config(config, spec));
  return spec;
}

Result<TokenizerSpec> read_tokenizer_json(const std::string& directory) {
  OASIS_ASSIGN_OR_RETURN(const auto tokenizer, read_if_present(directory + "/tokenizer.json"));
  if (!tokenizer) return not_found("{} holds no tokenizer.json", directory);
  OASIS_ASSIGN_OR_RETURN(const auto config, read_if_present(directory + "/tokenizer_config.json"));
  OASIS_ASSIGN_OR_RETURN(TokenizerSpec spec, parse_tokenizer_json(*tokenizer, config.value_or("")));
  OASIS_ASSIGN_OR_RETURN(auto chat_template, read_if_present(directory + "/chat_template.jinja"));
  if (chat_template) spec.chat_template = std::move(*chat_template);
  return spec;
}

}  // namespace oasis::text
