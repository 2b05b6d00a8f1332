#include "oasis/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "oasis/base/numeric.h"
#include "oasis/model/random_checkpoint.h"
#include "oasis/model/test_files.h"
#include "oasis/text/tokenizer.h"

namespace oasis::model {
namespace {

using test::copy_model;
using test::models_folder;
using test::TempFolder;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Checkpoint open(const std::string& path) {
  auto checkpoint = Checkpoint::open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return std::move(*checkpoint);
}
Checkpoint open_tiny(const std::string& name) { return open(models_folder() + "/" + name); }
std::string error_of(const std::string& path) { return Checkpoint::open(path).status().message(); }

std::string bytes_of(const WeightView& weight) {
  return {static_cast<const char*>(weight.data), static_cast<size_t>(weight.rows * weight.row_bytes())};
}

// The tensors of a tiny checkpoint, to be written anew in another arrangement.
std::map<std::string, TensorInfo> tensors_of(const SafetensorsFile& file) {
  return {file.tensors().begin(), file.tensors().end()};
}

TEST(Checkpoint, OpensAFolderWithViewsOfTheRightShape) {
  const Checkpoint checkpoint = open_tiny("qwen3");
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.arch, Arch::kQwen3);
  EXPECT_EQ(config.name, "qwen3");
  EXPECT_EQ(open_tiny("qwen3/").config().name, "qwen3");
  EXPECT_FALSE(config.rope.interleaved);
  EXPECT_THAT(config.eos_ids, ElementsAre(257, 256));  // generation_config.json
  EXPECT_FLOAT_EQ(config.temperature.value(), 0.6f);
  const ModelWeights& weights = checkpoint.weights();
  ASSERT_EQ(weights.layers.size(), 2u);
  const LayerWeights& layer = weights.layers[1];
  const auto shape = [](const WeightView& w) { return std::pair(w.rows, w.cols); };
  EXPECT_EQ(shape(weights.embed), std::pair(int64_t{320}, int64_t{64}));
  EXPECT_EQ(shape(layer.q), std::pair(int64_t{256}, int64_t{64}));
  EXPECT_EQ(shape(layer.k), std::pair(int64_t{128}, int64_t{64}));
  EXPECT_EQ(shape(layer.v), std::pair(int64_t{128}, int64_t{64}));
  EXPECT_EQ(shape(layer.o), std::pair(int64_t{64}, int64_t{256}));
  EXPECT_EQ(shape(layer.gate), std::pair(int64_t{96}, int64_t{64}));
  EXPECT_EQ(shape(layer.down), std::pair(int64_t{64}, int64_t{96}));
  EXPECT_EQ(layer.q.type, DType::kBF16);
  EXPECT_EQ(weights.output_norm.size(), 64u);
  EXPECT_EQ(layer.q_norm.size(), 128u);
}

TEST(Checkpoint, NormsAreTheFilesValuesAsFloats) {
  auto file = SafetensorsFile::open(models_folder() + "/qwen3/model.safetensors");
  ASSERT_TRUE(file.ok());
  const std::vector<float> wanted = *to_floats(*file->find("model.layers.1.self_attn.k_norm.weight"), "k_norm");
  const Checkpoint checkpoint = open_tiny("qwen3");
  EXPECT_THAT(checkpoint.weights().layers[1].k_norm, ::testing::ElementsAreArray(wanted));
}

TEST(Checkpoint, OpensGgufWithPermutedLlamaAndPlainQwen) {
  const Checkpoint llama = open_tiny("llama-q4-gguf/model.gguf");
  EXPECT_TRUE(llama.config().rope.interleaved);
  EXPECT_EQ(llama.config().kv_heads, 1);
  EXPECT_EQ(llama.weights().layers[0].q.type, DType::kQ4_0);
  EXPECT_EQ(llama.weights().layers[0].k.type, DType::kQ4_1);
  EXPECT_EQ(llama.weights().embed.type, DType::kQ8_0);
  EXPECT_TRUE(llama.weights().layers[0].q_norm.empty());
  const Checkpoint qwen = open_tiny("qwen3-kquants-gguf/model.gguf");
  EXPECT_FALSE(qwen.config().rope.interleaved);
  EXPECT_EQ(qwen.config().head_dim, 128);
  EXPECT_EQ(qwen.weights().layers[1].k.type, DType::kQ5_K);
  EXPECT_EQ(qwen.weights().lm_head.type, DType::kQ6_K);
  EXPECT_EQ(qwen.weights().layers[1].q_norm.size(), 128u);
  const Checkpoint yarn = open_tiny("qwen3-yarn-gguf/model.gguf");
  EXPECT_EQ(yarn.config().rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn.config().rope.original_context, 16);
}

TEST(Checkpoint, TiedAndAbsentSharesTheEmbedding) {  // case 48
  const Checkpoint checkpoint = open_tiny("llama-gqa3");
  EXPECT_EQ(checkpoint.weights().lm_head.data, checkpoint.weights().embed.data);
  const Checkpoint gguf = open_tiny("llama-q4-gguf/model.gguf");
  EXPECT_EQ(gguf.weights().lm_head.data, gguf.weights().embed.data);
}

TEST(Checkpoint, TiedAndPresentUsesTheHeadOfTheFile) {  // case 48
  const TempFolder folder;
  copy_model("llama-hd96", folder, R"("tie_word_embeddings": false)", R"("tie_word_embeddings": true)");
  const Checkpoint checkpoint = open(folder.path());
  EXPECT_EQ(bytes_of(checkpoint.weights().lm_head), bytes_of(open_tiny("llama-hd96").weights().lm_head));
  EXPECT_NE(bytes_of(checkpoint.weights().lm_head), bytes_of(checkpoint.weights().embed));
}

TEST(Checkpoint, UntiedAndPresentUsesTheHeadOfTheFile) {  // case 48
  const Checkpoint checkpoint = open_tiny("llama-hd96");
  auto file = SafetensorsFile::open(models_folder() + "/llama-hd96/model.safetensors");
  const auto wanted = file->find("lm_head.weight")->data;
  EXPECT_EQ(bytes_of(checkpoint.weights().lm_head),
            std::string(reinterpret_cast<const char*>(wanted.data()), wanted.size()));
}

TEST(Checkpoint, UntiedAndAbsentIsAnErrorThatNamesTheHead) {  // case 48
  const TempFolder folder;
  copy_model("llama-gqa3", folder, R"("tie_word_embeddings": true)", R"("tie_word_embeddings": false)");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("lm_head.weight"));
}

