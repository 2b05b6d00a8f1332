#include "oasis/draft/eagle3_layer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace oasis::draft {

Result<Eagle3Layer> Eagle3Layer::create(Device& device, const Head& head, int64_t max_rows, int64_t max_chain,
                                        int32_t window_blocks) {
  Eagle3Layer layer;
  layer.head_ = &head;
  layer.k_ = &kernels::kernels_for(device.backend());
  const std::vector<double> frequencies = model::rope_frequencies(head.config.rope, head.config.head_dim);
  OASIS_ASSIGN_OR_RETURN(layer.frequencies_, device.allocate(frequencies.size() * sizeof(double)));
  device.foreground().copy(layer.frequencies_.data(), frequencies.data(), layer.frequencies_.bytes());
  const auto rows = static_cast<size_t>(std::max(max_rows, max_chain)), chain = static_cast<size_t>(max_chain);
  const auto kv_heads = static_cast<size_t>(head.config.kv_heads);
  const size_t lists = chain * kv_heads;
  OASIS_ASSIGN_OR_RETURN(layer.lists_,
                         device.allocate(lists * static_cast<size_t>(window_blocks) * sizeof(kernels::ListEntry)));
  OASIS_ASSIGN_OR_RETURN(layer.list_counts_, device.allocate(lists * sizeof(int32_t)));
  OASIS_ASSIGN_OR_RETURN(layer.arena_, UploadArena::create(device, rows * (48 + 4 * kv_heads) + chain * 24 + 8192));
  OASIS_ASSIGN_OR_RETURN(layer.best_memory_, device.allocate_pinned(chain * sizeof(int32_t)));
  layer.rope_scale_ = model::rope_attention_scale(head.config.rope);
  layer.max_rows_ = max_rows;
  layer.max_chain_ = max_chain;
  OASIS_ASSIGN_OR_RETURN(layer.scratch_,
                         device.allocate(static_cast<size_t>(scratch_bytes(head, max_rows, max_chain))));
  layer.lay_out(layer.scratch_.as<float>());
  return layer;
}

int64_t Eagle3Layer::scratch_bytes(const Head& head, int64_t max_rows, int64_t max_chain) {
  Eagle3Layer layer;
  layer.head_ = &head;
  layer.max_rows_ = max_rows;
  layer.max_chain_ = max_chain;
  return layer.lay_out(nullptr) * static_cast<int64_t>(sizeof(float));
}

int64_t Eagle3Layer::lay_out(float* base) {
  const HeadConfig& c = head_->config;
  const int64_t rows = std::max(max_rows_, max_chain_);
  const int64_t q_cols = int64_t{c.heads} * c.head_dim, kv_cols = int64_t{c.kv_heads} * c.head_dim;
  int64_t floats = 0;
  const auto take = [&](float*& part, int64_t part_rows, int64_t cols) {
    if (base) part = base + floats;
    floats += part_rows * cols;
  };
  take(embedding_, rows, std::max(c.hidden, c.target_hidden));
  take(feature_, rows, c.hidden);
  take(input_, rows, int64_t{2} * c.hidden);
  take(keys_, rows, kv_cols);
  take(values_, rows, kv_cols);
  take(cos_sin_, rows, c.head_dim);
  take(queries_, max_chain_, q_cols);
  take(attention_, max_chain_, q_cols);
  take(normed_, max_chain_, c.hidden);
  take(gate_, max_chain_, c.intermediate);
  take(up_, max_chain_, c.intermediate);
  take(logits_, max_chain_, head_->draft_vocab());
  return floats;
}

// ---- features

