// The ops a step is made of, one function pointer an op and one table a backend. A kernel takes a Stream and one struct
// of plain pointers and numbers; it allocates nothing that the caller sees, keeps nothing, and knows nothing of
// requests. Activations are fp32 on the CPU backend. See README.md for how to add an op.
#pragma once

#include "oasis/device/device.h"
#include "oasis/kernels/append/append.h"
#include "oasis/kernels/argmax/argmax.h"
#include "oasis/kernels/attention/attention.h"
#include "oasis/kernels/embedding/embedding.h"
#include "oasis/kernels/gather/gather.h"
#include "oasis/kernels/locate/locate.h"
#include "oasis/kernels/matmul/matmul.h"
#include "oasis/kernels/norm/norm.h"
#include "oasis/kernels/prefill_attention/prefill_attention.h"
#include "oasis/kernels/random/random.h"
#include "oasis/kernels/rope/rope.h"
#include "oasis/kernels/score/score.h"
#include "oasis/kernels/seal/seal.h"
#include "oasis/kernels/select/select.h"
#include "oasis/kernels/swiglu/swiglu.h"
#include "oasis/kernels/topk/topk.h"
#include "oasis/kernels/unpack/unpack.h"
#include "oasis/kernels/window_lists/window_lists.h"

namespace oasis::kernels {

struct Kernels {
  void (*append)(Stream&, const AppendParams&);
  void (*argmax)(Stream&, const ArgmaxParams&);
  void (*attention)(Stream&, const AttentionParams&);
  void (*embedding)(Stream&, const EmbeddingParams&);
  void (*fill_random)(Stream&, const FillRandomParams&);
  void (*gather)(Stream&, const GatherParams&);
  void (*locate)(Stream&, const LocateParams&);
  void (*matmul)(Stream&, const MatmulParams&);
  void (*prefill_attention)(Stream&, const PrefillAttentionParams&);
  void (*rms_norm)(Stream&, const RmsNormParams&);
  void (*rope_table)(Stream&, const RopeTableParams&);
  void (*rope)(Stream&, const RopeParams&);
  void (*score)(Stream&, const ScoreParams&);
  void (*seal)(Stream&, const SealParams&);
  void (*demand)(Stream&, const SelectParams&);
  void (*select)(Stream&, const SelectParams&);
  void (*swiglu)(Stream&, const SwigluParams&);
  void (*topk)(Stream&, const TopKParams&);
  void (*unpack)(Stream&, const UnpackParams&);
  void (*window_lists)(Stream&, const WindowListsParams&);
};

const Kernels& kernels_for(Backend backend);
// Null in builds without CUDA.
const Kernels* cuda_kernels();

}  // namespace oasis::kernels
