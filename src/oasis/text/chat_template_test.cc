#include "oasis/text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace oasis::text {
namespace {

using json = nlohmann::ordered_json;  // the order of a tool's fields is part of the prompt

const std::string kData = OASIS_SOURCE_DIR "/tests/data/text/";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const json& vectors() {
  static const json* all = new json(json::parse(read_file(kData + "template_vectors.json")));
  return *all;
}

Result<std::string> render(const std::string& source, const ChatInput& input) {
  auto compiled = ChatTemplate::compile(source);
  if (!compiled.ok()) return compiled.status();
  return compiled->render(input);
}

std::string error_of(const std::string& source, const ChatInput& input = {}) {
  const auto result = render(source, input);
  return result.ok() ? "no error, but: " + *result : result.status().message();
}

ChatInput input_of(const json& vector) {
  ChatInput input;
  for (json message : vector["messages"]) {
    ChatMessage m;
    m.role = message["role"];
    const bool text = message.contains("content") && message["content"].is_string();
    if (text) m.content = message["content"];
    message.erase("role");
    if (text) message.erase("content");
    if (!message.empty()) m.extra_json = message.dump();
    input.messages.push_back(m);
  }
  if (!vector["tools"].is_null()) input.tools_json = vector["tools"].dump();
  input.add_generation_prompt = vector["add_generation_prompt"];
  input.bos_token = vector["bos_token"];
  input.eos_token = vector["eos_token"];
  input.extra_json = vector["extra"].dump();
  return input;
}

TEST(ChatTemplate, ThreeFamiliesRenderManyConversationsAsJinja2Does) {
  int errors = 0;
  for (const json& vector : vectors()["chats"]) {
    // ChatMessage always has a content.
    bool has_content = true;
    for (const json& message : vector["messages"]) has_content = has_content && message.contains("content");
    if (!has_content) continue;
    const std::string source = read_file(kData + vector["template"].get<std::string>() + ".jinja");
    const auto result = render(source, input_of(vector));
    if (vector.contains("error")) {
      EXPECT_FALSE(result.ok()) << vector["name"] << " must fail: " << vector["error"];
      ++errors;
    } else if (!result.ok()) {
      ADD_FAILURE() << vector["name"] << ": " << result.status().message();
    } else {
      EXPECT_EQ(*result, vector["expected"].get<std::string>()) << vector["name"];
    }
  }
  EXPECT_GT(vectors()["chats"].size(), 200u);
  EXPECT_GT(errors, 10);
}

TEST(ChatTemplate, EveryConstructGivesWhatJinja2Gives) {
  ChatInput input;
  // A dump through a double would lose the digits of the long integer.
  const std::string file = read_file(kData + "template_vectors.json");
  const size_t begin = file.find("\"variables\"") + 12, end = file.find("\"constructs\"");
  input.extra_json = file.substr(begin, file.rfind('}', end) + 1 - begin);
  input.now_unix_seconds = vectors()["now"];
  for (const json& vector : vectors()["constructs"]) {
    const auto result = render(vector["source"], input);
    if (vector.contains("error")) {
      EXPECT_FALSE(result.ok()) << vector["source"] << "\nmust fail: " << vector["error"] << "\nbut gives: " << *result;
    } else if (!result.ok()) {
      ADD_FAILURE() << vector["source"] << "\n" << result.status().message();
    } else {
      EXPECT_EQ(*result, vector["expected"].get<std::string>()) << vector["source"];
    }
  }
}

TEST(ChatTemplate, WhatIsNotSupportedIsNamedWithItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n\n{% include 'x' %}", "line 3: the tag {% include %}"},
      {"{% extends 'x' %}", "line 1: the tag {% extends %}"},
      {"{% call f() %}{% endcall %}", "line 1: the tag {% call %}"},
      {"\n{{ messages | groupby('role') }}", "line 2: the filter 'groupby'"},
      {"\n{{ 1 is escaped }}", "line 2: the test 'escaped'"},
      {"{% for x in [1] recursive %}{% endfor %}", "line 1: recursive loops"},
      {"\n{{ '%d' % 3 }}", "line 2: formatting a string with %"},
      {"{{ {1: 2} }}", "line 1: a dict's key is a value of type int"},
      {"\n\n\n{{ [1].append(2) }}", "line 4: the method 'append' of a list"},
      {"{{ namespace() }}", "line 1: writing a value of type namespace as text"},
      {"{% for x in [1] %}{{ loop.changed(x) }}{% endfor %}", "line 1: 'loop.changed'"},
      {"{% for x in [1] %}{% macro f() %}{% endmacro %}{% endfor %}", "line 1: a macro inside a loop"},
      {"{{ 9223372036854775807 + 1 }}", "line 1: the result of + does not fit 64 bits"},
      {"{{ f(*x) }}", "line 1: * and ** arguments"},
      {"\n{{ messages.x.y }}", "line 2: 'y' is asked of 'x' of a value of type list, which is undefined"},
      {"{{ raise_exception('bad roles') }}", "line 1: the template rejects the conversation: bad roles"},
  };
  for (const auto& [source, expected] : cases) {
    EXPECT_NE(error_of(source).find(expected), std::string::npos) << source << "\n" << error_of(source);
  }
}

