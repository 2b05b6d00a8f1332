#include "oasis/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "oasis/text/added_tokens.h"
#include "oasis/text/bpe.h"
#include "oasis/text/byte_alphabet.h"
#include "oasis/text/nfc.h"
#include "oasis/text/pre_tokenizer.h"
#include "oasis/text/utf8.h"

namespace oasis::text {

namespace {

constexpr size_t kMaxTokens = 1u << 24;
constexpr size_t kMaxAddedBytes = 1024;  // bounds the work of a search per byte of text

bool is_added(uint8_t type) { return type == kControl || type == kUserDefined; }

Status check_spec(const TokenizerSpec& spec) {
  const size_t n = spec.tokens.size();
  if (n == 0 || n > kMaxTokens) {
    return data_corruption("tokenizer has {} tokens; between 1 and {} are possible", n, kMaxTokens);
  }
  if (!spec.types.empty() && spec.types.size() != n) {
    return data_corruption("tokenizer has {} tokens but {} token types", n, spec.types.size());
  }
  for (const auto& [name, id] : {std::pair{"bos", spec.bos}, {"eos", spec.eos}, {"pad", spec.pad}}) {
    if (id < -1 || id >= static_cast<int64_t>(n)) {
      return data_corruption("tokenizer's {} id {} is outside its vocabulary of {} tokens", name, id, n);
    }
  }
  for (size_t id = 0; id < spec.types.size(); ++id) {
    if (spec.types[id] < kNormal || spec.types[id] > kByte) {
      return data_corruption("token {} has type {}; types 1 to 6 are known", id, spec.types[id]);
    }
    if (is_added(spec.types[id]) && spec.tokens[id].size() > kMaxAddedBytes) {
      return data_corruption("added token {} is {} bytes long; at most {} are possible", id, spec.tokens[id].size(),
                             kMaxAddedBytes);
    }
  }
  return {};
}

// "<0x0A>" -> "\n".
std::optional<std::string> byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return std::string(1, static_cast<char>(value));
}

}  // namespace

void set_family_defaults(TokenizerSpec& spec) {
  spec.ignore_merges = spec.pre == PreTokenizer::kLlama3;
  spec.nfc = spec.pre == PreTokenizer::kQwen2;
}

struct Tokenizer::Impl {
  Impl(PieceSplitter s) : splitter(std::move(s)) {}