TEST(Checkpoint, AMissingTensorIsNamed) {
  const TempFolder folder;
  copy_model("llama-gqa3", folder, R"("num_hidden_layers": 2)", R"("num_hidden_layers": 3)");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("no tensor 'model.layers.2."));
}

TEST(Checkpoint, AWrongShapeIsNamedWithBothShapes) {
  const TempFolder folder;
  copy_model("llama-gqa3", folder, R"("intermediate_size": 96)", R"("intermediate_size": 128)");
  EXPECT_THAT(error_of(folder.path()),
              HasSubstr("'model.layers.0.mlp.gate_proj.weight' has shape [96, 96], but [128, 96]"));
}

TEST(Checkpoint, ATensorOfATypeNoWeightHasIsNamed) {
  const TempFolder folder;
  copy_model("llama-gqa3", folder);
  auto file = SafetensorsFile::open(models_folder() + "/llama-gqa3/model.safetensors");
  auto tensors = tensors_of(*file);
  const std::string zeros(320 * 96 * 8, '\0');
  tensors["model.embed_tokens.weight"] = {DType::kI64, {320, 96}, test::as_bytes(zeros)};
  write_file(folder / "model.safetensors", test::safetensors(tensors));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("'model.embed_tokens.weight' has type I64"));
}

TEST(Checkpoint, ABiasIsRefusedByName) {
  const TempFolder folder;
  copy_model("llama-gqa3", folder);
  auto file = SafetensorsFile::open(models_folder() + "/llama-gqa3/model.safetensors");
  auto tensors = tensors_of(*file);
  const std::string zeros(8, '\0');
  tensors["model.layers.0.self_attn.q_proj.bias"] = {DType::kF32, {2}, test::as_bytes(zeros)};
  write_file(folder / "model.safetensors", test::safetensors(tensors));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("q_proj.bias"));
}

