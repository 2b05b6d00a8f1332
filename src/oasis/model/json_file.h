// JSON from files that nobody vouches for.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "oasis/base/status.h"

namespace oasis::model {

// Errors name `source`. Include <nlohmann/json.hpp> to use the value.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& source);
// Refuses a file of more than `max_bytes`.
Result<nlohmann::json> read_json_file(const std::string& path, uint64_t max_bytes = 64ull << 20);

}  // namespace oasis::model
