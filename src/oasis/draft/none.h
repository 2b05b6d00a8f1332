#pragma once

#include <memory>

#include "oasis/draft/drafter.h"

namespace oasis::draft {

// Proposes nothing: prediction falls back to the current row's query.
std::unique_ptr<Drafter> make_none();

}  // namespace oasis::draft
