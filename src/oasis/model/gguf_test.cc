#include "oasis/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oasis/model/test_files.h"

namespace oasis::model {
namespace {

using test::as_bytes;
using test::text;
using test::u32;
using test::u64;
using ::testing::HasSubstr;

constexpr uint64_t kHuge = uint64_t{1} << 40;

// The parts of a small valid file; a test spoils one of them.
struct File {
  uint32_t version = 3;
  uint64_t tensor_count = 2, kv_count = 2;
  std::string keys =
      text("general.architecture") + u32(8) + text("llama") + text("general.alignment") + u32(4) + u32(32);
  std::string tensors = info("a", {8}, 0, 0) + info("b", {32, 2}, 2, 32);
  uint64_t data_bytes = 32 + 36;

  static std::string info(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    std::string out = text(name) + u32(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) out += u64(dim);
    return out + u32(type) + u64(offset);
  }
  std::string bytes() const {
    std::string out = "GGUF" + u32(version) + u64(tensor_count) + u64(kv_count) + keys + tensors;
    out.resize((out.size() + 31) / 32 * 32);
    for (uint64_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
    return out;
  }
  File& add_key(const std::string& key) {
    ++kv_count;
    keys += key;
    return *this;
  }
  File& only_tensor(const std::string& tensor) {
    tensor_count = 1;
    tensors = tensor;
    return *this;
  }
};

Status open_error(const std::string& bytes) { return GgufFile::from_bytes(as_bytes(bytes)).status(); }

TEST(Gguf, ReadsTensorsInTorchOrderAsViewsIntoTheFile) {
  for (uint32_t version : {2u, 3u}) {
    File parts;
    parts.version = version;
    const std::string bytes = parts.bytes();
    auto file = GgufFile::from_bytes(as_bytes(bytes));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const TensorInfo* b = file->find("b");
    ASSERT_TRUE(b);
    EXPECT_EQ(b->type, DType::kQ4_0);
    EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 32}));
    EXPECT_EQ(b->data.size(), 36u);
    EXPECT_EQ(reinterpret_cast<const char*>(b->data.data()), bytes.data() + bytes.size() - 36);
    EXPECT_EQ(file->find("c"), nullptr);
  }
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  File parts;
  parts.add_key(text("u8") + u32(0) + "\x07").add_key(text("i8") + u32(1) + "\xff");
  parts.add_key(text("u16") + u32(2) + test::raw<uint16_t>(500)).add_key(text("i16") + u32(3) + test::raw<int16_t>(9));
  parts.add_key(text("f32") + u32(6) + test::raw(0.5f)).add_key(text("yes") + u32(7) + "\x01");
  parts.add_key(text("u64") + u32(10) + u64(~0ull)).add_key(text("f64") + u32(12) + test::raw(0.25));
  parts.add_key(text("names") + u32(9) + u32(8) + u64(2) + text("x") + text(""));
  parts.add_key(text("ids") + u32(9) + u32(5) + u64(2) + test::raw<int32_t>(-3) + test::raw<int32_t>(4));
  const std::string bytes = parts.bytes();
  auto file = GgufFile::from_bytes(as_bytes(bytes));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*file->string("general.architecture"), "llama");
  EXPECT_EQ(*file->u64("u8"), 7u);
  EXPECT_EQ(*file->u64("u16"), 500u);
  EXPECT_EQ(*file->u64("i16"), 9u);
  EXPECT_EQ(*file->u64("u64"), ~0ull);
  EXPECT_EQ(*file->f64("f32"), 0.5);
  EXPECT_EQ(*file->f64("f64"), 0.25);
  EXPECT_EQ(*file->f64("i8"), -1.0);
  EXPECT_TRUE(*file->boolean("yes"));
  EXPECT_EQ(*file->strings("names"), (std::vector<std::string_view>{"x", ""}));
  EXPECT_EQ(*file->integers("ids"), (std::vector<int64_t>{-3, 4}));
}

TEST(Gguf, AnAbsentKeyAndAKeyOfAnotherTypeAreErrorsThatNameIt) {
  File parts;
  parts.add_key(text("negative") + u32(5) + test::raw<int32_t>(-3));
  parts.add_key(text("list") + u32(9) + u32(6) + u64(1) + test::raw(1.0f));
  const std::string bytes = parts.bytes();
  auto file = GgufFile::from_bytes(as_bytes(bytes));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->u64("missing").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(file->u64("missing").status().message(), HasSubstr("missing"));
  for (const Status& status :
       {file->u64("general.architecture").status(), file->u64("negative").status(), file->u64("list").status(),
        file->string("negative").status(), file->strings("list").status(), file->integers("list").status(),
        file->boolean("negative").status(), file->f64("list").status(), file->strings("negative").status()}) {
    EXPECT_EQ(status.code(), StatusCode::kDataCorruption) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("metadata key '"));
  }
}

struct BadFile {
  const char* name;
  std::string bytes;
  std::vector<std::string> says;
};

