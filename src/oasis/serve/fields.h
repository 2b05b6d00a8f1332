// Reading a JSON body that nobody vouches for: every value is checked for type and range before it is used.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/serve/api_error.h"

namespace oasis::serve {

using Json = nlohmann::json;

// A body that is one JSON object in UTF-8, at most kMaxNesting deep (what handles JSON recurses).
inline constexpr int kMaxNesting = 64;
Failure parse_object(std::string_view body, Json& out);

// The fields of one object. A field that is absent or null leaves `out` as it was. The first fault is kept, and reading
// goes on without effect.
class Fields {
 public:
  // `prefix` goes before names in faults: "stream_options.".
  explicit Fields(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  // The value, or null where there is none.
  const Json* find(const char* name) const;
  void boolean(const char* name, bool& out);
  void text(const char* name, std::string& out);
  void number(const char* name, double low, double high, float& out);
  void whole(const char* name, int64_t low, int64_t high, int64_t& out);
  void whole(const char* name, int64_t low, int64_t high, int32_t& out);
  // A list of ids in 0 .. vocab-1.
  void ids(const char* name, int64_t vocab, std::vector<int32_t>& out);
  // An object, or null.
  const Json* object(const char* name);

  void fail(const char* name, std::string message, std::string code = "");
  bool failed() const { return failure_.has_value(); }
  const Failure& failure() const { return failure_; }

 private:
  const Json& object_;
  std::string prefix_;
  Failure failure_;
};

// A whole number of any spelling (3, 3.0) within the range.
bool whole_number(const Json& value, int64_t low, int64_t high, int64_t& out);
// A short form of a value for an error.
std::string shown(const Json& value);

}  // namespace oasis::serve