void Eagle3Layer::fold_tap(Stream& stream, int tap, const float* x, int64_t rows, float* features) {
  const HeadConfig& c = head_->config;
  const int64_t width = c.target_hidden, stride = feature_floats(*head_);
  if (c.final_state) return norm(stream, x, width, head_->final_norm, head_->target_rms_eps, features, stride, rows);
  for (int64_t begin = 0; begin < rows; begin += max_rows_) {
    const int64_t count = std::min(max_rows_, rows - begin);
    const float* from = x + begin * width;
    float* to = features + begin * stride;
    if (!head_->tap_norm.empty()) {
      norm(stream, from, width, head_->tap_norm[static_cast<size_t>(tap)], c.rms_eps, embedding_, width, count);
      from = embedding_;
    } else if (!head_->concat_norm.empty()) {
      // norm(all taps) = taps * weight / rms(all taps): the division waits until all have passed (load_features).
      const float* weight = head_->concat_norm.data() + tap * width;
      stream.enqueue([=, this] {
        for (int64_t r = 0; r < count; ++r) {
          double squares = tap == 0 ? 0.0 : to[r * stride + c.hidden];
          for (int64_t i = 0; i < width; ++i) {
            const float value = from[r * width + i];
            squares += double{value} * value;
            embedding_[r * width + i] = value * weight[i];
          }
          to[r * stride + c.hidden] = static_cast<float>(squares);
        }
      });
      from = embedding_;
    }
    const kernels::MatmulPart part = {head_->fc[static_cast<size_t>(tap)], to, stride};
    k_->matmul(
        stream,
        {.x = from, .x_stride = width, .rows = count, .cols = width, .parts = {&part, 1}, .accumulate = tap > 0});
  }
}

// feature_[r] = the rows' features, complete. [rows, hidden]
void Eagle3Layer::load_features(Stream& stream, std::span<const Row> rows) {
  const int64_t hidden = head_->config.hidden, stride = feature_floats(*head_),
                count = static_cast<int64_t>(rows.size());
  OASIS_CHECK(count <= std::max(max_rows_, max_chain_), "{} rows at once, made for {} and {}", count, max_rows_,
              max_chain_);
  copies_.clear();
  for (int64_t r = 0; r < count; ++r)
    copies_.push_back({reinterpret_cast<const std::byte*>(rows[static_cast<size_t>(r)].feature),
                       reinterpret_cast<std::byte*>(feature_ + r * hidden)});
  k_->gather(
      stream,
      {.copies = arena_.put(stream, copies_), .count = count, .bytes = hidden * static_cast<int64_t>(sizeof(float))});
  if (!head_->concat_norm.empty())
    stream.enqueue([=, this] {
      const double columns = static_cast<double>(head_->concat_norm.size());
      for (int64_t r = 0; r < count; ++r) {
        const double squares = rows[static_cast<size_t>(r)].feature[stride - 1];
        const auto scale = static_cast<float>(1 / std::sqrt(squares / columns + head_->config.rms_eps));
        for (int64_t i = 0; i < hidden; ++i) feature_[r * hidden + i] *= scale;
      }
    });
  add_bias(stream, head_->fc_bias, feature_, count);
}

// ---- one row, step by step (facts: EAGLE-3, forward of one row)

void Eagle3Layer::norm(Stream& stream, const float* x, int64_t x_stride, std::span<const float> weight, float eps,
                       float* y, int64_t y_stride, int64_t rows) {
  k_->rms_norm(stream, {.x = x,
                        .x_stride = x_stride,
                        .weight = weight.data(),
                        .eps = eps,
                        .y = y,
                        .y_stride = y_stride,
                        .rows = rows,
                        .cols = static_cast<int64_t>(weight.size())});
}

void Eagle3Layer::add_bias(Stream& stream, std::span<const float> bias, float* y, int64_t rows) {
  if (bias.empty()) return;
  stream.enqueue([=] {
    for (int64_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < bias.size(); ++i) y[static_cast<size_t>(r) * bias.size() + i] += bias[i];
  });
}

void Eagle3Layer::multiply(Stream& stream, const float* x, int64_t rows, const Linear& linear, float* y,
                           bool accumulate) {
  const kernels::MatmulPart part = {linear.w, y, linear.w.rows};
  k_->matmul(stream, {.x = x,
                      .x_stride = linear.w.cols,
                      .rows = rows,
                      .cols = linear.w.cols,
                      .parts = {&part, 1},
                      .accumulate = accumulate});
  add_bias(stream, linear.bias, y, rows);
}

