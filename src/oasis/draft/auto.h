#pragma once

#include <memory>

#include "oasis/draft/drafter.h"

namespace oasis::draft {

// A head and prompt lookup side by side: for each proposal the one whose first draft has been right more often of late
// in this sequence, lookup judged apart by the length of its match. Both guess in every step, so both are measured.
std::unique_ptr<Drafter> make_auto(std::unique_ptr<Drafter> head, const DrafterOptions& options);

}  // namespace oasis::draft
