// A prompt on its way into the capacity tier, layer by layer, so that it may be longer than the fast tier: the KV of
// one layer lies in a workspace, the hidden states of all tokens are kept between layers. One call does one (layer,
// chunk).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oasis/draft/drafter.h"
#include "oasis/lookahead/kv_core.h"
#include "oasis/model/transformer.h"

namespace oasis::engine {

// Memory of the one prefill that runs at a time, for prompts up to max_tokens. Untouched pages cost nothing.
struct PrefillWorkspace {
  Buffer hidden;    // fp32 [token, hidden], new tokens only
  Buffer features;  // fp32 [token, feature_dim], new tokens only
  Buffer kv;        // bf16 [2 (K, V), kv_head, token, head_dim], the prefix included
  Buffer rope;      // fp32 [token, 2, head_dim / 2], new tokens only
  Buffer rows;      // fp32, of one chunk: q, q before RoPE, k, v, attention
  Buffer q_next;    // fp32 [heads * head_dim + head_dim]: the query that ranks the blocks, and its RoPE table
  int64_t max_tokens = 0;
  static Result<PrefillWorkspace> create(Device& device, const model::ModelConfig& model, int64_t feature_dim,
                                         int64_t max_tokens, int32_t chunk, int32_t block_size);
};

class Prefill {
 public:
  // `prefix`: homes of the first blocks. Core and drafter have the sequence attached; begin() passes the prefix on to
  // the core.
  Prefill(Stream& stream, model::Transformer& transformer, lookahead::KvCore& core, draft::Drafter& drafter,
          PrefillWorkspace& workspace, int32_t sequence, std::span<const int32_t> tokens, int32_t chunk);
  Status begin(bool sparse, std::span<const kv::HomeId> prefix);
  // Does one work item. True: all done, `last_hidden` is the last token's.
  Result<bool> advance();
  // Prompt tokens whose work is done, scaled to layers: grows evenly from prefix to the whole prompt.
  int32_t progress() const;
  const float* last_hidden() const;
  bool done() const { return layer_ == transformer_.config().layers; }
  // After the last item: of new position first() + row on.
  const float* hidden(int64_t row) const { return workspace_.hidden.as<float>() + row * transformer_.config().hidden; }
  // Fused features of new tokens: row 0 is position first().
  const float* features() const { return workspace_.features.as<float>(); }
  int32_t first() const { return first_; }

 private:
  void run_chunk(int32_t begin, int32_t rows);
  void store_kv(int32_t begin, int32_t rows, const float* k, const float* v);
  lookahead::PrefillKv kv() const;

  Stream& stream_;
  model::Transformer& transformer_;
  lookahead::KvCore& core_;
  draft::Drafter& drafter_;
  PrefillWorkspace& workspace_;
  const int32_t sequence_;
  const std::vector<int32_t> tokens_;
  const int32_t chunk_;
  int32_t first_ = 0;  // first new token
  int32_t layer_ = 0, next_ = 0;
};

}  // namespace oasis::engine