void Eagle3Layer::rotate(Stream& stream, float* x, int64_t rows, int heads, std::span<const float> head_norm) {
  const int64_t d = head_->config.head_dim;
  if (!head_norm.empty()) norm(stream, x, d, head_norm, head_->config.rms_eps, x, d, rows * heads);
  k_->rope(stream, {.x = x,
                    .x_stride = heads * d,
                    .cos_sin = cos_sin_,
                    .y = x,
                    .y_stride = heads * d,
                    .rows = rows,
                    .heads = heads,
                    .head_dim = d});
}

// input_ = [norm(embedding of tokens_), norm(feature_)]; from it keys_, values_ and, for rows that attend, queries_.
void Eagle3Layer::project(Stream& stream, int64_t rows, bool with_queries) {
  const HeadConfig& c = head_->config;
  const int64_t hidden = c.hidden, kv_cols = int64_t{c.kv_heads} * c.head_dim, q_cols = int64_t{c.heads} * c.head_dim;
  k_->embedding(stream, {.table = head_->embed, .ids = tokens_at_, .rows = rows, .out = embedding_});
  norm(stream, embedding_, hidden, head_->embed_norm, c.rms_eps, input_, 2 * hidden, rows);
  norm(stream, feature_, hidden, head_->feature_norm, c.rms_eps, input_ + hidden, 2 * hidden, rows);
  const std::array<kernels::MatmulPart, 3> parts = {
      {{head_->k.w, keys_, kv_cols}, {head_->v.w, values_, kv_cols}, {head_->q.w, queries_, q_cols}}};
  k_->matmul(stream, {.x = input_,
                      .x_stride = 2 * hidden,
                      .rows = rows,
                      .cols = 2 * hidden,
                      .parts = std::span(parts).first(with_queries ? 3 : 2)});
  add_bias(stream, head_->k.bias, keys_, rows);
  add_bias(stream, head_->v.bias, values_, rows);
  k_->rope_table(stream, {.frequencies = frequencies_.as<double>(),
                          .scale = rope_scale_,
                          .positions = positions_at_,
                          .rows = rows,
                          .head_dim = c.head_dim,
                          .cos_sin = cos_sin_});
  rotate(stream, keys_, rows, c.kv_heads, head_->k_norm);
  if (!with_queries) return;
  add_bias(stream, head_->q.bias, queries_, rows);
  rotate(stream, queries_, rows, c.heads, head_->q_norm);
}

void Eagle3Layer::write_kv(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache) {
  const HeadConfig& c = head_->config;
  const int64_t kv_cols = int64_t{c.kv_heads} * c.head_dim, block_size = cache.shape().kv.block_size;
  pages_.clear();
  for (const Row& row : rows)
    pages_.insert(pages_.end(), static_cast<size_t>(c.kv_heads),
                  cache.page(row.sequence, static_cast<int32_t>(row.position / block_size)));
  k_->append(stream, {.pool = cache.view(),
                      .block_size = block_size,
                      .head_dim = c.head_dim,
                      .kv_heads = c.kv_heads,
                      .rows = static_cast<int64_t>(rows.size()),
                      .positions = positions_at_,
                      .pages = arena_.put(stream, pages_),
                      .k = keys_,
                      .k_stride = kv_cols,
                      .v = values_,
                      .v_stride = kv_cols});
}

// attention_ = what queries_ read of the last blocks of their sequences.
void Eagle3Layer::attend(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache) {
  const HeadConfig& c = head_->config;
  const int32_t block_size = cache.shape().kv.block_size, stride = cache.shape().window_blocks;
  row_begin_.resize(rows.size() + 1);
  std::iota(row_begin_.begin(), row_begin_.end(), 0);
  begin_blocks_.clear(), first_pages_.clear();
  for (const Row& row : rows) {
    begin_blocks_.push_back(cache.first_block(row.sequence, row.position));
    first_pages_.push_back(cache.page(row.sequence, 0));
  }
  k_->window_lists(stream, {.rows = static_cast<int64_t>(rows.size()),
                            .kv_heads = c.kv_heads,
                            .block_size = block_size,
                            .window_blocks = stride,
                            .ring_pages = cache.shape().ring_pages(),
                            .positions = positions_at_,
                            .begin_block = arena_.put(stream, begin_blocks_),
                            .first_page = arena_.put(stream, first_pages_),
                            .entries = lists_.as<kernels::ListEntry>(),
                            .entry_count = list_counts_.as<int32_t>()});
  const int64_t q_cols = int64_t{c.heads} * c.head_dim;
  k_->attention(stream, {.pool = cache.view(),
                         .block_size = block_size,
                         .head_dim = c.head_dim,
                         .kv_heads = c.kv_heads,
                         .q_per_kv = c.heads / c.kv_heads,
                         .groups = static_cast<int64_t>(rows.size()),
                         .max_group_rows = 1,
                         .row_begin = arena_.put(stream, row_begin_),
                         .positions = positions_at_,
                         .entries = lists_.as<kernels::ListEntry>(),
                         .entry_count = list_counts_.as<int32_t>(),
                         .list_stride = stride,
                         .q = queries_,
                         .q_stride = q_cols,
                         .out = attention_,
                         .out_stride = q_cols});
}

