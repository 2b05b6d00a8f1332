#include "oasis/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oasis/model/test_files.h"

namespace oasis::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The published files, less the keys that no reader here looks at.
constexpr std::string_view kLlama31 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})";

constexpr std::string_view kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643, "eos_token_id": 151645,
  "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
  "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936})";

std::string replaced(std::string_view text, std::string_view from, std::string_view by) {
  std::string out(text);
  const size_t at = out.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return out.replace(at, from.size(), by);
}

Result<ModelConfig> parse(std::string_view text) { return parse_config_json(text, "config.json"); }
std::string error_of(std::string_view text) { return parse(text).status().message(); }

TEST(Config, ReadsLlama31) {
  auto config = parse(kLlama31);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->arch, Arch::kLlama);
  EXPECT_EQ(config->layers, 32);
  EXPECT_EQ(config->hidden, 4096);
  EXPECT_EQ(config->heads, 32);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->head_dim, 128);  // not in the file: hidden / heads
  EXPECT_EQ(config->intermediate, 14336);
  EXPECT_EQ(config->vocab, 128256);
  EXPECT_EQ(config->context, 131072);
  EXPECT_FLOAT_EQ(config->rms_eps, 1e-5f);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->bos_id, 128000);
  EXPECT_THAT(config->eos_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config->rope.theta, 500000);
  EXPECT_EQ(config->rope.factor, 8);
  EXPECT_EQ(config->rope.low_freq_factor, 1);
  EXPECT_EQ(config->rope.high_freq_factor, 4);
  EXPECT_EQ(config->rope.original_context, 8192);
  EXPECT_FALSE(config->rope.interleaved);
  EXPECT_FALSE(config->temperature.has_value());
}

TEST(Config, ReadsQwen3) {
  auto config = parse(kQwen3);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->arch, Arch::kQwen3);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->context, 40960);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(config->rope.theta, 1e6f);
  EXPECT_FLOAT_EQ(config->rms_eps, 1e-6f);
  EXPECT_THAT(config->eos_ids, ElementsAre(151645));
}

TEST(Config, ReadsYarnUnderItsOldAndNewKeys) {
  for (const char* rope :
       {R"("rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})",
        R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768.0})",
        R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000, "factor": 4.0,
            "original_max_position_embeddings": 32768})"}) {
    auto config = parse(replaced(kQwen3, R"("rope_scaling": null)", rope));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope.scaling, RopeScaling::kYarn) << rope;
    EXPECT_EQ(config->rope.factor, 4) << rope;
    EXPECT_EQ(config->rope.original_context, 32768) << rope;
    EXPECT_EQ(config->rope.theta, 1e6f) << rope;
    EXPECT_EQ(config->context, 131072) << rope;
    EXPECT_NEAR(rope_attention_scale(config->rope), 1.1386294361, 1e-6) << rope;
  }
}

TEST(Config, YarnTakesItsAttentionFactorFromTheFile) {
  const auto scale = [](const char* extra) {
    const std::string rope = fmt::format(
        R"("rope_scaling": {{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, {}}})", extra);
    auto config = parse(replaced(kQwen3, R"("rope_scaling": null)", rope));
    EXPECT_TRUE(config.ok()) << config.status().message();
    return rope_attention_scale(config->rope);
  };
  EXPECT_FLOAT_EQ(scale(R"("attention_factor": 1.5)"), 1.5f);
  EXPECT_FLOAT_EQ(scale(R"("mscale": 1.0, "mscale_all_dim": 1.0)"), 1.0f);
  EXPECT_NEAR(scale(R"("mscale": 0.5, "mscale_all_dim": 0)"), 1.1386294361, 1e-6);
}

