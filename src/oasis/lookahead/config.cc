#include "oasis/lookahead/config.h"

#include <cmath>

namespace oasis::lookahead {

int32_t CoreConfig::cap() const {
  // Guards against 0.05 * 140 = 7.000000000000001.
  return static_cast<int32_t>(std::ceil(fetch_ratio * attend_blocks - 1e-9));
}

Status validate(const CoreConfig& c) {
  const auto& s = c.shape;
  if (s.layers < 1 || s.kv_heads < 1)
    return invalid_argument("{} layers of {} KV heads: both must be positive", s.layers, s.kv_heads);
  if (s.block_size != 16 && s.block_size != 32 && s.block_size != 64) {
    return invalid_argument("block size {}: must be 16, 32 or 64", s.block_size);
  }
  if (c.attend_blocks < 1) return invalid_argument("top-k blocks {}: must be at least 1", c.attend_blocks);
  if (c.resident_blocks < c.attend_blocks) {
    return invalid_argument("resident blocks {}: must be at least the {} that are attended", c.resident_blocks,
                            c.attend_blocks);
  }
  if (!(c.fetch_ratio >= 0 && c.fetch_ratio <= 1))
    return invalid_argument("fetch ratio {}: must lie in 0 .. 1", c.fetch_ratio);
  if (!(c.beta > 0 && c.beta <= 1)) return invalid_argument("beta {}: must lie in (0, 1]", c.beta);
  if (c.max_draft_rows < 1 || c.max_draft_rows > 9) {
    return invalid_argument("{} draft rows a step: must lie in 1 .. 9", c.max_draft_rows);
  }
  if (c.max_sequences < 1 || c.max_blocks < 1) {
    return invalid_argument("{} sequences of {} blocks: both must be positive", c.max_sequences, c.max_blocks);
  }
  return {};
}

}  // namespace oasis::lookahead
