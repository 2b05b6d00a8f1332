// Heads that are broken, or another model's: an error that says which, never a crash.
#include "oasis/draft/eagle3_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oasis/draft/testing/head_files.h"

namespace oasis::draft {
namespace {

using testing::HasSubstr;

class Eagle3Head : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = model::Checkpoint::open(std::string(OASIS_SOURCE_DIR) + "/tests/data/models/llama-hd96");
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    target_.emplace(std::move(opened).value());
  }
  std::string error() {
    const auto head = open_head(folder_.path(), *target_);
    return head.ok() ? "" : head.status().message();
  }
  std::string error(const HeadFiles& files) {
    files.write(folder_.path());
    return error();
  }
  void write_file(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << text;
  }

  std::optional<model::Checkpoint> target_;
  HeadFiles::Folder folder_{testing::UnitTest::GetInstance()->current_test_info()->name()};
  HeadFiles head_ = random_head({}, 1);
};

TEST_F(Eagle3Head, OpensAGoodOne) { EXPECT_EQ(error(head_), ""); }

TEST_F(Eagle3Head, NamesTheFolderThatIsNotThere) {
  EXPECT_THAT(open_head("/no/such/head", *target_).status().message(), HasSubstr("/no/such/head"));
}

TEST_F(Eagle3Head, SaysHowToConvertAPickle) {
  write_file("config.json", head_.config.dump());
  write_file("pytorch_model.bin", "PK");
  EXPECT_THAT(error(), HasSubstr("torch.load("));
}

TEST_F(Eagle3Head, NamesTheTensorAndBothShapesOfAMismatch) {
  head_.tensors["midlayer.self_attn.k_proj.weight"].shape = {128, 64};
  EXPECT_THAT(error(head_), testing::AllOf(HasSubstr("midlayer.self_attn.k_proj.weight"), HasSubstr("[128, 64]"),
                                           HasSubstr("[64, 128]")));
}

TEST_F(Eagle3Head, RefusesTheHeadOfATargetOfAnotherWidth) {
  head_.config["target_hidden_size"] = 4096;
  EXPECT_THAT(error(head_), testing::AllOf(HasSubstr("4096"), HasSubstr("64")));
}

TEST_F(Eagle3Head, RefusesAWidthThatTheTargetsEmbeddingsDoNotHave) {
  head_ = random_head({.hidden = 128}, 1);
  EXPECT_THAT(error(head_), HasSubstr("embed_tokens.weight"));
}

TEST_F(Eagle3Head, RefusesTapsThatTheTargetDoesNotHave) {
  head_.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {0, 1, 30};
  EXPECT_THAT(error(head_), testing::AllOf(HasSubstr("30"), HasSubstr("2 layers")));
}

TEST_F(Eagle3Head, RefusesTheDefaultTapsOfAModelTooShallowForThem) {
  head_.config.erase("eagle_config");
  EXPECT_THAT(error(head_), HasSubstr("eagle_aux_hidden_state_layer_ids"));
}

TEST_F(Eagle3Head, RefusesDraftTokensOutsideTheVocabulary) {
  for (const int64_t offset : {int64_t{320}, int64_t{-6}, INT64_MAX, INT64_MIN}) {
    head_.tensors["d2t"].integers[5] = offset;
    EXPECT_THAT(error(head_), HasSubstr("d2t[5]")) << offset;
  }
}

TEST_F(Eagle3Head, RefusesTwoDraftTokensForOneOfTheTarget) {
  auto& offsets = head_.tensors["d2t"].integers;
  offsets[6] = offsets[5] - 1;
  EXPECT_THAT(error(head_), HasSubstr("two draft tokens"));
}

TEST_F(Eagle3Head, RefusesAMapOfAnotherLength) {
  head_.tensors["d2t"].shape = {99};
  head_.tensors["d2t"].integers.pop_back();
  EXPECT_THAT(error(head_), testing::AllOf(HasSubstr("d2t"), HasSubstr("[99]"), HasSubstr("[100]")));
}

TEST_F(Eagle3Head, NamesEveryTensorThatIsMissing) {
  const HeadFiles whole = head_;
  for (const auto& [name, tensor] : whole.tensors) {
    if (name == "d2t" || name == "lm_head.weight") continue;  // may be absent
    head_ = whole;
    head_.tensors.erase(name);
    EXPECT_THAT(error(head_), HasSubstr(name));
  }
}

TEST_F(Eagle3Head, RefusesTensorsItWouldIgnore) {
  head_.tensors["layers.1.self_attn.q_proj.weight"] = head_.tensors["midlayer.self_attn.q_proj.weight"];
  EXPECT_THAT(error(head_), HasSubstr("layers.1.self_attn.q_proj.weight"));
}

TEST_F(Eagle3Head, RefusesATensorThatBothLayoutsName) {
  head_.tensors["layers.0.hidden_norm.weight"] = head_.tensors["midlayer.hidden_norm.weight"];
  EXPECT_THAT(error(head_), HasSubstr("midlayer.hidden_norm.weight"));
}

TEST_F(Eagle3Head, RefusesConfigsOfOtherTypes) {
  head_.write(folder_.path());
  const std::string good = head_.config.dump();
  for (const char* bad : {"", "{", "[]", "null", "7", "\"x\"", "{}"}) {
    write_file("config.json", bad);
    EXPECT_NE(error(), "") << bad;
  }
  for (const char* patch :
       {R"({"hidden_size": -1})", R"({"hidden_size": 1e30})", R"({"num_attention_heads": 0})", R"({"head_dim": 7})",
        R"({"rope_theta": "big"})", R"({"rope_scaling": []})",
        R"({"rope_scaling": {"rope_type": "linear", "factor": 2}})", R"({"target_hidden_size": "64"})",
        R"({"norm_output": 1})", R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "012"}})",
        R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, null]}})",
        R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 1, 0]}})",
        R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9223372036854775807]}})",
        R"({"eagle_config": {"use_aux_hidden_state": "yes"}})", R"({"transformer_layer_config": 3})"}) {
    nlohmann::json config = head_.config;
    config.merge_patch(nlohmann::json::parse(patch));
    write_file("config.json", config.dump());
    EXPECT_NE(error(), "") << patch;
  }
  write_file("config.json", good);
  EXPECT_EQ(error(), "");
}

TEST_F(Eagle3Head, RefusesFilesCutShort) {
  head_.write(folder_.path());
  const std::string path = folder_.path() + "/model.safetensors";
  const auto size = std::filesystem::file_size(path);
  for (const auto left : {uintmax_t{0}, uintmax_t{4}, uintmax_t{40}, size / 2, size - 1}) {
    std::filesystem::resize_file(path, left);
    EXPECT_NE(error(), "") << left;
    head_.write(folder_.path());
  }
}

TEST_F(Eagle3Head, HasAFingerprintOfItsNumbers) {
  head_.write(folder_.path());
  const uint64_t original = open_head(folder_.path(), *target_)->fingerprint;
  EXPECT_EQ(open_head(folder_.path(), *target_)->fingerprint, original);
  const nlohmann::json theta = std::exchange(head_.config["rope_theta"], 500000.0);
  head_.write(folder_.path());
  EXPECT_NE(open_head(folder_.path(), *target_)->fingerprint, original);
  head_.config["rope_theta"] = theta;
  head_.tensors["midlayer.self_attn.k_proj.weight"].values[3] += 1;
  head_.write(folder_.path());
  EXPECT_NE(open_head(folder_.path(), *target_)->fingerprint, original);
}

}  // namespace
}  // namespace oasis::draft
