#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "oasis/text/tokenizer.h"

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

std::string error_of(const std::string& tokenizer, const std::string& config = "") {
  const auto spec = parse_tokenizer_json(tokenizer, config);
  if (!spec.ok()) return spec.status().message();
  const auto made = Tokenizer::create(*spec);
  return made.ok() ? "no error" : made.status().message();
}

// Qwen's file after `edit`.
template <typename F>
std::string error_after(F&& edit) {
  json doc = json::parse(read_file(kData + "qwen-tiny/tokenizer.json"));
  edit(doc);
  return error_of(doc.dump());
}

TEST(TokenizerJson, AFolderGivesEverythingTheModelNeeds) {
  const auto qwen = read_tokenizer_json(kData + "qwen-tiny");
  ASSERT_TRUE(qwen.ok()) << qwen.status().message();
  EXPECT_EQ(qwen->pre, PreTokenizer::kQwen2);
  EXPECT_TRUE(qwen->nfc);
  EXPECT_FALSE(qwen->ignore_merges);
  EXPECT_EQ(qwen->bos, -1);
  EXPECT_EQ(qwen->tokens[qwen->eos], "<|im_end|>");
  EXPECT_EQ(qwen->tokens[qwen->pad], "<|endoftext|>");
  EXPECT_EQ(qwen->types[qwen->eos], kControl);
  EXPECT_EQ(qwen->types.back(), kUserDefined);
  EXPECT_EQ(qwen->chat_template, read_file(kData + "qwen3.jinja"));

  const auto llama = read_tokenizer_json(kData + "llama3-tiny");
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(llama->pre, PreTokenizer::kLlama3);
  EXPECT_FALSE(llama->nfc);
  EXPECT_TRUE(llama->ignore_merges);
  EXPECT_TRUE(llama->add_bos);
  EXPECT_EQ(llama->tokens[llama->bos], "<|begin_of_text|>");
  EXPECT_EQ(llama->tokens[llama->eos], "<|eot_id|>");
  EXPECT_EQ(llama->pad, -1);
  EXPECT_EQ(llama->chat_template, read_file(kData + "llama3_style.jinja"));
}

TEST(TokenizerJson, AMissingFolderIsAnError) {
  const auto spec = read_tokenizer_json(kData + "no such folder");
  ASSERT_FALSE(spec.ok());
  EXPECT_NE(spec.status().message().find("no such folder holds no tokenizer.json"), std::string::npos);
}

