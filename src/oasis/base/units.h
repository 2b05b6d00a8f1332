// Sizes as people write them.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "oasis/base/status.h"

namespace oasis {

// "64MiB", "1.5GiB", "4096", "2GB" (powers of 1000), "16k" (powers of 1024) -> bytes. Errors name the text.
Result<uint64_t> parse_bytes(std::string_view text);

// 1536 -> "1.5 KiB". Three significant digits.
std::string format_bytes(uint64_t bytes);
template <std::signed_integral T>  // for sizes that are counted in signed numbers; not negative
std::string format_bytes(T bytes) {
  return format_bytes(static_cast<uint64_t>(bytes));
}

}  // namespace oasis
