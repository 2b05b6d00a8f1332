#include "oasis/serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace oasis::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string file(const std::string& name) {
  std::ifstream in(std::string(OASIS_SOURCE_DIR) + "/tests/data/text/" + name, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// A small tokenizer under Qwen's rules, with the chat template of one of the families.
ServedModel model_with(const std::string& template_file) {
  static std::vector<std::unique_ptr<text::Tokenizer>> kept;
  auto spec = text::read_tokenizer_json(std::string(OASIS_SOURCE_DIR) + "/tests/data/text/qwen-tiny");
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  spec->chat_template = file(template_file);
  auto tokenizer = text::Tokenizer::create(std::move(*spec));
  EXPECT_TRUE(tokenizer.ok());
  kept.push_back(std::make_unique<text::Tokenizer>(std::move(*tokenizer)));
  ServedModel model{.name = "small", .tokenizer = kept.back().get(), .vocab = kept.back()->vocab_size()};
  model.context = 100000;
  model.max_choices = 8;
  describe_template(model);
  EXPECT_TRUE(model.chat_template.has_value()) << model.template_error;
  return model;
}

const ServedModel& qwen() {
  static const ServedModel model = model_with("qwen3.jinja");
  return model;
}

Failure completion(const char* body, GenerateRequest& out) {
  Json json;
  if (Failure failure = parse_object(body, json)) return failure;
  return parse_completion(json, qwen(), out);
}

// The message of the refusal; empty: taken.
std::string refusal(const char* body) {
  GenerateRequest out;
  const Failure failure = completion(body, out);
  return failure ? failure->message : "";
}

GenerateRequest chat(const ServedModel& model, const char* body) {
  GenerateRequest out;
  Json json;
  Failure failure = parse_object(body, json);
  if (!failure) failure = parse_chat(json, model, out);
  EXPECT_FALSE(failure.has_value()) << failure->message;
  return out;
}

TEST(CompletionRequest, EveryFieldReachesTheEngine) {
  GenerateRequest r;
  const Failure failure = completion(
      R"({"prompt": [1, 2, 3], "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 4, "min_p": 0.125, "n": 2,
          "repetition_penalty": 1.5, "presence_penalty": 1, "frequency_penalty": -1, "seed": 9, "logprobs": 3,
          "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true, "logit_bias": {"6": -2.5}, "echo": true,
          "stream": true, "stream_options": {"include_usage": true}, "skip_special_tokens": false})",
      r);
  ASSERT_FALSE(failure.has_value()) << failure->message;
  EXPECT_EQ(r.choices(), 2);
  EXPECT_TRUE(r.stream && r.include_usage && r.echo);
  const engine::Request e = choice_request(r, 1);
  EXPECT_THAT(e.prompt, ElementsAre(1, 2, 3));
  EXPECT_THAT(e.stop, ElementsAre("a", "b"));
  EXPECT_THAT(e.stop_tokens, ElementsAre(5));
  EXPECT_TRUE(e.ignore_eos);
  EXPECT_FALSE(e.skip_special);
  EXPECT_EQ(e.max_tokens, 7);
  const auto& s = e.sampling;
  EXPECT_EQ(s.temperature, .5F);
  EXPECT_EQ(s.top_p, .25F);
  EXPECT_EQ(s.top_k, 4);
  EXPECT_EQ(s.min_p, .125F);
  EXPECT_EQ(s.repetition_penalty, 1.5F);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.logprobs, 3);
  EXPECT_EQ(s.seed, 10U);  // the second copy's
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{6, -2.5F}}));
}

TEST(CompletionRequest, WithoutASeedEveryRequestDrawsAnother) {
  GenerateRequest r;
  ASSERT_FALSE(completion(R"({"prompt": "a", "n": 2})", r).has_value());
  EXPECT_NE(choice_request(r, 0).sampling.seed, choice_request(r, 1).sampling.seed);
}

TEST(CompletionRequest, NullMeansAbsent) {
  EXPECT_EQ(
      refusal(R"({"prompt": "a", "max_tokens": null, "stop": null, "seed": null, "logit_bias": null, "model": null,
                        "stream_options": null, "response_format": null, "best_of": null, "suffix": null})"),
      "");
}

