#pragma once

#include <memory>

#include "oasis/draft/drafter.h"

namespace oasis::draft {

// Prompt lookup: proposes what followed the latest earlier occurrence of the last 3 tokens, else 2, else 1; nothing if
// the newest token is the first of its kind. Knows no other text than the sequence's own.
std::unique_ptr<Drafter> make_ngram(const DrafterOptions& options);

}  // namespace oasis::draft
