#include "oasis/text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace oasis::text {
namespace {

using nlohmann::json;

const std::string kData = OASIS_SOURCE_DIR "/tests/data/text/";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// SmolLM2's vocabulary, from smollm2.bpe: a line of JSON, then a pair of ids for each merge.
Tokenizer make_smollm2() {
  const std::string file = read_file(kData + "smollm2.bpe");
  const size_t line = file.find('\n');
  const json header = json::parse(file.substr(0, line));
  std::string alphabet[256];
  for (int byte = 0, other = 0; byte < 256; ++byte) {
    const bool own = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte < 0xAD) || byte > 0xAD;
    const int c = own ? byte : 0x100 + other++;
    alphabet[byte] = c < 0x80 ? std::string(1, static_cast<char>(c))
                              : std::string{static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
  }
  TokenizerSpec spec;
  for (const auto& token : header["special"]) spec.tokens.push_back(token);
  spec.types.assign(spec.tokens.size(), kControl);
  for (const int byte : header["bytes"]) spec.tokens.push_back(alphabet[byte]);
  const size_t merges = header["merges"];
  for (size_t i = 0; i < merges; ++i) {
    uint16_t pair[2];
    std::memcpy(pair, file.data() + line + 1 + 4 * i, 4);
    spec.merges.push_back(spec.tokens[pair[0]] + ' ' + spec.tokens[pair[1]]);
    spec.tokens.push_back(spec.tokens[pair[0]] + spec.tokens[pair[1]]);
  }
  spec.types.resize(spec.tokens.size(), kNormal);
  spec.pre = *parse_pre_tokenizer("smollm");
  spec.bos = header["bos"], spec.eos = header["eos"], spec.pad = header["pad"];
  auto tokenizer = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

const Tokenizer& tokenizer_of(const std::string& name) {
  static std::map<std::string, Tokenizer>* made = new std::map<std::string, Tokenizer>;
  if (const auto at = made->find(name); at != made->end()) return at->second;
  if (name == "smollm2") return made->emplace(name, make_smollm2()).first->second;
  auto spec = read_tokenizer_json(kData + name);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  auto tokenizer = Tokenizer::create(std::move(*spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return made->emplace(name, std::move(*tokenizer)).first->second;
}

const char* const kFamilies[] = {"smollm2", "qwen-tiny", "llama3-tiny"};

// The same strings as tools/make_tokenizer_vectors.py draws.
class Drawer {
 public:
  Drawer() {
    for (const auto& f : json::parse(read_file(kData + "fragments.json"))) fragments_.push_back(f);
  }
  std::string draw() {
    std::string text;
    for (uint64_t n = 1 + below(12); n > 0; --n) {
      if (below(6) != 0) {
        text += fragments_[below(fragments_.size())];
        continue;
      }
      const auto [first, last] = kRanges[below(std::size(kRanges))];
      append(text, first + static_cast<uint32_t>(below(last - first + 1)));
    }
    return text;
  }

 private:
  static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x00, 0x7F},       {0x80, 0x24F},      {0x300, 0x36F},     {0x370, 0x5FF},      {0x900, 0xDFF},
      {0x1100, 0x11FF},   {0x1800, 0x1810},   {0x1E00, 0x1FFF},   {0x2000, 0x2BFF},    {0x3000, 0x30FF},
      {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3},   {0xF900, 0xFFFF},   {0x10000, 0x10FFF},  {0x1D100, 0x1D7FF},
      {0x1E030, 0x1E06D}, {0x1F300, 0x1FAFF}, {0x20000, 0x323AF}, {0x10FFF0, 0x10FFFF}};

  uint64_t below(uint64_t n) {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) % n;
  }
  static void append(std::string& out, uint32_t c) {
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xC0 | (c >> 6)), tail(0);
    } else if (c < 0x10000) {
      out += static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0);
    } else {
      out += static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0);
    }
  }
  uint64_t state_ = 2026;
  std::vector<std::string> fragments_;
};

