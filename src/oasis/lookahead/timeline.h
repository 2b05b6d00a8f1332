// What a device did when, in the last steps: stamps that it took itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace oasis::lookahead {

struct TimelineSpan {
  std::string_view track;  // "step" or "transfer": what runs one after another
  std::string_view name;   // of the part of the step, a literal
  int64_t step = 0;
  int32_t layer = -1;                // -1: of no layer
  int64_t begin_ns = 0, end_ns = 0;  // from the first span's begin
};

}  // namespace oasis::lookahead
