#include "oasis/model/json_file.h"

#include <nlohmann/json.hpp>

#include "oasis/base/mapped_file.h"
#include "oasis/base/units.h"

namespace oasis::model {

Result<nlohmann::json> parse_json(std::string_view text, const std::string& source) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    return data_corruption("'{}' is not valid JSON: {}", source, error.what());
  }
}

Result<nlohmann::json> read_json_file(const std::string& path, uint64_t max_bytes) {
  OASIS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > max_bytes)
    return invalid_argument("'{}' has {}, the limit for this file is {}", path, format_bytes(bytes.size()),
                            format_bytes(max_bytes));
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace oasis::model