// From attention_ to feature_ = h and normed_ = norm(h).
void Eagle3Layer::finish_layer(Stream& stream, int64_t rows) {
  const HeadConfig& c = head_->config;
  const int64_t hidden = c.hidden;
  if (c.norm_before_residual) norm(stream, feature_, hidden, head_->feature_norm, c.rms_eps, feature_, hidden, rows);
  multiply(stream, attention_, rows, head_->o, feature_, true);
  norm(stream, feature_, hidden, head_->mlp_norm, c.rms_eps, normed_, hidden, rows);
  const std::array<kernels::MatmulPart, 2> parts = {
      {{head_->gate.w, gate_, c.intermediate}, {head_->up.w, up_, c.intermediate}}};
  k_->matmul(stream, {.x = normed_, .x_stride = hidden, .rows = rows, .cols = hidden, .parts = parts});
  add_bias(stream, head_->gate.bias, gate_, rows);
  add_bias(stream, head_->up.bias, up_, rows);
  k_->swiglu(stream, {.gate = gate_, .up = up_, .y = gate_, .count = rows * c.intermediate});
  multiply(stream, gate_, rows, head_->down, feature_, true);
  norm(stream, feature_, hidden, head_->output_norm, c.rms_eps, c.norm_output ? feature_ : normed_, hidden, rows);
}

// best_[r] = the draft token with the largest logit.
void Eagle3Layer::choose(Stream& stream, int64_t rows) {
  multiply(stream, head_->config.norm_output ? feature_ : normed_, rows, head_->lm_head, logits_);
  k_->argmax(stream, {.x = logits_, .rows = rows, .cols = head_->draft_vocab(), .best = best_memory_.as<int32_t>()});
  stream.synchronize();
}

// ---- batches of rows

void Eagle3Layer::load_rows(Stream& stream, std::span<const Row> rows) {
  tokens_.clear();
  positions_.clear();
  for (const Row& row : rows) {
    tokens_.push_back(row.token);
    positions_.push_back(row.position);
  }
  tokens_at_ = arena_.put(stream, tokens_);
  positions_at_ = arena_.put(stream, positions_);
}

void Eagle3Layer::take_in(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache) {
  while (!rows.empty()) {
    const auto some = rows.first(std::min(rows.size(), static_cast<size_t>(max_rows_)));
    arena_.reset(stream);
    load_rows(stream, some);
    load_features(stream, some);
    project(stream, static_cast<int64_t>(some.size()), false);
    write_kv(stream, some, cache);
    rows = rows.subspan(some.size());
  }
}

std::span<const int32_t> Eagle3Layer::step_chain(Stream& stream, std::span<const Row> rows, const Eagle3Cache& cache) {
  const int64_t count = static_cast<int64_t>(rows.size());
  OASIS_CHECK(count <= max_chain_, "{} sequences draft at once, made for {}", count, max_chain_);
  load_rows(stream, rows);
  project(stream, count, true);
  write_kv(stream, rows, cache);
  attend(stream, rows, cache);
  finish_layer(stream, count);
  choose(stream, count);
  drafts_.clear();
  for (int64_t r = 0; r < count; ++r) {
    const int32_t best = best_memory_.as<int32_t>()[r];
    drafts_.push_back(best < 0 ? 0 : head_->target_id[static_cast<size_t>(best)]);
  }
  arena_.reset(stream);
  return drafts_;
}

}  // namespace oasis::draft