  std::string_view bytes_of(int32_t id) const {
    return std::string_view(bytes).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  void collect_bytes(const TokenizerSpec& spec);
  void encode_plain(std::string_view text, PieceSplitter::Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode(std::string_view text, const AddedTokens::Rule& rule, std::vector<int32_t>& ids) const;

  std::string bytes;              // of all tokens, one after the other
  std::vector<uint32_t> offsets;  // [vocab + 1]
  std::vector<uint8_t> types;     // [vocab]
  BytesIndex all;
  AddedTokens added;
  Bpe bpe;
  PieceSplitter splitter;
  int32_t bos, eos, pad;
  bool add_bos, nfc;
  PreTokenizer pre;
  std::string chat_template;
};

void Tokenizer::Impl::collect_bytes(const TokenizerSpec& spec) {
  types = spec.types.empty() ? std::vector<uint8_t>(spec.tokens.size(), kNormal) : spec.types;
  offsets.push_back(0);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    std::optional<std::string> decoded;
    if (types[id] == kByte) {
      decoded = byte_token(spec.tokens[id]);
    } else if (!is_added(types[id])) {
      decoded = bytes_from_alphabet(spec.tokens[id]);
      if (!decoded && types[id] == kNormal) types[id] = kUnused;  // no text can give it; it still shows as written
    }
    bytes += decoded ? *decoded : to_valid_utf8(spec.tokens[id]);
    offsets.push_back(static_cast<uint32_t>(bytes.size()));
  }
}

Result<Tokenizer> Tokenizer::create(TokenizerSpec spec) {
  OASIS_RETURN_IF_ERROR(check_spec(spec));
  size_t total_bytes = 0;
  for (const std::string& token : spec.tokens) total_bytes += 3 * token.size();  // U+FFFD for every byte at worst
  if (total_bytes > UINT32_MAX) {
    return data_corruption("the texts of the tokenizer's tokens are {} bytes long; at most {} are possible",
                           total_bytes / 3, UINT32_MAX / 3);
  }
  OASIS_ASSIGN_OR_RETURN(PieceSplitter splitter, PieceSplitter::create(spec.pre));
  auto impl = std::make_unique<Impl>(std::move(splitter));
  impl->collect_bytes(spec);
  const auto n = static_cast<int32_t>(spec.tokens.size());
  // Added tokens are kept from BPE: no merge of ordinary text may give a control id.
  std::vector<std::string_view> mergeable(n);
  impl->all = BytesIndex(n);
  for (int32_t id = 0; id < n; ++id) {
    if (is_added(impl->types[id])) {
      impl->added.insert(impl->bytes_of(id), id, impl->types[id] == kControl);
      impl->all.insert(impl->bytes_of(id), id);
    } else if (impl->types[id] == kNormal) {
      mergeable[id] = impl->bytes_of(id);
    }
  }
  for (int32_t id = 0; id < n; ++id) {
    if (!impl->bytes_of(id).empty()) impl->all.insert(impl->bytes_of(id), id);
  }
  OASIS_ASSIGN_OR_RETURN(impl->bpe, Bpe::create(mergeable, spec.merges, spec.ignore_merges));
  impl->bos = spec.bos, impl->eos = spec.eos, impl->pad = spec.pad;
  impl->add_bos = spec.add_bos, impl->nfc = spec.nfc, impl->pre = spec.pre;
  impl->chat_template = std::move(spec.chat_template);
  return Tokenizer(std::move(impl));
}

void Tokenizer::Impl::encode_plain(std::string_view text, PieceSplitter::Scratch& scratch,
                                   std::vector<int32_t>& ids) const {
  std::string normal;
  if (nfc && !is_surely_nfc(text)) {
    normal = to_nfc(text);
    text = normal;
  }
  splitter.split(text, scratch, [&](std::string_view piece) { bpe.encode(piece, ids); });
}

void Tokenizer::Impl::encode(std::string_view text, const AddedTokens::Rule& rule, std::vector<int32_t>& ids) const {
  PieceSplitter::Scratch scratch(splitter);
  for (size_t pos = 0; pos < text.size();) {
    const AddedTokens::Match match = added.next(text, pos, rule);
    if (match.id < 0) return encode_plain(text.substr(pos), scratch, ids);
    if (match.begin > pos) encode_plain(text.substr(pos, match.begin - pos), scratch, ids);
    ids.push_back(match.id);
    pos = match.end;
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special, bool add_bos) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (add_bos && bos() >= 0) ids.push_back(bos());
  std::string valid;
  if (!is_valid_utf8(text)) {
    valid = to_valid_utf8(text);
    text = valid;
  }
  impl_->encode(text, {.control = parse_special, .untrusted = {}}, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_marked(std::string_view text, std::string_view untrusted) const {
  if (!is_valid_utf8(text)) return encode(text, /*parse_special=*/false, /*add_bos=*/false);
  OASIS_CHECK(untrusted.empty() || untrusted.size() == text.size(), "{} marks for {} bytes", untrusted.size(),
              text.size());
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  impl_->encode(text, {.control = true, .untrusted = untrusted}, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_control(id)) bytes += token_bytes(id);
  }
  return to_valid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? impl_->bytes_of(id) : std::string_view();
}

bool Tokenizer::is_control(int32_t id) const { return id >= 0 && id < vocab_size() && impl_->types[id] == kControl; }

std::optional<int32_t> Tokenizer::find(std::string_view bytes) const {
  const int32_t id = bytes.empty() ? -1 : impl_->all.find(bytes);
  return id < 0 ? std::nullopt : std::optional(id);
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->types.size()); }
int32_t Tokenizer::bos() const { return impl_->bos; }
int32_t Tokenizer::eos() const { return impl_->eos; }
int32_t Tokenizer::pad() const { return impl_->pad; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
PreTokenizer Tokenizer::pre() const { return impl_->pre; }
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string StreamingDetokenizer::push(int32_t id) {
  if (!skip_special_ || !tokenizer_->is_control(id)) pending_ += tokenizer_->token_bytes(id);
  const size_t complete = complete_utf8_size(pending_);
  std::string out = to_valid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return out;
}

std::string StreamingDetokenizer::finish() {
  std::string out = to_valid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace oasis::text