// Writes the tensors of llama-gqa3 as two shards with an index.
void write_shards(const TempFolder& folder) {
  copy_model("llama-gqa3", folder);
  std::filesystem::remove(folder / "model.safetensors");
  auto file = SafetensorsFile::open(models_folder() + "/llama-gqa3/model.safetensors");
  std::map<std::string, TensorInfo> shards[2];
  std::string index;
  for (int i = 0; const auto& [name, tensor] : tensors_of(*file)) {
    const int shard = i++ % 2;
    shards[shard][name] = tensor;
    index += fmt::format(R"({}"{}":"s{}.safetensors")", index.empty() ? "" : ",", name, shard);
  }
  for (int i : {0, 1}) write_file(folder / fmt::format("s{}.safetensors", i), test::safetensors(shards[i]));
  write_file(folder / "model.safetensors.index.json", R"({"metadata":{},"weight_map":{)" + index + "}}");
}

TEST(Checkpoint, ShardsGiveTheSameWeightsAsOneFile) {
  const TempFolder folder;
  write_shards(folder);
  const Checkpoint sharded = open(folder.path()), whole = open_tiny("llama-gqa3");
  EXPECT_EQ(bytes_of(sharded.weights().layers[1].down), bytes_of(whole.weights().layers[1].down));
  EXPECT_EQ(sharded.fingerprint(), whole.fingerprint());
  EXPECT_EQ(sharded.weight_bytes(), whole.weight_bytes());
}