TEST(ChatTemplate, AHostileTemplateEndsWithAnErrorInBoundedTime) {
  const auto repeat = [](const std::string& unit, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += unit;
    return text;
  };
  const std::string sources[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{{ 'a' * 10000000000 }}",
      "{{ [0] * 10000000000 }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=0) %}{% for i in range(9999) %}{% set ns.x = {'a': ns.x}.items %}{% endfor %}",
      "{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100000) + " }}",
      "{{ a" + repeat(".a", 100000) + " }}",
      "{{ a" + repeat("|trim", 100000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 50000) + " }}",
      repeat("{% if 1 %}", 50000),
      repeat("{% for x in y %}", 50000),
      "{{ 'a' | map(" + repeat("'map', ", 50000) + "'trim') }}",
      "{% set x = 'a' * 9000000 %}{{ x.replace('a', x) }}",
      "{{ 'a' | indent(99999999999) }}",
      "{{ {'a': [1]} | tojson(indent=99999999999999) }}{% set ns = namespace(x='') %}{% for i in range(99999) %}{% set "
      "ns.x = "
      "'a' * 1000 | tojson(indent=1000) %}{% endfor %}",
      "{% set x = range(9999) | list %}{% for i in x %}{% set y = x == x %}{% endfor %}",
      "{% set x = range(99999) | list %}{% for i in x %}{% if -1 in x %}{% endif %}{% endfor %}",
      "{{ range(99999) | map('int') | map('string') | join('" + repeat("a", 1000) + "') }}",
      "{% set x = 'a' * 1000000 %}{% for i in range(99999) %}{% set y = x.find('b') %}{% endfor %}",
      "{{ strftime_now('%9999999d') }}",
      repeat("{", 300000),
      repeat("{{", 100000),
      "{{ " + repeat("[", 100000),
      std::string(2 << 20, 'a'),
  };
  for (const std::string& source : sources) {
    EXPECT_EQ(error_of(source).find("no error"), std::string::npos) << source.substr(0, 200);
  }
}

