// A drafter by its name on the command line.
#pragma once

#include <memory>
#include <string_view>

#include "oasis/draft/drafter.h"
#include "oasis/model/checkpoint.h"

namespace oasis::draft {

// `spec`: "none"; "ngram"; "eagle3:DIR", an EAGLE-3 head's folder; "auto:DIR", the head and prompt lookup, whichever
// does better; "auto", prompt lookup alone for want of a head. Device and target must outlive the drafter.
// Errors begin with the option, --draft.
Result<std::unique_ptr<Drafter>> make_drafter(Device& device, std::string_view spec, const model::Checkpoint& target,
                                              const DrafterOptions& options);

// What make_drafter would take, without taking it.
Result<DrafterPlan> plan_drafter(std::string_view spec, const model::Checkpoint& target, const DrafterOptions& options);

}  // namespace oasis::draft
