#include "oasis/engine/decode_step.h"

#include <algorithm>

namespace oasis::engine {

Result<DecodeStep> DecodeStep::create(Device& device, model::Transformer& transformer, lookahead::KvCore& core,
                                      draft::Drafter& drafter, const EngineConfig& config) {
  DecodeStep d(transformer, core, drafter, config);
  d.stream_ = &device.foreground();
  OASIS_ASSIGN_OR_RETURN(d.graph_, make_graph_step(device, transformer, core, drafter, config));
  if (d.graph_) return d;
  const auto& m = transformer.config();
  const int64_t rows = int64_t{config.max_sequences} * (1 + core.config().max_draft_rows);
  const int64_t width = int64_t{m.heads} * m.head_dim, kv_width = int64_t{m.kv_heads} * m.head_dim;
  const int64_t floats = rows * (2 * m.hidden + 4 * width + 2 * kv_width + 2 * m.head_dim + drafter.feature_dim());
  OASIS_ASSIGN_OR_RETURN(d.activations_, device.allocate(static_cast<size_t>(floats) * 4));
  OASIS_ASSIGN_OR_RETURN(d.logit_memory_, device.allocate_pinned(static_cast<size_t>(rows * m.vocab) * 4));
  float* next = d.activations_.as<float>();
  const auto take = [&](int64_t each) { return std::exchange(next, next + rows * each); };
  d.x_ = take(m.hidden), d.logit_rows_ = take(m.hidden);
  d.q_ = take(width), d.q_unrotated_ = take(width), d.q_next_ = take(width), d.attention_ = take(width);
  d.k_ = take(kv_width), d.v_ = take(kv_width);
  d.rope_ = take(m.head_dim), d.rope_next_ = take(m.head_dim);
  d.features_ = take(drafter.feature_dim());
  d.logits_ = d.logit_memory_.as<float>();
  return d;
}

lookahead::StepSequence DecodeStep::shape_of(const EngineSequence& s) const {
  const bool sparse = core_->sequence(s.index).sparse;
  // Rows at positions past the maximum length would never be read.
  const int32_t room = s.max_length - static_cast<int32_t>(s.tokens.size());
  int32_t drafts = std::min({static_cast<int32_t>(s.drafts.size()), core_->config().max_draft_rows, room});
  int32_t acceptable = 0;
  if (config_->accept_drafts) {
    // The last draft of a sparse sequence is lookahead-only, so that a row at the next position always exists.
    acceptable = std::clamp(sparse ? drafts - 1 : drafts, 0, config_->draft_tokens);
  }
  if (!sparse && core_->config().dense_blocks >= core_->sequence(s.index).max_blocks)
    drafts = acceptable;  // no lookahead needed
  return {.sequence = s.index, .rows = 1 + drafts, .verified = 1 + acceptable};
}

void DecodeStep::run(std::span<EngineSequence* const> batch, std::vector<std::vector<Sampled>>& sampled) {
  const auto begin = Clock::now();
  steps_.clear(), tokens_.clear(), first_row_.clear();
  for (const EngineSequence* s : batch) {
    steps_.push_back(shape_of(*s));
    first_row_.push_back(static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(s->tokens.back());
    tokens_.insert(tokens_.end(), s->drafts.begin(), s->drafts.begin() + (steps_.back().rows - 1));
  }
  core_->begin_step(steps_);
  sequence_features_.clear();
  if (graph_) {
    graph_->run(steps_, tokens_);
    for (const auto& st : steps_) sequence_features_.push_back(graph_->features(st.sequence));
  } else {
    layers(static_cast<int64_t>(tokens_.size()));
    compute_logits(batch);
    for (const int32_t row : first_row_) sequence_features_.push_back(features_ + row * drafter_->feature_dim());
  }

  std::vector<lookahead::StepOutcome> outcomes;
  sampled.resize(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    sampled[i].clear();
    float* logits = graph_ ? nullptr : logits_ + first_logit_[i] * transformer_->config().vocab;
    sample(*batch[i], steps_[i], logits, sampled[i]);
    outcomes.push_back({.sequence = batch[i]->index, .advanced = static_cast<int32_t>(sampled[i].size())});
  }
  core_->end_step(outcomes, seconds_since(begin));
  propose(batch, outcomes);
}

// One token through the model: this loop is the whole forward pass.
void DecodeStep::layers(int64_t rows) {
  const auto positions = core_->positions();
  std::vector<int32_t> next(positions.begin(), positions.end());
  for (int32_t& p : next) ++p;
  transformer_->embed(*stream_, tokens_.data(), rows, x_);
  transformer_->rope_table(*stream_, positions.data(), rows, rope_);
  transformer_->rope_table(*stream_, next.data(), rows, rope_next_);
  const auto taps = drafter_->tap_layers();
  const int count = transformer_->config().layers;
  for (int l = 0; l <= count; ++l) {
    for (size_t t = 0; t < taps.size(); ++t) {
      if (taps[t] == l) drafter_->fold_tap(*stream_, static_cast<int>(t), x_, rows, features_);
    }
    if (l == count) break;
    transformer_->before_attention(*stream_, l, x_, rope_, rows, q_, k_, v_, q_unrotated_);
    transformer_->rotate_queries(*stream_, q_unrotated_, rope_next_, rows, q_next_);
    core_->after_qkv(l, q_, q_next_, k_, v_);
    core_->attention(l, q_, attention_);
    transformer_->after_attention(*stream_, l, attention_, rows, x_);
  }
}

// Logits of the rows that may count.
void DecodeStep::compute_logits(std::span<EngineSequence* const> batch) {
  const int64_t hidden = transformer_->config().hidden;
  first_logit_.clear();
  int64_t rows = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    first_logit_.push_back(static_cast<int32_t>(rows));
    const int64_t verified = core_->verified(steps_[i].sequence);
    stream_->copy(logit_rows_ + rows * hidden, x_ + first_row_[i] * hidden, static_cast<size_t>(verified * hidden) * 4);
    rows += verified;
  }
  transformer_->logits(*stream_, logit_rows_, rows, logits_);
  stream_->synchronize();  // they are sampled on the host
}

Sampled DecodeStep::choose(EngineSequence& s, int32_t row, bool last, float* host_logits, bool& accepted) {
  const auto vocab = static_cast<size_t>(transformer_->config().vocab);
  if (!host_logits && !s.request.on_logits && s.sampler->plain_greedy()) {
    const Sampled y{.token = graph_->best(s.index, row)};
    accepted = !last && y.token == s.drafts[static_cast<size_t>(row)];
    return y;
  }
  const std::span<float> z =
      host_logits ? std::span(host_logits + static_cast<size_t>(row) * vocab, vocab) : graph_->logits(s.index, row);
  if (s.request.on_logits) s.request.on_logits(s.output_length(), z);
  const auto position = static_cast<int64_t>(s.tokens.size());
  if (last) return s.sampler->sample(z, position);
  return s.sampler->sample_or_accept(z, position, s.drafts[static_cast<size_t>(row)], accepted);
}

// The token after x_t and, as long as drafts are accepted, those after them.
void DecodeStep::sample(EngineSequence& s, const lookahead::StepSequence& st, float* host_logits,
                        std::vector<Sampled>& out) {
  const int32_t verified = core_->verified(st.sequence);
  for (int32_t row = 0; row < verified; ++row) {
    const int32_t output = s.output_length();
    const bool last = row + 1 == verified;
    bool accepted = false;
    Sampled y = choose(s, row, last, host_logits, accepted);
    if (y.token < 0) {  // some token stands in until the step is over, and the sequence with it
      s.error = broken_logits();
      y.token = 0;
    }
    if (output < static_cast<int32_t>(s.request.forced.size())) {
      y.token = s.request.forced[static_cast<size_t>(output)];
      accepted = !last && y.token == s.drafts[static_cast<size_t>(row)];
    }
    s.sampler->append(y.token);
    s.tokens.push_back(y.token);
    out.push_back(std::move(y));
    s.stats.accepted += accepted;
    if (!accepted || s.ended() || !s.error.ok()) break;
  }
  // Drafts whose position was reached, and the leading ones among them that were right.
  const auto reached = std::min(out.size(), static_cast<size_t>(st.rows - 1));
  size_t right = 0;
  while (right < reached && s.drafts[right] == out[right].token) ++right;
  s.stats.proposed += st.rows - 1;
  s.stats.compared += static_cast<int64_t>(std::min(reached, right + 1));
  s.stats.right += static_cast<int64_t>(right);
  ++s.stats.steps;
  s.stats.sparse_steps += core_->sequence(s.index).sparse;
  if (reached > 0) drafter_->judge(s.index, static_cast<int32_t>(reached), static_cast<int32_t>(right));
}

void DecodeStep::propose(std::span<EngineSequence* const> batch, std::span<const lookahead::StepOutcome> outcomes) {
  const auto begin = Clock::now();
  const int32_t most = core_->config().max_draft_rows;
  std::vector<draft::ProposeItem> items;
  for (size_t i = 0; i < batch.size(); ++i) {
    EngineSequence& s = *batch[i];
    s.drafts.assign(static_cast<size_t>(most), 0);
    items.push_back({.sequence = s.index,
                     .history = s.tokens,
                     .first_position = static_cast<int32_t>(s.tokens.size()) - 1 - outcomes[i].advanced,
                     .rows = outcomes[i].advanced,
                     .features = sequence_features_[i],
                     .want = most,
                     .drafts = s.drafts.data()});
  }
  drafter_->propose(*stream_, items);
  for (size_t i = 0; i < batch.size(); ++i) batch[i]->drafts.resize(static_cast<size_t>(items[i].count));
  propose_seconds_ += seconds_since(begin);
}

void DecodeStep::propose_after_prefill(EngineSequence& s, const float* features) {
  const int32_t most = core_->config().max_draft_rows;
  s.drafts.assign(static_cast<size_t>(most), 0);
  draft::ProposeItem item{.sequence = s.index,
                          .history = s.tokens,
                          .first_position = s.prompt_length() - 1,
                          .rows = 1,
                          .features = features,
                          .want = most,
                          .drafts = s.drafts.data()};
  drafter_->propose(*stream_, {&item, 1});
  s.drafts.resize(static_cast<size_t>(item.count));
}

}  // namespace oasis::engine
