// What a task leaves behind: a table (printed, CSV, JSON), a picture, and a journal by which it goes on where it
// stopped.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eval/session.h"

namespace oasis::eval {

struct Table {
  std::string title;  // one line: what was run
  std::vector<std::string> columns;
  std::vector<std::vector<Json>> rows;  // strings and numbers; null: not measured

  std::string csv() const;
  std::string text() const;  // aligned, numbers with four significant digits
  Json json() const;
};

// A file of one JSON line a finished unit of work. A last line that was cut off is dropped.
class Journal {
 public:
  static Result<Journal> open(const std::string& path);
  const Json* find(const std::string& key) const;
  Status put(const std::string& key, const Json& value);

 private:
  std::string path_;
  std::map<std::string, Json> done_;
};

Status write_file(const std::string& path, const std::string& content);

}  // namespace oasis::eval