TEST(Checkpoint, AnIndexThatLiesIsAnErrorThatNamesTheEntry) {
  const TempFolder folder;
  write_shards(folder);
  const auto index = [&](const std::string& text) {
    write_file(folder / "model.safetensors.index.json", text);
    return error_of(folder.path());
  };
  EXPECT_THAT(index(R"({"weight_map":{"model.norm.weight":"../s0.safetensors"}})"),
              HasSubstr("'../s0.safetensors', which is not a .safetensors file of this folder"));
  EXPECT_THAT(index(R"({"weight_map":{"model.norm.weight":"s7.safetensors"}})"), HasSubstr("s7.safetensors"));
  EXPECT_THAT(index(R"({"weight_map":{"no.such.tensor":"s0.safetensors"}})"), HasSubstr("no.such.tensor"));
  EXPECT_THAT(index(R"({"weight_map":{"model.norm.weight":3}})"), HasSubstr("model.norm.weight"));
  EXPECT_THAT(index(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(index("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(index("{"), HasSubstr("model.safetensors.index.json"));
}

TEST(Checkpoint, MisalignedTensorsAreCopiedToWhereTheyMayBeRead) {
  for (size_t pad = 0; pad < 4; ++pad) {
    const TempFolder folder;
    copy_model("llama-gqa3", folder);
    auto file = SafetensorsFile::open(models_folder() + "/llama-gqa3/model.safetensors");
    write_file(folder / "model.safetensors", test::safetensors(tensors_of(*file), pad));
    const Checkpoint checkpoint = open(folder.path());
    EXPECT_EQ(checkpoint.fingerprint(), open_tiny("llama-gqa3").fingerprint());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(checkpoint.weights().layers[0].q.data) % 2, 0u) << pad;
  }
}

TEST(Checkpoint, PickledWeightsAreAnErrorThatSaysHowToConvert) {
  const TempFolder folder;
  copy_model("llama-gqa3", folder);
  std::filesystem::remove(folder / "model.safetensors");
  write_file(folder / "pytorch_model.bin", "PK");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("save_pretrained"));
  EXPECT_THAT(error_of(folder.path()), HasSubstr("pytorch_model.bin"));
}

TEST(Checkpoint, WhatIsNoModelIsAnErrorThatSaysWhatToGive) {
  const TempFolder folder;
  EXPECT_THAT(error_of(folder.path()), HasSubstr("no config.json"));
  EXPECT_THAT(error_of(folder / "absent"), HasSubstr("does not exist"));
  EXPECT_THAT(error_of(models_folder() + "/llama-gqa3/model.safetensors"), HasSubstr("folder"));
  EXPECT_THAT(error_of(models_folder() + "/llama-q4-gguf"), HasSubstr("model.gguf"));
  write_file(folder / "x.gguf", "not one");
  EXPECT_THAT(error_of(folder / "x.gguf"), HasSubstr("GGUF"));
}

TEST(Checkpoint, ViewsStayValidWhenItMoves) {
  Checkpoint first = open_tiny("llama-q4-gguf/model.gguf");
  const std::string wanted = bytes_of(first.weights().layers[1].up);
  const float norm = first.weights().output_norm[7];
  Checkpoint second = std::move(first);
  Checkpoint third = open_tiny("qwen3");
  third = std::move(second);
  EXPECT_EQ(bytes_of(third.weights().layers[1].up), wanted);
  EXPECT_EQ(third.weights().output_norm[7], norm);
  EXPECT_TRUE(third.tokenizer_spec().ok());
}

TEST(Checkpoint, TheFingerprintFollowsContentAndNotPlace) {
  const TempFolder folder;
  copy_model("llama-gqa3", folder);
  const uint64_t original = open_tiny("llama-gqa3").fingerprint();
  EXPECT_EQ(open(folder.path()).fingerprint(), original);
  std::string bytes = test::read_file(folder / "model.safetensors");
  bytes.back() ^= 1;
  write_file(folder / "model.safetensors", bytes);
  EXPECT_NE(open(folder.path()).fingerprint(), original);
  const TempFolder other;
  copy_model("llama-gqa3", other, R"("rope_theta": 10000.0)", R"("rope_theta": 20000.0)");
  EXPECT_NE(open(other.path()).fingerprint(), original);
}

TEST(Checkpoint, WeightBytesCountATiedHeadOnce) {
  // bf16 matrices of llama-gqa3, and fp32 norms.
  const uint64_t layer = 96 * (192 + 64 + 64) + 192 * 96 + 3 * 96 * 96;
  EXPECT_EQ(open_tiny("llama-gqa3").weight_bytes(), 2 * (2 * layer + 320 * 96) + 4 * 96 * 5);
}

// A tiny GGUF file with bytes exchanged for as many others.
std::string patched(const std::string& name, const std::string& from, const std::string& by) {
  std::string bytes = test::read_file(models_folder() + "/" + name + "/model.gguf");
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), by.size());
  return bytes.replace(at, from.size(), by);
}

TEST(Checkpoint, AGgufFileThatThisEngineCannotRunIsRefusedByName) {
  using test::text;
  using test::u32;
  const TempFolder folder;
  const auto error = [&](const std::string& from, const std::string& by) {
    write_file(folder / "x.gguf", patched("llama-q4-gguf", from, by));
    return error_of(folder / "x.gguf");
  };
  EXPECT_THAT(error(text("llama"), text("gemma")), HasSubstr("architecture 'gemma'"));
  EXPECT_THAT(error("llama.block_count", "llama.block_c0unt"), HasSubstr("no metadata key 'llama.block_count'"));
  EXPECT_THAT(error("llama.rope.dimension_count" + u32(4) + u32(64), "llama.rope.dimension_count" + u32(4) + u32(32)),
              HasSubstr("'llama.rope.dimension_count' is 32; only 64"));
  EXPECT_THAT(error("llama.block_count" + u32(4) + u32(2), "llama.block_count" + u32(4) + u32(~0u)),
              HasSubstr("'llama.block_count' is 4294967295"));
  EXPECT_THAT(error("blk.1.ffn_down.weight", "blk.1.ffn_d0wn.weight"), HasSubstr("no tensor 'blk.1.ffn_down.weight'"));
  EXPECT_THAT(error("token_embd.weight", "t0ken_embd.weight"), HasSubstr("no tensor 'token_embd.weight'"));
  EXPECT_THAT(error("eos_token_id" + u32(4) + u32(257), "eos_token_id" + u32(4) + u32(400)), HasSubstr("EOS id 400"));
}

TEST(Checkpoint, AGgufTokenizerThatThisEngineCannotRunIsRefusedByName) {
  using test::text;
  const TempFolder folder;
  const auto error = [&](const std::string& from, const std::string& by) {
    write_file(folder / "x.gguf", patched("llama-q4-gguf", from, by));
    return open(folder / "x.gguf").tokenizer_spec().status().message();
  };
  EXPECT_THAT(error(text("gpt2"), text("bert")), HasSubstr("'bert'"));
  EXPECT_THAT(error(text("smollm"), text("gemma9")), HasSubstr("gemma9"));
  EXPECT_THAT(error("tokenizer.ggml.merges", "tokenizer.ggml.m3rges"), HasSubstr("tokenizer.ggml.merges"));
}

TEST(Checkpoint, AQwenGgufEndsWhereverQwenEnds) {
  // The file names 257 alone; <|endoftext|> is 256.
  EXPECT_THAT(open_tiny("qwen3-yarn-gguf/model.gguf").config().eos_ids, ElementsAre(256, 257));
  EXPECT_THAT(open_tiny("llama-q4-gguf/model.gguf").config().eos_ids, ElementsAre(257));
}

TEST(Checkpoint, ReadsTheTokenizerOfAGgufFile) {
  auto spec = open_tiny("llama-q4-gguf/model.gguf").tokenizer_spec();
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->pre, text::PreTokenizer::kSmolLM);
  EXPECT_EQ(spec->tokens.size(), 320u);
  EXPECT_EQ(spec->tokens[257], "<|im_end|>");
  EXPECT_EQ(spec->types[257], text::kControl);
  EXPECT_EQ(spec->merges.front(), "h e");
  EXPECT_EQ(spec->bos, 256);
  EXPECT_EQ(spec->eos, 257);
  EXPECT_EQ(spec->pad, 256);
  EXPECT_FALSE(spec->add_bos);
  EXPECT_FALSE(spec->nfc);
  EXPECT_THAT(spec->chat_template, HasSubstr("im_start"));
  auto qwen = open_tiny("qwen3-yarn-gguf/model.gguf").tokenizer_spec();
  ASSERT_TRUE(qwen.ok()) << qwen.status().message();
  EXPECT_EQ(qwen->pre, text::PreTokenizer::kQwen2);
  EXPECT_TRUE(qwen->nfc);
}