TEST(CompletionRequest, WhatIsRefusedIsNamedWithItsLimit) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prompt": "a", "temperature": 2.5})", "temperature: 2.5 does not lie in 0 .. 2"},
      {R"({"prompt": "a", "top_p": 0})", "top_p: must be above 0"},
      {R"({"prompt": "a", "max_tokens": -1})", "max_tokens: -1 is not a whole number in 0 .. 2147483647"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens: 0 needs echo: true, or there is nothing to answer"},
      {R"({"prompt": "a", "stop": [7]})", "stop: must be a string or a list of them, not 7"},
      {R"({"prompt": "a", "n": 9})", "n: 9 choices are more than this server takes at once (8)"},
      {R"({"prompt": ["a", "b", "c"], "n": 3})", "prompt: 3 prompts, n = 3 each"},
      {R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options: needs stream: true"},
      {R"({"prompt": "a", "oasis": {"fetch": "exact"}})", "oasis: fetch is set when the server starts"},
      {R"({"prompt": "a", "guided_regex": "x"})", "guided_regex: is not supported"},
      {R"({"prompt": "a", "logit_bias": {"01x": 1}})", "logit_bias: '01x' is not a token id"},
      {R"({"prompt": "a", "model": "large"})", "the model \"large\" does not exist: this server has \"small\""},
      {R"({"prompt": 7})", "prompt: must be a string or a list, not 7"},
      {R"({})", "prompt: is missing"}};
  for (const auto& [body, message] : cases) EXPECT_THAT(refusal(body), HasSubstr(message)) << body;
}

TEST(ChatRequest, TheTemplateMakesThePrompt) {
  const auto r = chat(qwen(), R"({"messages": [{"role": "developer", "content": "Be kind."},
      {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}]})");
  EXPECT_EQ(r.prompt_text,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nOne.\nTwo.<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_FALSE(r.parse_tools);
  EXPECT_EQ(r.base.max_tokens, 0);  // as many as the context has room for
}

TEST(ChatRequest, VariablesOfTheTemplateArePassedOn) {
  const auto r = chat(qwen(), R"({"messages": [{"role": "user", "content": "x"}],
      "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_TRUE(r.prompt_text.ends_with("<think>\n\n</think>\n\n")) << r.prompt_text;
  EXPECT_FALSE(r.opens_in_reasoning);
}

TEST(ChatRequest, ToolsGoWhereTheTemplateHasAPlaceForThem) {
  const char* body = R"({"messages": [{"role": "user", "content": "x"}],
      "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]})";
  for (const char* name : {"qwen3.jinja", "llama3_style.jinja", "smollm2.jinja"}) {
    const ServedModel model = model_with(name);
    const auto r = chat(model, body);
    EXPECT_TRUE(r.parse_tools) << name;
    EXPECT_THAT(r.prompt_text, HasSubstr("weather")) << name;
    EXPECT_TRUE(r.tool_names.contains("weather"));
  }
  EXPECT_TRUE(qwen().tagged_tool_calls && qwen().thinks);
  EXPECT_FALSE(model_with("llama3_style.jinja").tagged_tool_calls);
  EXPECT_FALSE(model_with("smollm2.jinja").thinks);
}

TEST(ChatRequest, CallsAndTheirResultsAreAPartOfTheConversation) {
  const auto r = chat(qwen(), R"({"messages": [{"role": "user", "content": "x"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "sunny"}]})");
  EXPECT_THAT(r.prompt_text, HasSubstr(R"({"name": "weather", "arguments": {"city": "Rome"}})"));
  EXPECT_THAT(r.prompt_text, HasSubstr("<tool_response>\nsunny\n</tool_response>"));
}

TEST(Body, NestingIsBounded) {
  Json out;
  EXPECT_FALSE(
      parse_object("{\"a\":" + std::string(kMaxNesting - 1, '[') + std::string(kMaxNesting - 1, ']') + "}", out));
  EXPECT_TRUE(parse_object("{\"a\":" + std::string(kMaxNesting, '[') + std::string(kMaxNesting, ']') + "}", out));
  EXPECT_FALSE(parse_object("{\"a\":\"" + std::string(1000, '[') + "\"}", out));
}

TEST(Body, NumbersAreWholeWhateverTheirSpelling) {
  int64_t n = 0;
  EXPECT_TRUE(whole_number(Json::parse("3.0"), 0, 9, n));
  EXPECT_EQ(n, 3);
  for (const char* text : {"3.5", "10", "-1", "18446744073709551615", "1e300", "true", "\"3\"", "null"}) {
    EXPECT_FALSE(whole_number(Json::parse(text), 0, 9, n)) << text;
  }
}

}  // namespace
}  // namespace oasis::serve
