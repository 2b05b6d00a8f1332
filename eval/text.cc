#include "eval/text.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace oasis::eval {
namespace {

struct Source {
  const char *kind, *package, *file;
};

// Each gives the same share of its kind.
constexpr Source kSources[] = {
    {"prose", "libpng16-16", "/usr/share/doc/libpng16-16/libpng-manual.txt.gz"},
    {"prose", "perl-modules-5.36", "/usr/share/perl/5.36.0/pod/perldiag.pod"},
    {"code", "libstdc++-12-dev", "/usr/include/c++/12/bits/basic_string.h"},
    {"code", "libstdc++-12-dev", "/usr/include/c++/12/bits/stl_algo.h"},
    {"tables", "perl-modules-5.36", "/usr/share/perl/5.36.0/unicore/NamedSequences.txt"},
    {"tables", "tzdata", "/usr/share/zoneinfo/tzdata.zi"},
};

std::string read_up_to(const Source& source, size_t bytes) {
  const bool packed = std::string_view(source.file).ends_with(".gz");
  std::FILE* in =
      packed ? ::popen(fmt::format("zcat '{}' 2>/dev/null", source.file).c_str(), "r") : std::fopen(source.file, "rb");
  if (!in) return "";
  std::string text(bytes, '\0');
  text.resize(std::fread(text.data(), 1, bytes, in));
  packed ? ::pclose(in) : std::fclose(in);
  return text;
}

}  // namespace

Result<std::string> debian_text(const std::string& kind, size_t bytes) {
  const auto parts = static_cast<size_t>(
      std::count_if(std::begin(kSources), std::end(kSources), [&](const Source& s) { return kind == s.kind; }));
  if (parts == 0) return invalid_argument("text '{}': prose, code or tables", kind);
  std::string text;
  for (const Source& source : kSources) {
    if (kind != source.kind) continue;
    const std::string part = read_up_to(source, bytes / parts);
    if (part.empty()) {
      return not_found("{} is not there: apt-get install {}, or give your own text with --text", source.file,
                       source.package);
    }
    text += part;
  }
  return text;
}

Result<std::vector<int32_t>> cut(const Text& text, int64_t length, int index, int count) {
  const auto there = static_cast<int64_t>(text.tokens.size());
  if (length * count > there) {
    return invalid_argument("text '{}' has {} tokens: {} pieces of {} are needed; take fewer or shorter ones",
                            text.kind, there, count, length);
  }
  const auto begin = text.tokens.begin() + index * (there / count);
  return std::vector<int32_t>(begin, begin + length);
}

}  // namespace oasis::eval