TEST(Checkpoint, ReadsTheTokenizerOfAFolder) {
  auto spec = open_tiny("llama-gqa3").tokenizer_spec();
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->pre, text::PreTokenizer::kSmolLM);
  EXPECT_EQ(spec->eos, 257);
  EXPECT_EQ(open_tiny("llama-hd96").tokenizer_spec().status().code(), StatusCode::kNotFound);
}

TEST(Checkpoint, TheRealSmolLM2IsWhatItsAuthorsSay) {
  const std::string path = std::string(OASIS_SOURCE_DIR) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const Checkpoint checkpoint = open(path);
  const ModelConfig& config = checkpoint.config();
  EXPECT_EQ(config.arch, Arch::kLlama);
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ(config.hidden, 576);
  EXPECT_EQ(config.heads, 9);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.intermediate, 1536);
  EXPECT_EQ(config.vocab, 49152);
  EXPECT_EQ(config.context, 8192);
  EXPECT_FLOAT_EQ(config.rms_eps, 1e-5f);
  EXPECT_EQ(config.rope.theta, 100000);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_EQ(config.bos_id, 1);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
  EXPECT_EQ(checkpoint.weights().embed.type, DType::kQ8_0);
  for (const LayerWeights& layer : checkpoint.weights().layers)
    for (const WeightView& w : {layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down})
      EXPECT_EQ(w.type, DType::kQ4_1);
  auto spec = checkpoint.tokenizer_spec();
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->pre, text::PreTokenizer::kSmolLM);
  EXPECT_EQ(spec->tokens.size(), 49152u);
  EXPECT_EQ(spec->merges.size(), 48900u);
  EXPECT_EQ(spec->bos, 1);
  EXPECT_EQ(spec->eos, 2);
  EXPECT_EQ(spec->pad, 2);
  EXPECT_FALSE(spec->add_bos);
}

ModelConfig small_config() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 128;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.intermediate = 256;
  config.vocab = 512;
  config.context = 1024;
  config.tied_embeddings = true;
  return config;
}

TEST(RandomCheckpoint, IsTheSameForTheSameSeedOnly) {
  EXPECT_EQ(make_random(small_config(), 1).fingerprint(), make_random(small_config(), 1).fingerprint());
  EXPECT_NE(make_random(small_config(), 1).fingerprint(), make_random(small_config(), 2).fingerprint());
}

TEST(RandomCheckpoint, HasWeightsOfTheSizeThatKeepsActivationsSane) {
  const Checkpoint checkpoint = make_random(small_config(), 3);
  const WeightView v = checkpoint.weights().layers[1].v;
  ASSERT_EQ(v.rows, 128);
  ASSERT_EQ(v.cols, 128);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < v.rows * v.cols; ++i) {
    const double value = to_float(static_cast<const bf16*>(v.data)[i]);
    sum += value;
    squares += value * value;
  }
  const double n = static_cast<double>(v.rows * v.cols);
  EXPECT_NEAR(sum / n, 0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / n), 1 / std::sqrt(128.0), 0.003);
  EXPECT_EQ(checkpoint.weights().lm_head.data, checkpoint.weights().embed.data);
  EXPECT_FALSE(checkpoint.tokenizer_spec().ok());
}

}  // namespace
}  // namespace oasis::model
