#include "oasis/draft/eagle3.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "oasis/draft/testing/fp32_head.h"
#include "oasis/draft/testing/head_files.h"
#include "oasis/draft/testing/scripted_text.h"
#include "oasis/kernels/kernels.h"

namespace oasis::draft {
namespace {

// 2 layers, hidden 64, vocabulary 320, untied.
const std::string kTarget = std::string(OASIS_SOURCE_DIR) + "/tests/data/models/llama-hd96";

std::vector<float> unpack(const WeightView& w) {
  std::vector<float> values(w.rows * w.cols);
  kernels::dequantize(w.type, w.data, w.rows * w.cols, values.data());
  return values;
}

class Eagle3 : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = model::Checkpoint::open(kTarget);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    target_.emplace(std::move(opened).value());
  }

  std::unique_ptr<Drafter> make(const HeadFiles& head, DrafterOptions options = {.max_sequences = 4, .max_rows = 48}) {
    head.write(folder_.path());
    auto drafter = make_eagle3(*device_, folder_.path(), *target_, options);
    EXPECT_TRUE(drafter.ok()) << drafter.status().message();
    return drafter.ok() ? std::move(drafter).value() : nullptr;
  }

  Fp32Head oracle(const HeadFiles& files) const {
    Fp32Head head;
    for (const auto& [name, tensor] : files.tensors) head.w[name] = tensor.values;
    head.embed = unpack(target_->weights().embed);
    head.hidden = files.config["hidden_size"];
    head.heads = files.config["num_attention_heads"];
    head.kv_heads = files.config["num_key_value_heads"];
    head.head_dim = files.config["head_dim"];
    for (int j = 0; j < head.head_dim / 2; ++j)
      head.frequencies.push_back(std::pow(files.config["rope_theta"].get<double>(), -2.0 * j / head.head_dim));
    return head;
  }

  Stream& stream() { return device_->foreground(); }

  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::optional<model::Checkpoint> target_;
  HeadFiles::Folder folder_{testing::UnitTest::GetInstance()->current_test_info()->name()};
};

// How far a draft may lie below the oracle's best in its logits, whose spread is 2.5.
constexpr float kTolerance = 0.3f;

struct Judged {
  std::vector<int32_t> target_ids;  // of draft ids
  int window = 1 << 20;             // tokens seen, whole blocks
  int block = 16;
};

// Leads drafter and oracle through the text: `prompt` tokens, then one token a step, four drafts each. Every draft must
// be (nearly) the oracle's choice after the drafts before it.
void expect_oracle_drafts(Drafter& drafter, Stream& stream, Fp32Head& oracle, const ScriptedText& text, int prompt,
                          const Judged& judged) {
  ASSERT_TRUE(drafter.attach(0).ok());
  Follower follower(drafter, stream, 0, text);
  follower.absorb(prompt - 1, 20);
  std::vector<Fp32Head::Vector> features;
  for (const auto& taps : text.taps) features.push_back(oracle.feature(taps));
  const auto first = [&](int position) {
    return std::max(0, (position / judged.block + 1) * judged.block - judged.window);
  };
  for (int p = 0; p < prompt - 1; ++p) oracle.row(text.tokens[p + 1], features[p], p, first(p));
  int differing = 0, drafts_made = 0;
  for (int last = prompt; last < static_cast<int>(text.tokens.size()); ++last) {
    const auto drafts = follower.propose(last, 4);
    ASSERT_EQ(drafts.size(), 4u);
    auto out = oracle.row(text.tokens[last], features[last - 1], last - 1, first(last - 1));
    for (int i = 0; i < 4; ++i) {
      const auto best = std::max_element(out.logits.begin(), out.logits.end());
      const auto id =
          std::find(judged.target_ids.begin(), judged.target_ids.end(), drafts[i]) - judged.target_ids.begin();
      ASSERT_LT(id, static_cast<int64_t>(judged.target_ids.size())) << drafts[i] << " is no draft token";
      ASSERT_GE(out.logits[id], *best - kTolerance) << "draft " << i << " after position " << last;
      differing += id != best - out.logits.begin();
      ++drafts_made;
      out = oracle.row(drafts[i], out.next_feature, last + i, first(last + i));
    }
    // What the chain wrote is provisional: the oracle drops it with its next real row, the drafter must too.
    oracle.row(text.tokens[last], features[last - 1], last - 1, first(last - 1));
  }
  EXPECT_LT(differing, drafts_made / 10);
}

