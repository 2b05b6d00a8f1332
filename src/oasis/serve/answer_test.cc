#include "oasis/serve/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace oasis::serve {
namespace {

using ::testing::ElementsAre;

// Tokens 0 .. 3: "a", "b", half of a character, a control token.
const text::Tokenizer& tokenizer() {
  static const auto made = [] {
    text::TokenizerSpec spec;
    spec.tokens = {"a", "b", "Ã", "<end>"};
    spec.types = {text::kNormal, text::kNormal, text::kNormal, text::kControl};
    auto t = text::Tokenizer::create(std::move(spec));
    EXPECT_TRUE(t.ok()) << t.status().message();
    return std::move(*t);
  }();
  return made;
}

ServedModel model() { return {.name = "m", .tokenizer = &tokenizer(), .vocab = 4, .context = 100}; }

engine::Event token(int32_t id, std::string text, float logprob = -1) {
  return {.tokens = {{.token = id, .logprob = logprob, .top = {{0, -.5F}, {2, -2.F}}}}, .text = std::move(text)};
}
engine::Event end(engine::FinishReason reason, std::string text = "") {
  return {.text = std::move(text), .finish = reason};
}

std::vector<Json> run(Answer& answer, const std::vector<engine::Event>& events) {
  std::vector<std::string> chunks;
  for (const auto& event : events) answer.add(0, event, chunks);
  std::vector<Json> parsed;
  for (const auto& chunk : chunks) parsed.push_back(Json::parse(chunk));
  return parsed;
}

TEST(Answer, AWholeCompletionHasTextUsageAndReason) {
  GenerateRequest r{.prompts = {{0, 1, 0}}};
  const ServedModel m = model();
  Answer answer(r, m, "cmpl-1");
  EXPECT_TRUE(run(answer, {token(0, "a"), token(1, "")}).empty());
  EXPECT_EQ(answer.output_tokens(), 2);  // so far
  answer.set_stats(0, {.prompt_tokens = 3, .cached_tokens = 2, .output_tokens = 2, .accepted = 1, .compared = 4});
  EXPECT_TRUE(run(answer, {end(engine::FinishReason::kLength, "b")}).empty());
  const Json whole = Json::parse(answer.whole());
  EXPECT_EQ(whole["object"], "text_completion");
  EXPECT_EQ(whole["choices"][0],
            Json::parse(R"({"index": 0, "text": "ab", "logprobs": null, "finish_reason": "length"})"));
  EXPECT_EQ(whole["usage"], Json::parse(R"({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
      "prompt_tokens_details": {"cached_tokens": 2},
      "completion_tokens_details": {"accepted_prediction_tokens": 1, "rejected_prediction_tokens": 3}})"));
}

TEST(Answer, AStreamEndsWithItsReasonAndUsage) {
  GenerateRequest r{.prompts = {{0}}, .stream = true, .include_usage = true};
  const ServedModel m = model();
  Answer answer(r, m, "cmpl-1");
  const auto chunks = run(answer, {token(0, "a"), token(1, ""), end(engine::FinishReason::kStop, "b")});
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "a");
  EXPECT_EQ(chunks[0]["usage"], nullptr);
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "b");
  EXPECT_EQ(chunks[1]["choices"][0]["finish_reason"], nullptr);
  EXPECT_EQ(chunks[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(Json::parse(answer.usage_chunk())["choices"].empty());
}

TEST(Answer, LogProbabilitiesAreFiniteAndTheirTokensDistinct) {
  GenerateRequest r{.prompts = {{0, 1}}, .base = {.sampling = {.logprobs = 2}}, .echo = true};
  const ServedModel m = model();
  Answer answer(r, m, "cmpl-1");
  engine::Event prompt;
  prompt.prompt_logprobs = {{.token = 1, .logprob = -.25f}};
  run(answer, {prompt, token(2, "", -std::numeric_limits<float>::infinity()),
               end(engine::FinishReason::kLength, "\xEF\xBF\xBD")});
  const Json lp = Json::parse(answer.whole())["choices"][0]["logprobs"];
  EXPECT_EQ(lp["tokens"], Json::parse(R"(["a", "b", "bytes:\\xc3"])"));
  EXPECT_EQ(lp["token_logprobs"], Json::parse("[null, -0.25, -9999.0]"));
  EXPECT_EQ(lp["top_logprobs"][2], Json::parse(R"({"a": -0.5, "bytes:\\xc3": -2.0})"));
  EXPECT_EQ(lp["text_offset"], Json::parse("[0, 1, 2]"));
}

TEST(Answer, LogProbabilitiesWaitForTheirText) {
  GenerateRequest r{.chat = true, .prompts = {{0}}, .base = {.sampling = {.logprobs = 1}}, .stream = true};
  const ServedModel m = model();
  Answer answer(r, m, "chatcmpl-1");
  const auto chunks = run(answer, {token(0, ""), token(1, "ab"), end(engine::FinishReason::kStop)});
  ASSERT_EQ(chunks.size(), 3U);  // the role; the text; the reason
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[1]["choices"][0]["logprobs"]["content"].size(), 2U);
  EXPECT_EQ(chunks[2]["choices"][0]["logprobs"], nullptr);
}

TEST(Answer, ReasoningIsAFieldOfItsOwn) {
  GenerateRequest r{.chat = true, .prompts = {{0}}};
  ServedModel m = model();
  m.thinks = true;
  Answer answer(r, m, "chatcmpl-1");
  run(answer, {token(0, "<think>why"), token(1, "</think>because"), end(engine::FinishReason::kStop)});
  EXPECT_EQ(Json::parse(answer.whole())["choices"][0]["message"],
            Json::parse(R"({"role": "assistant", "content": "because", "reasoning_content": "why"})"));
}

TEST(Answer, ProgressGrowsAndEndsWithThePrompt) {
  GenerateRequest r{.prompts = {{0}}, .stream = true, .return_progress = true};
  const ServedModel m = model();
  Answer answer(r, m, "cmpl-1");
  auto first = token(0, "a");
  first.prefilled = first.prompt_tokens = 9;
  const auto chunks = run(answer, {{.prefilled = 4, .prompt_tokens = 9},
                                   {.prefilled = 4, .prompt_tokens = 9},
                                   first,
                                   end(engine::FinishReason::kStop)});
  std::vector<int> processed;
  for (const auto& chunk : chunks) {
    if (chunk.contains("prompt_progress")) processed.push_back(chunk["prompt_progress"]["processed"].get<int>());
  }
  EXPECT_THAT(processed, ElementsAre(4, 9));
}

}  // namespace
}  // namespace oasis::serve
