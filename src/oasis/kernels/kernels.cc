#include "oasis/kernels/kernels.h"

namespace oasis::kernels {

const Kernels& kernels_for(Backend backend) {
  static constexpr Kernels cpu{
      .append = append_cpu,
      .argmax = argmax_cpu,
      .attention = attention_cpu,
      .embedding = embedding_cpu,
      .fill_random = fill_random_cpu,
      .gather = gather_cpu,
      .locate = locate_cpu,
      .matmul = matmul_cpu,
      .prefill_attention = prefill_attention_cpu,
      .rms_norm = rms_norm_cpu,
      .rope_table = rope_table_cpu,
      .rope = rope_cpu,
      .score = score_cpu,
      .seal = seal_cpu,
      .demand = demand_cpu,
      .select = select_cpu,
      .swiglu = swiglu_cpu,
      .topk = topk_cpu,
      .unpack = unpack_cpu,
      .window_lists = window_lists_cpu,
  };
  switch (backend) {
    case Backend::kCpu:
      return cpu;
    case Backend::kCuda:
      if (const Kernels* cuda = cuda_kernels()) return *cuda;
  }
  OASIS_CHECK(false, "no kernels for backend {}", static_cast<int>(backend));
}

}  // namespace oasis::kernels