uint32_t hash_ids(const std::vector<int32_t>& ids) {
  uint32_t h = 0x811C9DC5;
  for (const int32_t id : ids) h = (h ^ static_cast<uint32_t>(id)) * 0x01000193;
  return h;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string repeated(const std::string& unit, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += unit;
  return text;
}

TEST(Tokenizer, TenThousandMixedStringsHaveTheIdsOfTheReference) {
  for (const std::string family : kFamilies) {
    const Tokenizer& tokenizer = tokenizer_of(family);
    const std::string hashes = read_file(kData + family + ".hashes");
    Drawer drawer;
    int different = 0;
    for (size_t i = 0; i < hashes.size() / 4; ++i) {
      uint32_t expected;
      std::memcpy(&expected, hashes.data() + 4 * i, 4);
      const std::string text = drawer.draw();
      if (hash_ids(tokenizer.encode(text, /*parse_special=*/i % 2 == 0, /*add_bos=*/false)) == expected) continue;
      if (++different <= 3) ADD_FAILURE() << family << " string " << i << ": " << json(text).dump();
    }
    EXPECT_EQ(hashes.size(), 40000u);
    EXPECT_EQ(different, 0) << family;
  }
}

TEST(Tokenizer, IdsAndDecodedTextEqualTheReferenceCaseByCase) {
  const json all = json::parse(read_file(kData + "tokenizer_cases.json"));
  for (const std::string family : kFamilies) {
    const Tokenizer& tokenizer = tokenizer_of(family);
    for (const json& c : all[family]["cases"]) {
      const std::vector<int32_t> ids = c["ids"];
      EXPECT_EQ(tokenizer.encode(c["text"].get<std::string>(), true, false), ids) << family << " " << c["text"];
      EXPECT_EQ(tokenizer.decode(ids), c["decoded"]) << family;
      EXPECT_EQ(tokenizer.decode(ids, /*skip_special=*/true), c["skipped"]) << family;
    }
  }
}

TEST(Tokenizer, SmolLM2GivesTheIdsRecordedWithItsWeights) {
  const std::pair<const char*, std::vector<int32_t>> cases[] = {
      {"Hello, world!", {19556, 28, 905, 17}},
      {"a  b\n\n1234 don't", {81, 216, 278, 1116, 33, 34, 35, 36, 1326, 982}},
      {"def f(x):\n    return x**2  # ok", {1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 216, 907, 10907}},
      {"naïve café – 日本語", {3546, 46494, 37366, 816, 17097, 241, 115, 40993, 179, 120, 248}},
      {"<|im_start|>user\nHi<|im_end|>\n", {1, 4093, 198, 26843, 2, 198}}};
  for (const auto& [text, ids] : cases) EXPECT_EQ(tokenizer_of("smollm2").encode(text, true, false), ids) << text;
}

// case 49
TEST(Tokenizer, LongMonotonousTextsHaveTheIdsOfTheReferenceInNearLinearTime) {
  const std::map<std::string, std::string> texts = {
      {"A", std::string(131072, 'A')},
      {"spaces", std::string(131072, ' ')},
      {"newlines", std::string(131072, '\n')},
      {"cjk", repeated("日本語中文漢字", 3800)},
      {"spaces and text", repeated(std::string(1, 'a').append(1000, ' '), 130)},
      {"mixed newlines", repeated("\n \n\r\n\t", 20000)},
      {"digits", repeated("1234567890", 13000)},
      {"punctuation", repeated("!?-_=*", 20000)},
      {"marks", std::string(1, 'a').append(repeated("\u0316\u0301", 30000))}};
  const json all = json::parse(read_file(kData + "tokenizer_cases.json"));
  for (const std::string family : kFamilies) {
    const Tokenizer& tokenizer = tokenizer_of(family);
    for (const auto& [name, expected] : all[family]["long"].items()) {
      ASSERT_TRUE(texts.contains(name)) << name;
      const double start = cpu_seconds();
      const std::vector<int32_t> ids = tokenizer.encode(texts.at(name), true, false);
      const double seconds = cpu_seconds() - start;
      EXPECT_EQ(json({ids.size(), hash_ids(ids)}), expected) << family << " " << name;
      // A quadratic step over 131,072 symbols takes minutes; this leaves room for a sanitizer.
      EXPECT_LT(seconds, 3.0) << family << " " << name;
    }
  }
}

TEST(Tokenizer, ARunOfUnorderedCombiningMarksIsNormalisedInNearLinearTime) {
  const std::string text = std::string(1, 'a').append(repeated("\u0301\u0316", 250000));
  const double start = cpu_seconds();
  EXPECT_FALSE(tokenizer_of("qwen-tiny").encode(text, true, false).empty());
  EXPECT_LT(cpu_seconds() - start, 10.0);
}

TEST(Tokenizer, WithoutParseSpecialNoControlIdComesOut) {
  for (const std::string family : kFamilies) {
    const Tokenizer& tokenizer = tokenizer_of(family);
    for (int32_t control = 0; control < tokenizer.vocab_size(); ++control) {
      if (!tokenizer.is_control(control)) continue;
      const std::string text(tokenizer.token_bytes(control));
      EXPECT_EQ(tokenizer.encode(text, true, false), std::vector<int32_t>{control});
      const std::vector<int32_t> plain = tokenizer.encode(text, false, false);
      for (const int32_t id : plain) EXPECT_FALSE(tokenizer.is_control(id)) << text;
      EXPECT_EQ(tokenizer.decode(plain), text);
    }
  }
}

TEST(Tokenizer, UserDefinedTokensAreTextAndAlwaysFound) {
  const Tokenizer& tokenizer = tokenizer_of("qwen-tiny");
  const std::vector<int32_t> ids = tokenizer.encode("<think>", /*parse_special=*/false, false);
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(ids[0], tokenizer.find("<think>"));
  EXPECT_FALSE(tokenizer.is_control(ids[0]));
}

TEST(Tokenizer, AControlTokenWithAnUntrustedByteIsText) {
  const Tokenizer& tokenizer = tokenizer_of("smollm2");
  const std::string text = "<|im_end|>";
  EXPECT_EQ(tokenizer.encode_marked(text, std::string(text.size(), '\0')), std::vector<int32_t>{2});
  for (size_t i = 0; i < text.size(); ++i) {
    std::string marks(text.size(), '\0');
    marks[i] = 1;
    EXPECT_EQ(tokenizer.encode_marked(text, marks), tokenizer.encode(text, false, false)) << i;
  }
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  for (const std::string family : kFamilies) {
    const Tokenizer& tokenizer = tokenizer_of(family);
    EXPECT_EQ(tokenizer.encode("a\xFF\xE2\x82 b\xC0", true, false),
              tokenizer.encode("a\uFFFD\uFFFD b\uFFFD", true, false));
    EXPECT_EQ(tokenizer.encode("\xED\xA0\x80", true, false), tokenizer.encode("\uFFFD\uFFFD\uFFFD", true, false));
    EXPECT_EQ(tokenizer.encode("\xF0\x9F\x98", true, false), tokenizer.encode("\uFFFD", true, false));
  }
}

TEST(Tokenizer, BytesWithoutATokenAreDropped) {
  const Tokenizer& tokenizer = tokenizer_of("smollm2");
  EXPECT_EQ(tokenizer.encode("!\x04!", true, false), tokenizer.encode("!!", true, false));
  EXPECT_TRUE(tokenizer.encode("\x04", true, false).empty());
}

TEST(Tokenizer, BosIsAddedOnlyWhenAskedAndWhereThereIsOne) {
  const Tokenizer& llama = tokenizer_of("llama3-tiny");
  EXPECT_TRUE(llama.add_bos());
  EXPECT_EQ(llama.encode("", true, true), std::vector<int32_t>{llama.bos()});
  EXPECT_TRUE(llama.encode("", true, false).empty());
  EXPECT_EQ(tokenizer_of("qwen-tiny").bos(), -1);
  EXPECT_TRUE(tokenizer_of("qwen-tiny").encode("", true, true).empty());
}

TEST(Tokenizer, EveryTokenIsFoundByItsBytes) {
  const Tokenizer& tokenizer = tokenizer_of("smollm2");
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) EXPECT_EQ(tokenizer.find(tokenizer.token_bytes(id)), id);
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.find(""), std::nullopt);
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const Tokenizer tokenizer = make_smollm2();  // nothing looked up yet
  std::vector<std::vector<int32_t>> ids(4);
  {
    std::vector<std::jthread> threads;
    for (auto& out : ids) {
      threads.emplace_back([&] {
        Drawer drawer;
        for (int i = 0; i < 300; ++i) {
          const std::vector<int32_t> more = tokenizer.encode(drawer.draw(), true, false);
          out.insert(out.end(), more.begin(), more.end());
        }
      });
    }
  }
  for (const auto& out : ids) EXPECT_EQ(out, ids[0]);
}

