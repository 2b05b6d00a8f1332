// Keys, percentiles, routes, log lines, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "oasis/serve/api_error.h"
#include "oasis/serve/api_keys.h"
#include "oasis/serve/endpoints.h"
#include "oasis/serve/latency.h"
#include "oasis/serve/request_log.h"

namespace oasis::serve {
namespace {

TEST(ApiKeys, OnlyTheWholeKeyOpens) {
  const ApiKeys keys({"secret", "other-key"});
  EXPECT_TRUE(keys.allow("Bearer secret"));
  EXPECT_TRUE(keys.allow("bearer other-key"));
  for (const char* value : {"", "Bearer", "Bearer ", "secret", "Basic secret", "Bearer secre", "Bearer secrett",
                            "Bearer  secret", "Bearer secretsecret", "Bearer Secret"}) {
    EXPECT_FALSE(keys.allow(value)) << value;
  }
  EXPECT_TRUE(ApiKeys().allow(""));
}

TEST(ApiKeys, ComparisonLooksAtEveryByte) {
  const std::string secret(64, 'k');
  EXPECT_TRUE(equal_in_constant_time(secret, secret));
  for (size_t i = 0; i < secret.size(); ++i) {
    std::string wrong = secret;
    wrong[i] = 'x';
    EXPECT_FALSE(equal_in_constant_time(wrong, secret)) << i;
  }
  EXPECT_FALSE(equal_in_constant_time("", secret));
  EXPECT_FALSE(equal_in_constant_time("", ""));
}

TEST(ApiKeys, AFileHasOneALineAndMustHaveOne) {
  char path[] = "/tmp/oasis-keys-XXXXXX";
  ::close(::mkstemp(path));
  std::ofstream(path) << "# a comment\n\n  first  \r\nsecond";
  auto keys = ApiKeys::read(path);
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(keys->allow("Bearer first") && keys->allow("Bearer second"));
  EXPECT_FALSE(keys->allow("Bearer # a comment"));
  std::ofstream(path) << "# nothing\n";
  EXPECT_EQ(ApiKeys::read(path).status().code(), StatusCode::kInvalidArgument);
  std::remove(path);
  EXPECT_EQ(ApiKeys::read(path).status().code(), StatusCode::kNotFound);
}

TEST(Latency, PercentilesAreSamplesOfTheLastWindow) {
  LatencyWindow window;
  EXPECT_EQ(window.percentiles().samples, 0U);
  for (int i = 1; i <= 100; ++i) window.add(i);
  const Percentiles p = window.percentiles();
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  for (size_t i = 0; i < LatencyWindow::kWindow; ++i) window.add(7);
  EXPECT_EQ(window.percentiles().p99, 7);
  EXPECT_EQ(window.percentiles().samples, LatencyWindow::kWindow);
}

TEST(Routes, PathsAreFoundWithTheirQuery) {
  EXPECT_EQ(find_route("/v1/completions").endpoint, Endpoint::kCompletions);
  EXPECT_EQ(find_route("/health?x=1").endpoint, Endpoint::kHealth);
  EXPECT_EQ(find_route("/v1/models/a%2Fb%4").argument, "a/b%4");
  for (const char* path : {"", "/v1", "/v1/completions/", "/V1/completions", "/v1/models/"}) {
    EXPECT_EQ(find_route(path).endpoint, Endpoint::kNone) << path;
  }
  EXPECT_TRUE(find_route("/v1/chat/completions").needs_key);
  EXPECT_FALSE(find_route("/metrics").needs_key);
}

TEST(Log, ALineCannotBeForged) {
  const LogLine line{.id = "1", .method = "POST", .endpoint = "/x", .status = 400, .error = "bad\n2026 \"x\" \xff"};
  const std::string text = format_line(line, LogFormat::kText, 1500);
  EXPECT_EQ(text, "1970-01-01T00:00:01.500Z 1 POST /x 400 0.000s error=\"bad\\n2026 \\\"x\\\" \xEF\xBF\xBD\"");
  EXPECT_EQ(format_line(line, LogFormat::kJson, 1500).find('\n'), std::string::npos);
}

TEST(Errors, TheEnginesErrorsGetTheStatusThatFits) {
  EXPECT_EQ(from_engine(invalid_argument("x"), false).status, 400);
  EXPECT_EQ(from_engine(resource_exhausted("x"), false).status, 400);  // it can never run
  EXPECT_EQ(from_engine(resource_exhausted("x"), true).status, 503);
  EXPECT_EQ(from_engine(io_error("x"), true).status, 500);
  EXPECT_EQ(to_json(bad_request("m", "p")),
            R"({"error":{"message":"m","type":"invalid_request_error","param":"p","code":null}})");
}

}  // namespace
}  // namespace oasis::serve
