#include "oasis/draft/make_drafter.h"

#include "oasis/draft/auto.h"
#include "oasis/draft/eagle3.h"
#include "oasis/draft/ngram.h"
#include "oasis/draft/none.h"

namespace oasis::draft {

namespace {

struct Spec {
  std::string_view kind, folder;
};

Result<Spec> parse(std::string_view spec) {
  const size_t colon = spec.find(':');
  const Spec parsed = {spec.substr(0, colon), colon == spec.npos ? "" : spec.substr(colon + 1)};
  const bool takes_folder = parsed.kind == "eagle3" || parsed.kind == "auto";
  const bool known = takes_folder || parsed.kind == "ngram" || parsed.kind == "none";
  const bool folder_fits = colon == spec.npos ? parsed.kind != "eagle3" : takes_folder && !parsed.folder.empty();
  if (known && folder_fits) return parsed;
  return invalid_argument(
      "--draft '{}': choose none, ngram, eagle3:DIR, auto or auto:DIR (DIR: an EAGLE-3 head's folder)", spec);
}

// What is wrong with the head, after the option that chose it.
Status of(std::string_view spec, const Status& status) {
  return {status.code(), fmt::format("--draft {}: {}", spec, status.message())};
}

}  // namespace

Result<std::unique_ptr<Drafter>> make_drafter(Device& device, std::string_view spec, const model::Checkpoint& target,
                                              const DrafterOptions& options) {
  OASIS_ASSIGN_OR_RETURN(const Spec parsed, parse(spec));
  if (parsed.kind == "none") return make_none();
  if (parsed.folder.empty()) return make_ngram(options);
  auto head = make_eagle3(device, std::string(parsed.folder), target, options);
  if (!head.ok()) return of(spec, head.status());
  if (parsed.kind == "eagle3") return head;
  return make_auto(std::move(*head), options);
}

Result<DrafterPlan> plan_drafter(std::string_view spec, const model::Checkpoint& target,
                                 const DrafterOptions& options) {
  OASIS_ASSIGN_OR_RETURN(const Spec parsed, parse(spec));
  if (parsed.folder.empty()) return DrafterPlan{};
  auto plan = plan_eagle3(std::string(parsed.folder), target, options);
  if (!plan.ok()) return of(spec, plan.status());
  return plan;
}

}  // namespace oasis::draft