std::vector<int32_t> target_ids_of(const HeadFiles& head) {
  std::vector<int32_t> ids;
  const auto& offsets = head.tensors.at("d2t").integers;
  for (size_t i = 0; i < offsets.size(); ++i) ids.push_back(static_cast<int32_t>(i + offsets[i]));
  return ids;
}

TEST_F(Eagle3, DraftsWhatItsDefinitionSays) {
  const HeadFiles head = random_head({}, 1);
  const auto drafter = make(head);
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(90, 320, 3, 64, 2), 50, {target_ids_of(head)});
}

TEST_F(Eagle3, ReadsNamesOfTheOtherLayout) {
  const HeadFiles head = random_head({}, 1);
  HeadFiles renamed{head.config, {}};
  for (const auto& [name, tensor] : head.tensors)
    renamed.tensors["model." + (name.starts_with("midlayer.") ? "layers.0." + name.substr(9) : name)] = tensor;
  const auto drafter = make(renamed);
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, UsesItsOwnEmbeddingsWhereItHasThem) {
  HeadFiles head = random_head({}, 1);
  std::mt19937 random(5);
  head.tensors["embed_tokens.weight"] = random_tensor(random, {320, 64}, 0, 1);
  const auto drafter = make(head);
  auto judge = oracle(head);
  judge.embed = head.tensors["embed_tokens.weight"].values;
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, NormsEachTapWithFcNorm) {
  HeadFiles head = random_head({}, 1);
  std::mt19937 random(5);
  for (int tap = 0; tap < 3; ++tap)
    head.tensors[fmt::format("fc_norm.{}.weight", tap)] = random_tensor(random, {64}, 2, 1);
  const auto drafter = make(head);
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, NormsAllTapsTogetherWithInputNorm) {
  HeadFiles head = random_head({}, 1);
  std::mt19937 random(5);
  head.tensors["input_norm.weight"] = random_tensor(random, {192}, 2, 1);
  head.tensors["fc.bias"] = random_tensor(random, {64}, 0, 1);
  const auto drafter = make(head);
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, AddsBiasesAndNormsQueriesAndKeysWhereTheTensorsAreThere) {
  HeadFiles head = random_head({}, 1);
  std::mt19937 random(5);
  for (const auto& [name, rows] : std::map<std::string, int>{{"self_attn.q_proj", 128},
                                                             {"self_attn.k_proj", 64},
                                                             {"self_attn.v_proj", 64},
                                                             {"self_attn.o_proj", 64},
                                                             {"mlp.gate_proj", 96},
                                                             {"mlp.up_proj", 96},
                                                             {"mlp.down_proj", 64}})
    head.tensors["midlayer." + name + ".bias"] = random_tensor(random, {rows}, 0, 1);
  head.tensors["fc.bias"] = random_tensor(random, {64}, 0, 1);
  head.tensors["lm_head.bias"] = random_tensor(random, {100}, 0, 2);
  head.tensors["midlayer.self_attn.q_norm.weight"] = random_tensor(random, {64}, 1, 0.5f);
  head.tensors["midlayer.self_attn.k_norm.weight"] = random_tensor(random, {64}, 1, 0.5f);
  const auto drafter = make(head);
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, StartsTheResidualFromTheNormedFeatureWhereAsked) {
  HeadFiles head = random_head({}, 1);
  head.config["norm_before_residual"] = true;
  const auto drafter = make(head);
  auto judge = oracle(head);
  judge.norm_before_residual = true;
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, ReadsTheNestedConfigOfSpeculatorsWhichNormsBeforeTheResidual) {
  HeadFiles head = random_head({}, 1);
  nlohmann::json nested = head.config;
  nested.erase("eagle_config");
  nested.erase("target_hidden_size");
  const auto judge_config = head.config;
  head.config = {{"speculators_model_type", "eagle3"},
                 {"transformer_layer_config", nested},
                 {"eagle_aux_hidden_state_layer_ids", {0, 1, 2}},
                 {"target_hidden_size", nullptr}};
  const auto drafter = make(head);
  head.config = judge_config;
  auto judge = oracle(head);
  judge.norm_before_residual = true;
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, FeedsBackTheNormedOutputWhereAsked) {
  HeadFiles head = random_head({}, 1);
  head.config["norm_output"] = true;
  const auto drafter = make(head);
  auto judge = oracle(head);
  judge.norm_output = true;
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, TakesTheTargetsFinalStateAsFeatureWithoutTaps) {
  HeadFiles head = random_head({}, 1);
  head.config["eagle_config"] = {{"use_aux_hidden_state", false}};
  head.tensors.erase("fc.weight");
  const auto drafter = make(head);
  ASSERT_EQ(std::vector<int>(drafter->tap_layers().begin(), drafter->tap_layers().end()), std::vector<int>{2});
  auto judge = oracle(head);
  // As an fc of ones behind a norm of the only tap.
  judge.tap_count = 1;
  const auto norm = target_->weights().output_norm;
  judge.w["fc_norm.0.weight"].assign(norm.begin(), norm.end());
  judge.w["fc.weight"].assign(64 * 64, 0);
  for (int i = 0; i < 64; ++i) judge.w["fc.weight"][i * 65] = 1;
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 1, 64, 2), 40, {target_ids_of(head)});
}

