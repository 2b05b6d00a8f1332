#include "eval/report.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace oasis::eval {
namespace {

std::string cell(const Json& value, int digits) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.{}g}", value.get<double>(), digits);
  return value.dump();
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string Table::csv() const {
  std::string out;
  for (size_t c = 0; c < columns.size(); ++c) out += (c ? "," : "") + quoted(columns[c]);
  out += "\n";
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) out += (c ? "," : "") + quoted(cell(row[c], 6));
    out += "\n";
  }
  return out;
}

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& c : columns) width.push_back(c.size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], cell(row[c], 4).size());
  }
  std::string out = title + "\n";
  const auto line = [&](auto&& at) {
    std::string text;
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto [value, left] = at(c);
      text += left ? fmt::format("{:<{}}  ", value, width[c]) : fmt::format("{:>{}}  ", value, width[c]);
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  const auto left = [&](size_t c) { return rows.empty() || rows[0][c].is_string(); };
  line([&](size_t c) { return std::pair(columns[c], left(c)); });
  for (const auto& row : rows) {
    line([&](size_t c) { return std::pair(cell(row[c], 4), left(c)); });
  }
  return out;
}

Json Table::json() const {
  Json list = Json::array();
  for (const auto& row : rows) {
    Json entry;
    for (size_t c = 0; c < columns.size(); ++c) entry[columns[c]] = row[c];
    list.push_back(std::move(entry));
  }
  return {{"title", title}, {"rows", std::move(list)}};
}

Result<Journal> Journal::open(const std::string& path) {
  Journal journal;
  journal.path_ = path;
  std::ifstream in(path);
  std::string whole;
  for (std::string line; std::getline(in, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    if (!entry.is_object() || !entry.contains("key") || !entry.contains("value")) continue;
    journal.done_[entry["key"].get<std::string>()] = entry["value"];
    whole += line + "\n";
  }
  if (in.is_open()) OASIS_RETURN_IF_ERROR(write_file(path, whole));
  return journal;
}

const Json* Journal::find(const std::string& key) const {
  const auto at = done_.find(key);
  return at == done_.end() ? nullptr : &at->second;
}

Status Journal::put(const std::string& key, const Json& value) {
  done_[key] = value;
  std::ofstream file(path_, std::ios::app);
  file << Json{{"key", key}, {"value", value}}.dump() << std::endl;
  return file ? Status() : io_error("cannot write '{}': {}", path_, std::strerror(errno));
}

Status write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content << std::flush;
  return file ? Status() : io_error("cannot write '{}': {}", path, std::strerror(errno));
}

}  // namespace oasis::eval