TEST(Config, RopeParametersWinOverRopeTheta) {
  auto config = parse(replaced(kQwen3, R"("rope_scaling": null)",
                               R"("rope_parameters": {"rope_type": "default", "rope_theta": 5000000})"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope.theta, 5e6f);
}

TEST(Config, WhatThisEngineWouldComputeOtherwiseIsRefusedByName) {
  EXPECT_THAT(error_of(replaced(kQwen3, R"("qwen3")", R"("gemma3_text")")), HasSubstr("gemma3_text"));
  EXPECT_THAT(error_of(replaced(kQwen3, R"("attention_bias": false)", R"("attention_bias": true)")),
              HasSubstr("attention_bias"));
  EXPECT_THAT(error_of(replaced(kLlama31, R"("mlp_bias": false)", R"("mlp_bias": true)")), HasSubstr("mlp_bias"));
  EXPECT_THAT(error_of(replaced(kQwen3, R"("use_sliding_window": false)", R"("use_sliding_window": true)")),
              HasSubstr("use_sliding_window"));
  EXPECT_THAT(error_of(replaced(kQwen3, R"("silu")", R"("gelu")")), HasSubstr("gelu"));
  EXPECT_THAT(error_of(replaced(kQwen3, R"("rope_scaling": null)", R"("rope_scaling": {"type": "longrope"})")),
              HasSubstr("longrope"));
  EXPECT_THAT(error_of(replaced(kQwen3, R"("rope_scaling": null)", R"("partial_rotary_factor": 0.5)")),
              HasSubstr("partial_rotary_factor 0.5"));
  EXPECT_THAT(
      error_of(replaced(kQwen3, R"("rope_scaling": null)", R"("quantization_config": {"quant_method": "awq"})")),
      HasSubstr("GGUF"));
}

TEST(Config, MissingAndMistypedKeysAreErrorsThatNameThem) {
  EXPECT_THAT(error_of(replaced(kLlama31, R"("hidden_size": 4096,)", "")), HasSubstr("hidden_size"));
  EXPECT_THAT(error_of(replaced(kLlama31, R"("model_type": "llama",)", "")), HasSubstr("model_type"));
  EXPECT_THAT(error_of(replaced(kLlama31, R"("low_freq_factor": 1.0,)", "")), HasSubstr("low_freq_factor"));
  EXPECT_THAT(error_of(replaced(kLlama31, "4096", R"("4096")")), HasSubstr("hidden_size is of type string"));
  EXPECT_THAT(error_of(replaced(kLlama31, "4096", "4096.5")), HasSubstr("hidden_size"));
  EXPECT_THAT(error_of(replaced(kLlama31, "4096", "18446744073709551615")), HasSubstr("hidden_size"));
  EXPECT_THAT(error_of(replaced(kLlama31, "4096", "4294967296")), HasSubstr("4294967296"));
  EXPECT_THAT(error_of(replaced(kLlama31, "[128001,", R"(["x",)")), HasSubstr("eos_token_id"));
  EXPECT_THAT(error_of(replaced(kLlama31, "[128001,", "[-1,")), HasSubstr("eos_token_id"));
  EXPECT_THAT(error_of("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{"), HasSubstr("'config.json'"));
}

TEST(Config, SizesOutOfRangeAreErrorsThatNameValueAndLimit) {
  const auto with = [](const char* from, const char* by) { return error_of(replaced(kLlama31, from, by)); };
  EXPECT_THAT(with(R"("num_hidden_layers": 32)", R"("num_hidden_layers": 0)"), HasSubstr("layers is 0"));
  EXPECT_THAT(with(R"("num_hidden_layers": 32)", R"("num_hidden_layers": 5000)"), HasSubstr("1024"));
  EXPECT_THAT(with(R"("num_key_value_heads": 8)", R"("num_key_value_heads": 5)"), HasSubstr("no multiple of 5"));
  EXPECT_THAT(with(R"("num_key_value_heads": 8)", R"("num_key_value_heads": 0)"), HasSubstr("KV heads is 0"));
  EXPECT_THAT(with(R"("num_attention_heads": 32)", R"("num_attention_heads": 0)"), HasSubstr("heads is 0"));
  EXPECT_THAT(with(R"("num_attention_heads": 32)", R"("num_attention_heads": 128)"), HasSubstr("head_dim is 32"));
  EXPECT_THAT(with(R"("vocab_size": 128256)", R"("vocab_size": 128009)"), HasSubstr("EOS id 128009"));
  EXPECT_THAT(with("1e-05", "0"), HasSubstr("rms_eps is 0"));
  EXPECT_THAT(with("131072", "0"), HasSubstr("context length is 0"));
  EXPECT_THAT(with("500000.0", "0"), HasSubstr("theta 0"));
  EXPECT_THAT(error_of(replaced(
                  kQwen3, R"("rope_scaling": null)",
                  R"("rope_scaling": {"type": "yarn", "factor": 1000, "original_max_position_embeddings": 10000000})")),
              HasSubstr("context length is 10000000000"));
}

TEST(Config, GroupsOfThreeAndOddHeadCountsAreFine) {
  auto config =
      parse(replaced(replaced(kLlama31, R"("num_attention_heads": 32)", R"("head_dim": 64, "num_attention_heads": 9)"),
                     R"("num_key_value_heads": 8)", R"("num_key_value_heads": 3)"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->head_dim, 64);
}

TEST(Config, TheGenerationConfigAddsEndsAndSamplingDefaults) {
  auto config = parse(kQwen3);
  ASSERT_TRUE(config.ok());
  ASSERT_TRUE(apply_generation_config(R"({"do_sample": true, "eos_token_id": [151645, 151643], "temperature": 0.6,
                                          "top_k": 20, "top_p": 0.95})",
                                      "generation_config.json", *config)
                  .ok());
  EXPECT_THAT(config->eos_ids, ElementsAre(151645, 151643));
  EXPECT_FLOAT_EQ(config->temperature.value(), 0.6f);
  EXPECT_FLOAT_EQ(config->top_p.value(), 0.95f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_THAT(apply_generation_config(R"({"top_p": 2})", "generation_config.json", *config).message(),
              HasSubstr("top_p 2"));
}

TEST(Config, AGreedyGenerationConfigSetsNoSamplingDefaults) {
  auto config = parse(kQwen3);
  ASSERT_TRUE(apply_generation_config(R"({"do_sample": false, "temperature": 0.6})", "g.json", *config).ok());
  EXPECT_FALSE(config->temperature.has_value());
}

TEST(Config, ReadsAFile) {
  auto config = read_config_json(test::models_folder() + "/llama-hd96/config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->head_dim, 96);
  EXPECT_EQ(read_config_json("/nowhere/config.json").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace oasis::model