TEST_F(Eagle3, DraftsAllTokensOfTheTargetWithoutAMap) {
  HeadFiles head = random_head({.draft_vocab = 320}, 1);
  head.tensors.erase("d2t");
  const auto drafter = make(head);
  auto judge = oracle(head);
  std::vector<int32_t> identity(320);
  std::iota(identity.begin(), identity.end(), 0);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {identity});
}

TEST_F(Eagle3, UsesTheTargetsLmHeadWhereItHasNone) {
  HeadFiles head = random_head({}, 1);
  head.tensors.erase("d2t");
  head.tensors.erase("lm_head.weight");
  const auto drafter = make(head);
  auto judge = oracle(head);
  judge.w["lm_head.weight"] = unpack(target_->weights().lm_head);
  std::vector<int32_t> identity(320);
  std::iota(identity.begin(), identity.end(), 0);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(60, 320, 3, 64, 2), 40, {identity});
}

TEST_F(Eagle3, DraftsPastItsTrainingLength) {  // case 10
  HeadFiles head = random_head({}, 1);
  head.config["max_position_embeddings"] = 64;
  const auto drafter = make(head);
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(130, 320, 3, 64, 2), 100, {target_ids_of(head)});
}

TEST_F(Eagle3, SeesTheLastBlocksOfItsWindowOnly) {
  const HeadFiles head = random_head({}, 1);
  head.write(folder_.path());
  const auto drafter = make_eagle3(*device_, folder_.path(), *target_, {.max_rows = 48}, 32).value();
  auto judge = oracle(head);
  expect_oracle_drafts(*drafter, stream(), judge, ScriptedText(300, 320, 3, 64, 2), 150, {target_ids_of(head), 32});
}

TEST_F(Eagle3, ShiftsTapsThatNameLayersByTheirOutput) {
  HeadFiles head = random_head({}, 1);
  head.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = {1};
  head.tensors["fc.weight"].shape = {64, 64};
  head.tensors["fc.weight"].values.resize(64 * 64);
  const auto drafter = make(head);
  EXPECT_EQ(drafter->tap_layers()[0], 2);
}

TEST_F(Eagle3, FoldsMoreRowsThanItTakesInAtOnce) {
  const auto drafter = make(random_head({}, 1), {.max_sequences = 1, .max_rows = 16});
  const ScriptedText text(60, 320, 3, 64, 2);
  const auto whole = text.features(*drafter, stream(), 0, 60);
  for (int p = 0; p < 60; p += 12) {
    const auto part = text.features(*drafter, stream(), p, 12);
    for (size_t i = 0; i < part.size(); ++i) ASSERT_FLOAT_EQ(part[i], whole[p * drafter->feature_dim() + i]);
  }
}

}  // namespace
}  // namespace oasis::draft
