// Any text as config.json and as generation_config.json; what is accepted must give finite frequencies.
#include <cmath>

#include "oasis/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace oasis::model;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ModelConfig defaults;
  (void)apply_generation_config(text, "fuzz", defaults);
  auto config = parse_config_json(text, "fuzz");
  if (!config.ok()) return 0;
  OASIS_CHECK(validate(*config).ok(), "an accepted config does not validate");
  for (double f : rope_frequencies(config->rope, config->head_dim)) OASIS_CHECK(std::isfinite(f), "frequency {}", f);
  OASIS_CHECK(std::isfinite(rope_attention_scale(config->rope)), "attention scale");
  return 0;
}
