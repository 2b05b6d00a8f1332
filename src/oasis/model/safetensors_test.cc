#include "oasis/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oasis/model/test_files.h"

namespace oasis::model {
namespace {

using test::as_bytes;
using test::safetensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<SafetensorsFile> parse(const std::string& bytes) {
  return SafetensorsFile::from_bytes(as_bytes(bytes), "x.safetensors");
}

// One tensor "t" over 8 bytes of data.
std::string one(const std::string& fields, const std::string& data = std::string(8, 'd')) {
  return safetensors(R"({"t":{)" + fields + "}}", data);
}

TEST(Safetensors, ReadsEveryTypeAsAViewIntoTheFile) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"d2t":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
      R"("w":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},"flag":{"dtype":"BOOL","shape":[],"data_offsets":[28,29]},)"
      R"("none":{"dtype":"F16","shape":[0,4],"data_offsets":[29,29]},"f":{"dtype":"F32","shape":[1],"data_offsets":[29,33]}})";
  const std::string data =
      test::raw<int64_t>(5) + test::raw<int64_t>(-7) + std::string(12, 'w') + "\x01" + test::raw(1.5f);
  const std::string bytes = safetensors(header, data, 3);
  auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), 5u);
  const TensorInfo* w = file->find("w");
  ASSERT_TRUE(w);
  EXPECT_EQ(w->type, DType::kBF16);
  EXPECT_THAT(w->shape, ElementsAre(2, 3));
  EXPECT_EQ(reinterpret_cast<const char*>(w->data.data()), bytes.data() + bytes.size() - data.size() + 16);
  EXPECT_TRUE(file->find("flag")->shape.empty());
  EXPECT_THAT(*to_int64s(*file->find("d2t"), "d2t"), ElementsAre(5, -7));
  EXPECT_THAT(*to_floats(*file->find("f"), "f"), ElementsAre(1.5f));
  EXPECT_EQ(file->find("none")->elements(), 0);
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(Safetensors, ConvertsHalfPrecisionToFloats) {
  const std::string header =
      R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"h":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})";
  const std::string data = test::raw<uint16_t>(0x3fc0) + test::raw<uint16_t>(0xc000) + test::raw<uint16_t>(0x3e00) +
                           test::raw<uint16_t>(0xc000);
  const std::string bytes = safetensors(header, data);
  auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(*to_floats(*file->find("b"), "b"), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(*to_floats(*file->find("h"), "h"), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(to_int64s(*file->find("b"), "b").status().message(), HasSubstr("'b' has type BF16"));
}

TEST(Safetensors, AFileThatLiesIsAnErrorThatNamesFileAndLimit) {  // case 46
  struct Bad {
    const char* name;
    std::string bytes;
    std::vector<std::string> says;
  };
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  ASSERT_TRUE(parse(one(good)).ok());
  const std::vector<Bad> table = {
      {"empty", "", {"0 bytes"}},
      {"7 bytes", "1234567", {"7 bytes"}},
      {"header length 2^64-1", test::u64(~0ull) + "{}", {"18446744073709551615", "100000000"}},
      {"header length above 100 MB", test::u64(100'000'001) + "{}", {"100000001", "100000000"}},
      {"header past the end", test::u64(50) + "{}", {"50", "2 bytes"}},
      {"header not an object", safetensors("[]", ""), {"'{'"}},
      {"header not JSON", safetensors("{\"a\":", ""), {"JSON"}},
      {"text after the header", safetensors("{} x", ""), {"JSON"}},
      {"not UTF-8", safetensors("{\"\xff\":{}}", ""), {"JSON"}},
      {"reversed offsets", one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), {"'t'", "[8, 0)"}},
      {"offsets past the end",
       one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"),
       {"'t'", "[4, 12)", "8 bytes"}},
      {"span less than the shape", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), {"'t'", "4 bytes", "8"}},
      {"span more than the shape", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"), {"'t'", "8 bytes", "4"}},
      {"a shape that overflows",
       one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
       {"'t'", "shape"}},
      {"a huge dim after a 0", one(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])"), {"'t'"}},
      {"nine dims", one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,8])"), {"'t'", "more than 8"}},
      {"three offsets", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4,8])"), {"'t'", "data_offsets"}},
      {"a negative offset", one(R"("dtype":"F32","shape":[2],"data_offsets":[-1,8])"), {"'t'", "-1"}},
      {"a fraction", one(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), {"'t'", "2.5"}},
      {"a number of 10^400", one(R"("dtype":"F32","shape":[1e400],"data_offsets":[0,8])"), {"JSON"}},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,8])"), {"'t'", "no shape"}},
      {"no dtype", one(R"("shape":[2],"data_offsets":[0,8])"), {"'t'", "no dtype"}},
      {"a type we do not read", one(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"), {"'t'", "F8_E4M3"}},
      {"an unknown field", one(good + R"(,"strides":[1])"), {"'t'", "strides"}},
      {"a nested list", one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), {"'t'", "list"}},
      {"an entry that is no object", safetensors(R"({"t":[1]})", ""), {"'t'"}},
      {"null", safetensors(R"({"t":null})", ""), {"'t'", "null"}},
      {"a name twice",
       safetensors("{\"t\":{" + good + "},\"t\":{" + good + "}}", std::string(8, 'd')),
       {"'t'", "twice"}},
      {"a hole at the end", one(good, std::string(9, 'd')), {"9 bytes", "8"}},
      {"a hole at the start", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), {"'t'", "offset 4"}},
      {"overlapping tensors",
       safetensors("{\"t\":{" + good + R"(},"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                   std::string(8, 'd')),
       {"'u'", "offset 4"}},
  };
  for (const Bad& bad : table) {
    auto file = parse(bad.bytes);
    ASSERT_FALSE(file.ok()) << bad.name;
    EXPECT_THAT(file.status().message(), HasSubstr("'x.safetensors'")) << bad.name;
    for (const std::string& part : bad.says) EXPECT_THAT(file.status().message(), HasSubstr(part)) << bad.name;
  }
}

TEST(Safetensors, AFileCutOffAnywhereIsAnError) {  // case 46
  const std::string bytes = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    EXPECT_FALSE(parse(cut).ok()) << size;
  }
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  EXPECT_FALSE(parse(safetensors("{\"t\":" + std::string(1 << 20, '['), "")).ok());
}

TEST(Safetensors, AMovedFileKeepsItsTensors) {
  auto opened = SafetensorsFile::open(test::models_folder() + "/qwen3/model.safetensors");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const TensorInfo* before = opened->find("model.norm.weight");
  ASSERT_TRUE(before);
  const std::vector<float> values = *to_floats(*before, "norm");
  const SafetensorsFile moved = std::move(*opened);
  EXPECT_EQ(moved.find("model.norm.weight"), before);
  EXPECT_EQ(*to_floats(*before, "norm"), values);
  EXPECT_EQ(values.size(), 64u);
}

}  // namespace
}  // namespace oasis::model
