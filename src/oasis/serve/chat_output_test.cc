#include "oasis/serve/chat_output.h"

#include <gtest/gtest.h>

namespace oasis::serve {
namespace {

struct Whole {
  std::string reasoning, content, calls;  // calls: name(arguments) each, joined
  bool operator==(const Whole&) const = default;
};

void add(Whole& whole, const ChatDelta& delta) {
  whole.reasoning += delta.reasoning;
  whole.content += delta.content;
  for (const ToolCall& c : delta.calls) whole.calls += c.name + "(" + c.arguments + ")";
}

Whole run(const ChatFormat& format, std::string_view text, size_t piece) {
  ChatOutput output(format);
  Whole whole;
  for (size_t at = 0; at < text.size(); at += piece) add(whole, output.push(text.substr(at, piece)));
  add(whole, output.finish());
  return whole;
}

// In pieces of every size, the answer is the same.
void expect(const ChatFormat& format, std::string_view text, const Whole& wanted) {
  for (size_t piece = 1; piece <= text.size() + 1; ++piece) {
    const Whole got = run(format, text, piece);
    EXPECT_EQ(got.reasoning, wanted.reasoning) << text << " in pieces of " << piece;
    EXPECT_EQ(got.content, wanted.content) << text << " in pieces of " << piece;
    EXPECT_EQ(got.calls, wanted.calls) << text << " in pieces of " << piece;
  }
}

const ChatFormat kPlain{};
const ChatFormat kThinks{.thinks = true};
const ChatFormat kTagged{.thinks = true, .tools = true, .tool_names = {"f"}};
const ChatFormat kBare{.tools = true, .bare_calls = true, .tool_names = {"f"}};

TEST(ChatOutput, PlainTextIsContentLetterByLetter) {
  expect(kPlain, " \n<think>a</think> <tool_call>{}</tool_call>{\"name\":\"f\"}",
         {.content = " \n<think>a</think> <tool_call>{}</tool_call>{\"name\":\"f\"}"});
}

TEST(ChatOutput, ReasoningIsKeptApart) {
  expect(kThinks, "<think>\nWhy?\n\nBecause.\n</think>\n\nYes.", {.reasoning = "Why?\n\nBecause.", .content = "Yes."});
  expect(kThinks, "\n<think>\n\n</think>\n\nYes.\n", {.content = "Yes.\n"});
  expect(kThinks, "<think>never ends </thin", {.reasoning = "never ends </thin"});
  expect(kThinks, "A <think>b</think>", {.content = "A <think>b</think>"});
  expect({.thinks = true, .opens_in_reasoning = true}, "\nhm\n</think>\nYes", {.reasoning = "hm", .content = "Yes"});
}

TEST(ChatOutput, TaggedCallsBecomeCalls) {
  expect(kTagged, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", {.calls = "f({\"x\":1})"});
  expect(kTagged,
         "<think>hm</think>\n\nSure.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
         "<tool_call>{\"name\":\"g\"}</tool_call>\n",
         {.reasoning = "hm", .content = "Sure.\n", .calls = "f({})g({})"});
  expect(kTagged, "<tool_call>[{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call\"}},{\"name\":\"f\"}]</tool_call>",
         {.calls = "f({\"a\":\"</tool_call\"})f({})"});
}

TEST(ChatOutput, ACallWithoutItsLastTagCounts) {
  expect(kTagged, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", {.calls = "f({})"});
}

TEST(ChatOutput, WhatIsNoCallStaysContent) {
  expect(kTagged, "<tool_call>{\"name\":</tool_call> so", {.content = "<tool_call>{\"name\":</tool_call> so"});
  expect(kTagged, "<tool_call>7", {.content = "<tool_call>7"});
  expect(kTagged, "a <tool_ca", {.content = "a <tool_ca"});
  expect(kTagged, " \n", {.content = " \n"});
  expect(kTagged, "<tool_call>{\"name\":\"f\",\"arguments\":3}</tool_call>",
         {.content = "<tool_call>{\"name\":\"f\",\"arguments\":3}</tool_call>"});
}

TEST(ChatOutput, AWholeAnswerOfJsonIsACallWhereTheModelHasNoTags) {
  expect(kBare, "{\"name\": \"f\", \"parameters\": {\"x\": \"}\"}}", {.calls = "f({\"x\":\"}\"})"});
  expect(kBare, "<|python_tag|>{\"name\":\"f\",\"parameters\":{}}; {\"name\":\"f\",\"parameters\":{}}",
         {.calls = "f({})f({})"});
}

TEST(ChatOutput, JsonThatCallsNoOfferedToolStaysContent) {
  for (const char* text : {"{\"name\": \"other\", \"parameters\": {}}", "{\"name\": \"f\", \"parameters\": {}} then",
                           "{\"a\": 1", "{ x }", "{", "{\"name\":\"f\",\"parameters\":{}},\"name\":1}"}) {
    expect(kBare, text, {.content = text});
  }
}

TEST(ChatOutput, NestingWithoutEndIsNoCall) {
  const std::string deep = "{\"name\":\"f\",\"parameters\":" + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_FALSE(parse_bare_calls(deep, {"f"}).has_value());
  EXPECT_FALSE(parse_tagged_calls(deep).has_value());
}

}  // namespace
}  // namespace oasis::serve