// case 45. What claims to be large claims 2^40 and more: an allocation of that size would end the test.
std::vector<BadFile> bad_files() {
  const auto tensor = [](std::vector<uint64_t> dims, uint32_t type = 0, uint64_t offset = 0) {
    return File().only_tensor(File::info("w", std::move(dims), type, offset)).bytes();
  };
  const auto key = [](const std::string& bytes) { return File().add_key(bytes).bytes(); };
  const auto alignment = [](uint32_t type, const std::string& value) {
    File file;
    file.kv_count = 1;
    file.keys = text("general.alignment") + u32(type) + value;
    return file.bytes();
  };
  File v1, big_endian, twice, many_tensors, many_keys, overlap, repeated_key;
  v1.version = 1;
  big_endian.version = 0x03000000;
  many_tensors.tensor_count = kHuge;
  many_keys.kv_count = kHuge;
  twice.tensors = File::info("a", {8}, 0, 0) + File::info("a", {8}, 0, 32);
  overlap.tensors = File::info("a", {16}, 0, 0) + File::info("b", {32, 2}, 2, 32);
  repeated_key.add_key(text("general.architecture") + u32(8) + text("qwen3"));
  return {
      {"empty", "", {"magic"}},
      {"another magic number", "PK\x03\x04 and so on", {"GGUF"}},
      {"version 1", v1.bytes(), {"version 1"}},
      {"big-endian", big_endian.bytes(), {"big-endian"}},
      {"2^40 tensors", many_tensors.bytes(), {"tensor_count", "1099511627776"}},
      {"2^40 keys", many_keys.bytes(), {"kv_count", "1099511627776"}},
      {"dims 2^42+1 squared", tensor({(1ull << 42) + 1, (1ull << 42) + 1}), {"'w'", "dims[1]", "4398046511105"}},
      {"a dim of 2^63", tensor({1ull << 63}), {"'w'", "dims[0]"}},
      {"a dim of 0", tensor({8, 0}), {"'w'", "dims[1] = 0"}},
      {"n_dims 9", tensor({1, 1, 1, 1, 1, 1, 1, 1, 1}), {"'w'", "n_dims 9"}},
      {"n_dims 0", tensor({}), {"'w'", "n_dims 0"}},
      {"a row that ends inside a block", tensor({48}, 2), {"'w'", "48", "32", "Q4_0"}},
      {"an unknown ggml type", tensor({32}, 16), {"'w'", "type 16"}},
      {"an offset past the end", tensor({8}, 0, 1 << 20), {"'w'", "1048576", "past the end"}},
      {"an offset near 2^64", tensor({8}, 0, ~31ull), {"'w'", "past the end"}},
      {"a tensor larger than the file", tensor({kHuge}), {"'w'", "past the end"}},
      {"a misaligned offset", tensor({8}, 0, 4), {"'w'", "alignment 32"}},
      {"overlapping tensors", overlap.bytes(), {"'b'", "inside another"}},
      {"a tensor's name twice", twice.bytes(), {"'a'", "twice"}},
      {"a key twice", repeated_key.bytes(), {"general.architecture", "twice"}},
      {"string length 2^63", key(text("k") + u32(8) + u64(1ull << 63)), {"'k'", "9223372036854775808"}},
      {"key length 2^63", key(u64(1ull << 63)), {"metadata key", "9223372036854775808"}},
      {"a key of 65536 bytes", key(text(std::string(65536, 'k')) + u32(0) + "x"), {"65536", "65535"}},
      {"a tensor's name of 5000 bytes",
       File().only_tensor(File::info(std::string(5000, 'w'), {8}, 0, 0)).bytes(),
       {"name of a tensor", "5000", "4096"}},
      {"an array of 2^61 numbers", key(text("k") + u32(9) + u32(10) + u64(1ull << 61)), {"'k'", "elements"}},
      {"an array of 2^40 strings", key(text("k") + u32(9) + u32(8) + u64(kHuge)), {"'k'", "elements"}},
      {"an array of arrays", key(text("k") + u32(9) + u32(9) + u64(1)), {"'k'", "element type 9"}},
      {"value type 13", key(text("k") + u32(13)), {"'k'", "type 13"}},
      {"alignment 2^30", alignment(4, u32(1u << 30)), {"general.alignment is 1073741824"}},
      {"alignment 24", alignment(4, u32(24)), {"general.alignment is 24"}},
      {"alignment 0", alignment(4, u32(0)), {"general.alignment is 0"}},
      {"alignment as a string", alignment(8, text("32")), {"general.alignment", "string"}},
  };
}

TEST(Gguf, AFileThatLiesIsAnErrorThatNamesTheField) {
  for (const BadFile& bad : bad_files()) {
    const Status status = open_error(bad.bytes);
    EXPECT_FALSE(status.ok()) << bad.name;
    for (const std::string& part : bad.says) EXPECT_THAT(status.message(), HasSubstr(part)) << bad.name;
  }
}

TEST(Gguf, AFileCutOffAnywhereIsAnError) {  // case 45
  const std::string bytes = File().bytes();
  ASSERT_TRUE(open_error(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    EXPECT_FALSE(open_error(cut).ok()) << size;
  }
}

TEST(Gguf, KeysWithControlCharactersAreMadePrintableInErrors) {
  const Status status = open_error(File().add_key(text("a\x1b[2J\n") + u32(13)).bytes());
  EXPECT_THAT(status.message(), HasSubstr("'a?[2J?'"));
}

TEST(Gguf, OpenNamesTheFileInItsErrors) {
  const test::TempFolder folder;
  test::write_file(folder / "cut.gguf", File().bytes().substr(0, 60));
  const Status status = GgufFile::open(folder / "cut.gguf").status();
  EXPECT_THAT(status.message(), HasSubstr(folder / "cut.gguf"));
  EXPECT_EQ(GgufFile::open(folder / "none.gguf").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace oasis::model
