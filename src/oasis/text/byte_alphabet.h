// The printable stand-ins for bytes in which byte-level BPE vocabularies are written.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace oasis::text {

// "Ġthe" -> " the". Nothing where a character is no stand-in or the text is not UTF-8.
std::optional<std::string> bytes_from_alphabet(std::string_view text);

}  // namespace oasis::text
