// One row of an EAGLE-3 head, and many at once: from tokens and features to KV, hidden states and draft tokens.
#pragma once

#include <span>
#include <vector>

#include "oasis/device/upload_arena.h"
#include "oasis/draft/eagle3_cache.h"
#include "oasis/draft/eagle3_head.h"
#include "oasis/kernels/kernels.h"

namespace oasis::draft {

// Floats that the features of one row take: with a norm over all taps, the sum of their squares rides along.
inline int64_t feature_floats(const Head& head) { return head.config.hidden + (head.concat_norm.empty() ? 0 : 1); }

// The feature of a position and the token after it.
struct Row {
  int32_t sequence;
  int32_t position;
  int32_t token;
  const float* feature;  // [feature_floats], as the target's taps were folded
};

class Eagle3Layer {
 public:
  // Borrows the head. At most `max_rows` rows of real features and `max_chain` drafting rows are computed at once.
  static Result<Eagle3Layer> create(Device& device, const Head& head, int64_t max_rows, int64_t max_chain,
                                    int32_t window_blocks);
  // Bytes that `create` allocates.
  static int64_t scratch_bytes(const Head& head, int64_t max_rows, int64_t max_chain);

  void fold_tap(Stream& stream, int tap, const float* x, int64_t rows, float* features);
  // Writes K and V of any number of rows. They depend on token and feature alone, so nothing else is computed.
  void take_in(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache);
  // A chain of drafts: its first rows have features of the target, the later ones those that the step before left here,
  // row by row (a step may have fewer rows than the one before: the first ones). Each step writes K and V and returns
  // the rows' draft tokens, as tokens of the target.
  void begin_chain(Stream& stream, std::span<const Row> rows) {
    arena_.reset(stream);
    load_features(stream, rows);
  }
  std::span<const int32_t> step_chain(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache);
  // Of the last step. [rows, draft_vocab] and [rows, hidden], before the norm unless the head feeds back its norm.
  const float* logits() const { return logits_; }
  const float* hidden() const { return feature_; }

 private:
  Eagle3Layer() = default;
  // Sets every scratch pointer from `base` on; returns how many floats there are.
  int64_t lay_out(float* base);
  void load_features(Stream& stream, std::span<const Row> rows);
  void load_rows(Stream& stream, std::span<const Row> rows);
  void project(Stream& stream, int64_t rows, bool with_queries);
  void write_kv(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache);
  void attend(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache);
  void finish_layer(Stream& stream, int64_t rows);
  void choose(Stream& stream, int64_t rows);

  void multiply(Stream& stream, const float* x, int64_t rows, const Linear& linear, float* y, bool accumulate = false);
  void add_bias(Stream& stream, std::span<const float> bias, float* y, int64_t rows);
  void norm(Stream& stream, const float* x, int64_t x_stride, std::span<const float> weight, float eps, float* y,
            int64_t y_stride, int64_t rows);
  void rotate(Stream& stream, float* x, int64_t rows, int heads, std::span<const float> head_norm);

  const Head* head_ = nullptr;
  const kernels::Kernels* k_ = nullptr;
  Buffer frequencies_;  // doubles [head_dim / 2]
  float rope_scale_ = 1;
  int64_t max_rows_ = 0;
  int64_t max_chain_ = 0;

  // Scratch. Of max(max_rows, max_chain) rows:
  Buffer scratch_;
  float* embedding_ = nullptr;  // [rows, hidden], or a normed tap [rows, target_hidden]
  float* feature_ = nullptr;    // [rows, hidden]; then the residual stream
  float* input_ = nullptr;      // [rows, 2 * hidden]
  float* keys_ = nullptr;       // [rows, kv_heads * d]
  float* values_ = nullptr;
  float* cos_sin_ = nullptr;  // [rows, 2, d / 2]
  // Of max_chain rows:
  float* queries_ = nullptr;    // [rows, heads * d]
  float* attention_ = nullptr;  // [rows, heads * d]
  float* normed_ = nullptr;     // [rows, hidden]
  float* gate_ = nullptr;       // [rows, intermediate]
  float* up_ = nullptr;         // [rows, intermediate]
  float* logits_ = nullptr;     // [rows, draft_vocab]

  // What kernels read of the rows at hand; `at_` pointers: where they find it.
  UploadArena arena_;
  const int32_t *tokens_at_ = nullptr, *positions_at_ = nullptr;
  Buffer best_memory_;  // int32 [max_chain], draft tokens, which the host reads too
  std::vector<int32_t> tokens_, positions_, pages_;
  std::vector<kernels::Copy> copies_;
  std::vector<int32_t> row_begin_, begin_blocks_, first_pages_;
  Buffer lists_,
      list_counts_;  // of the device: entries [max_chain, kv_heads, window_blocks], counts [max_chain, kv_heads]
  std::vector<int32_t> drafts_;
};

}  // namespace oasis::draft