TEST(ChatTemplate, WhatComesFromTheInputIsMarkedThroughEveryOperation) {
  ChatInput input;
  input.messages = {{"user", " X,YX ", ""}};
  input.tools_json = R"([{"name": "XX"}])";
  input.extra_json = R"({"k": "X\"Y"})";
  const std::string sources[] = {
      "a{{ messages[0].content }}b",
      "{{ messages[0].content | trim }}{{ messages[0].content.strip() + 'z' }}",
      "{{ messages[0].content.split(',') | join('-') }}{{ 'a' ~ messages[0].content ~ 'b' }}",
      "{{ messages[0].content[::-1] }}{{ messages[0].content[1:3] }}{{ messages[0].content[1] }}",
      "{{ messages[0].content.replace('Y', 'a') }}{{ 'abc'.replace('b', messages[0].content) }}",
      "{{ messages[0].content | lower | upper }}{{ messages[0].content.title() }}",
      "{{ tools | tojson }}{{ tools[0].name * 3 }}{{ k | tojson }}",
      "{{ [messages[0].content] }}{{ {'a': k} }}",
      "{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(k) }}{% set c %}[{{ k }}]{% endset %}{{ c }}",
      "{% for c in messages[0].content %}{{ c }}.{% endfor %}{{ messages[0].content | list | last }}",
      "{{ messages[0].content | indent(2, true) }}{{ messages[0].content | replace('X', 'XX') }}",
  };
  for (const std::string& source : sources) {
    const auto compiled = ChatTemplate::compile(source);
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    const auto rendered = compiled->render_marked(input);
    ASSERT_TRUE(rendered.ok()) << rendered.status().message();
    ASSERT_EQ(rendered->from_input.size(), rendered->text.size()) << source;
    for (size_t i = 0; i < rendered->text.size(); ++i) {
      // X and Y come from the input alone, lower-case letters and brackets from the templates alone.
      const char c = rendered->text[i];
      const bool replaced = source.find("replace('X', 'XX')") != std::string::npos;
      if ((c == 'X' && !replaced) || c == 'Y') {
        EXPECT_EQ(rendered->from_input[i], 1) << source << "\n" << rendered->text << " at " << i;
      }
      if ((c >= 'a' && c <= 'z' && source.find("tojson") == std::string::npos &&
           source.find("title") == std::string::npos) ||
          c == '<' || c == '[') {
        EXPECT_EQ(rendered->from_input[i], 0) << source << "\n" << rendered->text << " at " << i;
      }
    }
  }
}

TEST(ChatTemplate, APlainRoleCountsAsTheTemplatesAndAnyOtherDoesNot) {
  const auto compiled = ChatTemplate::compile("{{ messages[0].role }}");
  ASSERT_TRUE(compiled.ok());
  const auto marks = [&](const std::string& role) {
    ChatInput input;
    input.messages = {{role, "", ""}};
    return compiled->render_marked(input)->from_input;
  };
  EXPECT_EQ(marks("assistant"), "");
  EXPECT_EQ(marks("|>"), std::string("\1\1"));
}

TEST(ChatTemplate, WrongInputIsAnErrorThatNamesIt) {
  ChatInput input;
  input.tools_json = "{\"a\"";
  EXPECT_NE(error_of("x", input).find("the list of tools is not valid JSON"), std::string::npos);
  input.tools_json = "{}";
  EXPECT_NE(error_of("x", input).find("the list of tools is a JSON dict, not an array"), std::string::npos);
  input.tools_json = "";
  input.extra_json = R"({"messages": []})";
  EXPECT_NE(error_of("x", input).find("may not set 'messages'"), std::string::npos);
  input.extra_json = std::string(100000, '[');
  EXPECT_NE(error_of("x", input).find("nested more than"), std::string::npos);
  input.extra_json = "";
  input.messages = {{"user", "", R"({"role": "system"})"}};
  EXPECT_NE(error_of("x", input).find("message 0 gives its role twice"), std::string::npos);
}

TEST(ChatTemplate, InvalidUtf8InAMessageCountsAsReplacementCharacters) {
  ChatInput input;
  input.messages = {{"user", "a\xFF\xE2\x82", ""}};
  EXPECT_EQ(*render("{{ messages[0].content }}", input), "a\uFFFD\uFFFD");
}

TEST(ChatTemplate, WithoutAFixedTimeTheClockIsRead) {
  const std::string year = *render("{{ strftime_now('%Y') }}", {});
  EXPECT_GE(std::stoi(year), 2024);
}

}  // namespace
}  // namespace oasis::text
