// Who may use the API.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::serve {

class ApiKeys {
 public:
  // No key: everybody may.
  ApiKeys() = default;
  // A file with one key a line; blank lines and lines that begin with '#' are left out. No key in it is an error.
  static Result<ApiKeys> read(const std::string& path);
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  bool open() const { return keys_.empty(); }
  // `authorization`: the value of that header, "Bearer KEY".
  bool allow(std::string_view authorization) const;

 private:
  std::vector<std::string> keys_;
};

// Takes the same time whatever the two have in common; the time depends on the size of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace oasis::serve