TEST(Tokenizer, AMovedTokenizerWorksOn) {
  Tokenizer tokenizer = make_smollm2();
  const std::vector<int32_t> ids = tokenizer.encode("Hello, world!", true, false);
  const Tokenizer moved = std::move(tokenizer);
  EXPECT_EQ(moved.encode("Hello, world!", true, false), ids);
  EXPECT_EQ(moved.decode(ids), "Hello, world!");
}

TEST(Tokenizer, AWrongSpecIsAnErrorThatNamesWhatIsWrong) {
  const auto message = [](auto edit) {
    TokenizerSpec spec;
    spec.tokens = {"a", "b", "ab"};
    spec.merges = {"a b"};
    edit(spec);
    const auto result = Tokenizer::create(spec);
    return result.ok() ? std::string() : result.status().message();
  };
  using testing_spec = TokenizerSpec;
  EXPECT_EQ(message([](testing_spec&) {}), "");
  EXPECT_NE(message([](testing_spec& s) { s.tokens.clear(); }).find("0 tokens"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.merges = {"a c"}; }).find("'a c'"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.merges = {"ab"}; }).find("'ab'"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.merges = {"a b b"}; }).find("'a b b'"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.types = {1}; }).find("1 token types"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.types = {1, 1, 9}; }).find("type 9"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.eos = 3; }).find("eos id 3"), std::string::npos);
  EXPECT_NE(message([](testing_spec& s) { s.bos = -7; }).find("bos id -7"), std::string::npos);
}

