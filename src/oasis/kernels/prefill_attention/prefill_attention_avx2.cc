#include "oasis/kernels/prefill_attention/prefill_attention_vec.h"

namespace oasis::kernels {

const PrefillLevel kPrefillAvx2{scratch_bytes, attend};

}  // namespace oasis::kernels
