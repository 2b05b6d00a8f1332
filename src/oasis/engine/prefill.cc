#include "oasis/engine/prefill.h"

#include <algorithm>
#include <numeric>

namespace oasis::engine {

Result<PrefillWorkspace> PrefillWorkspace::create(Device& device, const model::ModelConfig& m, int64_t feature_dim,
                                                  int64_t max_tokens, int32_t chunk, int32_t block_size) {
  PrefillWorkspace w;
  // Whole blocks, so that a block of the workspace can be read as a page.
  w.max_tokens = (max_tokens + block_size - 1) / block_size * block_size;
  const auto tokens = static_cast<size_t>(w.max_tokens);
  const auto width = static_cast<size_t>(m.heads * m.head_dim), kv_width = static_cast<size_t>(m.kv_heads * m.head_dim);
  OASIS_ASSIGN_OR_RETURN(w.hidden, device.allocate(tokens * static_cast<size_t>(m.hidden) * 4));
  OASIS_ASSIGN_OR_RETURN(w.features, device.allocate(tokens * static_cast<size_t>(feature_dim) * 4));
  OASIS_ASSIGN_OR_RETURN(w.kv, device.allocate(tokens * kv_width * 4));
  OASIS_ASSIGN_OR_RETURN(w.rope, device.allocate(tokens * static_cast<size_t>(m.head_dim) * 4));
  OASIS_ASSIGN_OR_RETURN(w.q_next, device.allocate((width + static_cast<size_t>(m.head_dim)) * 4));
  OASIS_ASSIGN_OR_RETURN(w.rows, device.allocate(static_cast<size_t>(chunk) * (3 * width + 2 * kv_width) * 4));
  return w;
}

Prefill::Prefill(Stream& stream, model::Transformer& transformer, lookahead::KvCore& core, draft::Drafter& drafter,
                 PrefillWorkspace& workspace, int32_t sequence, std::span<const int32_t> tokens, int32_t chunk)
    : stream_(stream),
      transformer_(transformer),
      core_(core),
      drafter_(drafter),
      workspace_(workspace),
      sequence_(sequence),
      tokens_(tokens.begin(), tokens.end()),
      chunk_(chunk) {
  OASIS_CHECK(static_cast<int64_t>(tokens.size()) <= workspace.max_tokens, "a prompt of {} tokens, room for {}",
              tokens.size(), workspace.max_tokens);
}

Status Prefill::begin(bool sparse, std::span<const kv::HomeId> prefix) {
  OASIS_RETURN_IF_ERROR(core_.begin_prefill(sequence_, static_cast<int32_t>(tokens_.size()), sparse, prefix));
  first_ = static_cast<int32_t>(prefix.size()) * core_.config().shape.block_size;
  next_ = first_;
  std::vector<int32_t> positions(tokens_.size() - static_cast<size_t>(first_));
  std::iota(positions.begin(), positions.end(), first_);
  transformer_.rope_table(stream_, positions.data(), static_cast<int64_t>(positions.size()),
                          workspace_.rope.as<float>());
  return {};
}

lookahead::PrefillKv Prefill::kv() const {
  const auto& m = transformer_.config();
  auto* k = workspace_.kv.as<bf16>();
  return {.k = k,
          .v = k + workspace_.max_tokens * m.kv_heads * m.head_dim,
          .kv_head_stride = workspace_.max_tokens * m.head_dim};
}

Result<bool> Prefill::advance() {
  const auto n = static_cast<int32_t>(tokens_.size());
  if (next_ == first_) OASIS_RETURN_IF_ERROR(core_.load_prefix(sequence_, layer_, kv()));
  const int32_t rows = std::min(chunk_, n - next_);
  run_chunk(next_, rows);
  next_ += rows;
  if (next_ < n) return false;
  OASIS_RETURN_IF_ERROR(core_.finish_layer(sequence_, layer_, kv(), workspace_.q_next.as<float>()));
  ++layer_;
  next_ = first_;
  if (layer_ < transformer_.config().layers) return false;
  core_.finish_prefill(sequence_);
  return true;
}

void Prefill::run_chunk(int32_t begin, int32_t rows) {
  const auto& m = transformer_.config();
  const int64_t width = int64_t{m.heads} * m.head_dim, kv_width = int64_t{m.kv_heads} * m.head_dim;
  const int64_t offset = begin - first_;
  float* x = workspace_.hidden.as<float>() + offset * m.hidden;
  float* q = workspace_.rows.as<float>();
  float* q_unrotated = q + chunk_ * width;
  float* attention = q_unrotated + chunk_ * width;
  float* k = attention + chunk_ * width;
  float* v = k + chunk_ * kv_width;
  const float* rope = workspace_.rope.as<float>() + offset * m.head_dim;
  const bool last = begin + rows == static_cast<int32_t>(tokens_.size());

  if (layer_ == 0) transformer_.embed(stream_, tokens_.data() + begin, rows, x);
  const auto taps = drafter_.tap_layers();
  const auto fold = [&](int layer) {
    for (size_t t = 0; t < taps.size(); ++t) {
      if (taps[t] != layer) continue;
      drafter_.fold_tap(stream_, static_cast<int>(t), x, rows,
                        workspace_.features.as<float>() + offset * drafter_.feature_dim());
    }
  };
  fold(layer_);
  transformer_.before_attention(stream_, layer_, x, rope, rows, q, k, v, last ? q_unrotated : nullptr);
  store_kv(begin, rows, k, v);
  const lookahead::PrefillKv cache = kv();
  kernels::kernels_for(stream_.backend())
      .prefill_attention(stream_, {.q = q,
                                   .q_stride = width,
                                   .k = cache.k,
                                   .v = cache.v,
                                   .kv_head_stride = cache.kv_head_stride,
                                   .first_position = begin,
                                   .rows = rows,
                                   .kv_heads = m.kv_heads,
                                   .q_per_kv = m.heads / m.kv_heads,
                                   .head_dim = m.head_dim,
                                   .out = attention,
                                   .out_stride = width});
  if (last) {  // the query that ranks the blocks for the first decode step
    const int32_t next_position = begin + rows;
    float* q_next = workspace_.q_next.as<float>();
    float* table = q_next + width;
    transformer_.rope_table(stream_, &next_position, 1, table);
    transformer_.rotate_queries(stream_, q_unrotated + (rows - 1) * width, table, 1, q_next);
  }
  transformer_.after_attention(stream_, layer_, attention, rows, x);
  if (layer_ + 1 == m.layers) fold(m.layers);
}

void Prefill::store_kv(int32_t begin, int32_t rows, const float* k, const float* v) {
  const auto& shape = core_.config().shape;
  const lookahead::PrefillKv cache = kv();
  std::vector<int32_t> positions(static_cast<size_t>(rows)), pages;
  std::iota(positions.begin(), positions.end(), begin);
  for (const int32_t p : positions)
    pages.insert(pages.end(), static_cast<size_t>(shape.kv_heads), p / shape.block_size);
  const int64_t width = int64_t{shape.kv_heads} * shape.head_dim;
  kernels::kernels_for(stream_.backend())
      .append(stream_, {.pool = {.base = reinterpret_cast<std::byte*>(cache.k),
                                 .page_stride = int64_t{shape.block_size} * shape.head_dim * 2,
                                 .head_stride = cache.kv_head_stride * 2,
                                 .token_stride = int64_t{shape.head_dim} * 2,
                                 .v_offset = (cache.v - cache.k) * 2},
                        .fp8_values = shape.type == kv::KvType::kFp8E4M3,
                        .block_size = shape.block_size,
                        .head_dim = shape.head_dim,
                        .kv_heads = shape.kv_heads,
                        .rows = rows,
                        .positions = positions.data(),
                        .pages = pages.data(),
                        .k = k,
                        .k_stride = width,
                        .v = v,
                        .v_stride = width});
}

int32_t Prefill::progress() const {
  const auto n = static_cast<int64_t>(tokens_.size());
  const int64_t layers = transformer_.config().layers, fresh = n - first_;
  return static_cast<int32_t>(first_ + (layer_ * fresh + (next_ - first_)) / layers);
}

const float* Prefill::last_hidden() const {
  return workspace_.hidden.as<float>() +
         (static_cast<int64_t>(tokens_.size()) - 1 - first_) * transformer_.config().hidden;
}

}  // namespace oasis::engine