TEST(TokenizerJson, WhatWouldChangeTheIdsIsAnErrorThatNamesIt) {
  EXPECT_EQ(error_after([](json&) {}), "no error");
  const std::pair<std::function<void(json&)>, const char*> cases[] = {
      {[](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+|x"; }, "\\\\w+|x"},
      {[](json& d) { d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "\"Removed\""},
      {[](json& d) { d["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
       "pre_tokenizer is not one of"},
      {[](json& d) { d["pre_tokenizer"] = {{"type", "Metaspace"}}; }, "Metaspace"},
      {[](json& d) { d["pre_tokenizer"] = nullptr; }, "has no pre_tokenizer"},
      {[](json& d) { d["normalizer"]["type"] = "NFKC"; }, "NFKC"},
      {[](json& d) { d["model"]["type"] = "Unigram"; }, "'Unigram'"},
      {[](json& d) { d["model"]["byte_fallback"] = true; }, "byte_fallback is true"},
      {[](json& d) { d["model"]["dropout"] = 0.1; }, "dropout is 0.1"},
      {[](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
      {[](json& d) { d["model"]["vocab"].erase("a"), d["model"]["unk_token"] = "<unk>"; }, "unk_token is '<unk>'"},
      {[](json& d) { d["added_tokens"][0]["rstrip"] = true; }, "'<|endoftext|>' sets rstrip"},
      {[](json& d) { d["post_processor"] = {{"type", "BertProcessing"}}; }, "BertProcessing"},
  };
  for (const auto& [edit, expected] : cases) {
    EXPECT_NE(error_after(edit).find(expected), std::string::npos) << expected << "\n" << error_after(edit);
  }
}

TEST(TokenizerJson, AHostileFileIsAnErrorThatNamesTheField) {
  const std::pair<std::function<void(json&)>, const char*> cases[] = {
      {[](json& d) { d["model"]["vocab"]["a"] = -1; }, "token 'a' has id -1"},
      {[](json& d) { d["model"]["vocab"]["a"] = 1e9; }, "token 'a' has id 1000000000"},
      {[](json& d) { d["model"]["vocab"]["a"] = 4000000000u; }, "token 'a' has id 4000000000"},
      {[](json& d) { d["model"]["vocab"]["a"] = "x"; }, "token 'a' has id \"x\""},
      {[](json& d) { d["model"]["vocab"] = json::array(); }, "model.vocab"},
      {[](json& d) { d["model"].erase("merges"); }, "model.merges"},
      {[](json& d) { d["model"]["merges"][3] = {"a", "b", "c"}; }, "merge 3 is"},
      {[](json& d) { d["model"]["merges"][3] = 7; }, "merge 3 is 7"},
      {[](json& d) { d["model"]["merges"][3] = "日 本"; }, "merge 3 '日 本'"},
      {[](json& d) { d["model"] = 1; }, "model.vocab"},
      {[](json& d) { d.erase("model"); }, "no model"},
      {[](json& d) { d["added_tokens"] = 5; }, "added_tokens"},
      {[](json& d) { d["added_tokens"][0].erase("content"); }, "lacks content or id"},
      {[](json& d) { d["added_tokens"][0]["id"] = 99999999; }, "id 99999999"},
      {[](json& d) { d["added_tokens"][0]["content"] = std::string(5000, 'x'); }, "5000 bytes long"},
      {[](json& d) { d["pre_tokenizer"] = 3; }, "pre_tokenizer is not one of"},
      {[](json& d) { d["post_processor"] = {{"type", "TemplateProcessing"}}; }, "post_processor"},
  };
  for (const auto& [edit, expected] : cases) {
    EXPECT_NE(error_after(edit).find(expected), std::string::npos) << expected << "\n" << error_after(edit);
  }
  for (const std::string& text : {std::string(""), std::string("{"), std::string("[]"), std::string("null"),
                                  std::string(100000, '['), std::string("{\"model\": \"\xFF\"}")}) {
    EXPECT_NE(error_of(text), "no error") << text.substr(0, 20);
  }
}

TEST(TokenizerJson, EveryTruncationIsAnErrorAndNoCrash) {
  const std::string text = read_file(kData + "qwen-tiny/tokenizer.json");
  for (size_t n = 0; n + 2 < text.size(); n += 997) EXPECT_NE(error_of(text.substr(0, n)), "no error") << n;
}

TEST(TokenizerJson, TheConfigsVariantsAreRead) {
  const std::string tokenizer = read_file(kData + "qwen-tiny/tokenizer.json");
  const auto spec_of = [&](const std::string& config) {
    auto spec = parse_tokenizer_json(tokenizer, config);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    return std::move(*spec);
  };
  EXPECT_EQ(spec_of("").eos, -1);
  TokenizerSpec spec = spec_of(
      R"({"bos_token": {"content": "<|endoftext|>"}, "add_bos_token": true, "eos_token": "not there", "pad_token": 3,
          "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(spec.tokens[spec.bos], "<|endoftext|>");
  EXPECT_TRUE(spec.add_bos);
  EXPECT_EQ(spec.eos, -1);
  EXPECT_EQ(spec.pad, -1);
  EXPECT_EQ(spec.chat_template, "D");
  EXPECT_FALSE(spec_of(R"({"add_bos_token": true, "bos_token": null})").add_bos);
  EXPECT_NE(error_of(tokenizer, R"({"chat_template": 5})"), "no error");
  EXPECT_NE(error_of(tokenizer, "nonsense"), "no error");
}

TEST(TokenizerJson, MergesMayBePairsOrStrings) {
  // qwen-tiny has pairs, llama3-tiny strings; rewritten the other way the tokenizer is the same.
  json doc = json::parse(read_file(kData + "qwen-tiny/tokenizer.json"));
  ASSERT_TRUE(doc["model"]["merges"][0].is_array());
  const auto pairs = parse_tokenizer_json(doc.dump(), "");
  for (json& merge : doc["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const auto strings = parse_tokenizer_json(doc.dump(), "");
  ASSERT_TRUE(pairs.ok() && strings.ok());
  EXPECT_EQ(pairs->merges, strings->merges);
}

}  // namespace
}  // namespace oasis::text