TEST(Tokenizer, AnUnknownPreTokenizerIsNamed) {
  const auto result = parse_pre_tokenizer("deepseek-llm");
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("'deepseek-llm'"), std::string::npos);
}

TEST(StreamingDetokenizer, ItNeverEmitsPartOfACharacterAndAddsUpToTheWhole) {
  const Tokenizer& tokenizer = tokenizer_of("smollm2");
  for (const std::string text : {"naïve café – 日本語 👩‍👩‍👧 done", "plain", ""}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, true, false);
    StreamingDetokenizer stream(tokenizer);
    std::string all;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
      EXPECT_FALSE(!part.empty() && (part[0] & 0xC0) == 0x80) << "starts inside a character";
      all += part;
    }
    all += stream.finish();
    EXPECT_EQ(all, text);
  }
}

TEST(StreamingDetokenizer, OfAnyIdsItGivesWhatDecodeGives) {
  const Tokenizer& tokenizer = tokenizer_of("smollm2");
  uint32_t state = 1;
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) {  // mostly single bytes: broken characters everywhere
      state = state * 1664525 + 1013904223;
      ids.push_back(17 + static_cast<int32_t>((state >> 16) % (i % 5 == 0 ? 4000 : 235)));
    }
    ids.push_back(-5), ids.push_back(1 << 20), ids.push_back(2);
    for (const bool skip : {false, true}) {
      StreamingDetokenizer stream(tokenizer, skip);
      std::string all;
      for (const int32_t id : ids) all += stream.push(id);
      all += stream.finish();
      EXPECT_EQ(all, tokenizer.decode(ids, skip));
    }
  }
}

}  // namespace
}  // namespace oasis::text
