#include "oasis/serve/api_keys.h"

#include <strings.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace oasis::serve {

constexpr size_t kLongestKey = 1024;

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  if (secret.empty()) return false;
  volatile unsigned char differ = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0, j = 0; i < given.size(); ++i, j = j + 1 == secret.size() ? 0 : j + 1) {
    differ = differ | static_cast<unsigned char>(given[i] ^ secret[j]);
  }
  return differ == 0;
}

Result<ApiKeys> ApiKeys::read(const std::string& path) {
  std::ifstream in(path);
  if (!in) return not_found("cannot read the keys in '{}': {}", path, std::strerror(errno));
  std::vector<std::string> keys;
  for (std::string line; std::getline(in, line);) {
    line.erase(0, line.find_first_not_of(" \t\r"));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty() || line[0] == '#') continue;
    if (line.size() > kLongestKey) {
      return invalid_argument("'{}': a key of {} bytes is too long: at most {}", path, line.size(), kLongestKey);
    }
    keys.push_back(std::move(line));
  }
  if (in.bad()) return io_error("cannot read the keys in '{}'", path);
  if (keys.empty()) return invalid_argument("'{}' holds no key: write one a line", path);
  return ApiKeys(std::move(keys));
}

bool ApiKeys::allow(std::string_view authorization) const {
  if (open()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.size() <= kScheme.size() || authorization.size() > kScheme.size() + kLongestKey ||
      ::strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return false;
  }
  const std::string_view given = authorization.substr(kScheme.size());
  bool allowed = false;
  for (const std::string& key : keys_) allowed |= equal_in_constant_time(given, key);  // all of them, every time
  return allowed;
}

}  // namespace oasis::serve
