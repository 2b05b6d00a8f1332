#pragma once

#include <string>
#include <string_view>

namespace oasis::text {

// Unicode normalisation form C of valid UTF-8, in near-linear time whatever the text.
std::string to_nfc(std::string_view valid);

// Whether the text is certainly in form C already; a quick look that may say no needlessly.
bool is_surely_nfc(std::string_view valid);

}  // namespace oasis::text
