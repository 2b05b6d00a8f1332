#include "oasis/kernels/attention/attention_vec.h"

namespace oasis::kernels {

const AttentionLevel kAttentionAvx2{packed_bytes, tile_bytes, pack, attend, merge};

}  // namespace oasis::kernels
