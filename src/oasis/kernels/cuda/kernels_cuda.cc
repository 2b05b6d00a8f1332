#include "oasis/kernels/kernels.h"

namespace oasis::kernels {

const Kernels* cuda_kernels() {
  static constexpr Kernels cuda{
      .append = append_cuda,
      .argmax = argmax_cuda,
      .attention = attention_cuda,
      .embedding = embedding_cuda,
      .fill_random = fill_random_cuda,
      .gather = gather_cuda,
      .locate = locate_cuda,
      .matmul = matmul_cuda,
      .prefill_attention = prefill_attention_cuda,
      .rms_norm = rms_norm_cuda,
      .rope_table = rope_table_cuda,
      .rope = rope_cuda,
      .score = score_cuda,
      .seal = seal_cuda,
      .demand = demand_cuda,
      .select = select_cuda,
      .swiglu = swiglu_cuda,
      .topk = topk_cuda,
      .unpack = unpack_cuda,
      .window_lists = window_lists_cuda,
  };
  return &cuda;
}

}  // namespace oasis::kernels
