#include "oasis/engine/graph_step.h"

#include <algorithm>
#include <map>

#include "oasis/device/carver.h"
#include "oasis/kernels/argmax/argmax.h"
#include "oasis/kernels/matmul/matmul_cuda.h"
#include "oasis/lookahead/cuda/device_core.h"

namespace oasis::engine {
namespace {

using cuda::CudaStream;
using lookahead::DeviceCore;
using lookahead::StepKind;
using lookahead::StepSequence;

// Multiprocessors that the transfer takes and the foreground leaves it (docs/decisions.md).
constexpr int kTransferSms = 4, kReservedSms = 8;

// Steps of one key share a graph: their shapes are equal.
struct GraphKey {
  StepKind kind;
  int32_t verified = 1;  // rows an item that get logits
  auto operator<=>(const GraphKey&) const = default;
};

int32_t bucket_of(int32_t batch, int32_t most) {
  int32_t b = 1;
  while (b < batch && b < 8) b *= 2;
  if (batch > 8) b = (batch + 7) / 8 * 8;
  return std::min(b, most);
}

class CudaGraphStep : public GraphStep {
 public:
  CudaGraphStep(Device& device, model::Transformer& transformer, draft::Drafter& drafter, const EngineConfig& config,
                std::unique_ptr<DeviceCore> core)
      : device_(device),
        stream_(cuda::as_cuda(device.foreground())),
        transformer_(transformer),
        model_(transformer.config()),
        width_(int64_t{model_.heads} * model_.head_dim),
        qkv_width_(width_ + 2 * int64_t{model_.kv_heads} * model_.head_dim),
        weights_(transformer.device_weights().weights()),
        drafter_(drafter),
        config_(config),
        core_(std::move(core)) {}
  ~CudaGraphStep() override {
    for (auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph);
    stream_.set_sms(cuda::device_sms());
  }
  Status allocate(int32_t most_rows);

  void run(std::span<const StepSequence> steps, std::span<const int32_t> tokens) override;
  int32_t best(int32_t sequence, int32_t row) const override {
    return best_home_.as<int32_t>()[sequence * key_.verified + row];
  }
  std::span<float> logits(int32_t sequence, int32_t row) override {
    const auto vocab = static_cast<size_t>(model_.vocab);
    stream_.copy(logits_home_.data(), logits_ + (int64_t{sequence} * key_.verified + row) * model_.vocab, vocab * 4);
    return {logits_home_.as<float>(), vocab};
  }
  std::vector<lookahead::TimelineSpan> timeline() override { return core_->timeline(); }
  const float* features(int32_t sequence) const override {
    return features_ + int64_t{sequence} * key_.kind.rows * drafter_.feature_dim();
  }

 private:
  void capture(const GraphKey& key);
  void chain(const GraphKey& key);
  void layer(const GraphKey& key, int l, int64_t rows);
  void project_qkv(const model::LayerWeights& w, int64_t rows);
  void output_and_mlp(const model::LayerWeights& w, int64_t rows);
  void logits(const GraphKey& key);
  void fold_taps(int l, int64_t rows);

  Device& device_;
  CudaStream& stream_;
  model::Transformer& transformer_;
  const model::ModelConfig& model_;
  const int64_t width_, qkv_width_;  // of a row's queries; with its keys and values
  const model::ModelWeights& weights_;
  draft::Drafter& drafter_;
  const EngineConfig& config_;
  std::unique_ptr<DeviceCore> core_;
  std::map<GraphKey, cudaGraphExec_t> graphs_;
  GraphKey key_;

  Buffer memory_, tokens_home_, best_home_, logits_home_;
  int64_t logit_rows_ = 0;
  int32_t *tokens_ = nullptr, *best_ = nullptr;
  float *x_ = nullptr, *qkv_ = nullptr, *q_ = nullptr, *attention_ = nullptr, *gate_up_ = nullptr;
  float *rope_ = nullptr, *rope_next_ = nullptr, *features_ = nullptr, *logits_ = nullptr;
  uint16_t* narrow_ = nullptr;  // the input of the next product
};

Status CudaGraphStep::allocate(int32_t most_rows) {
  const auto& m = model_;
  const int64_t sequences = config_.max_sequences, rows = sequences * most_rows;
  const int64_t width = width_;
  logit_rows_ = config_.accept_drafts ? rows : sequences;
  const auto lay_out = [&](std::byte* base) {
    Carver carve(base);
    const auto take = [&](auto*& piece, int64_t count) { carve.take(piece, count); };
    take(tokens_, rows);
    take(best_, logit_rows_);
    take(x_, rows * m.hidden);
    take(qkv_, rows * qkv_width_);
    take(q_, rows * width);
    take(attention_, rows * width);
    take(gate_up_, rows * 2 * m.intermediate);
    take(rope_, rows * m.head_dim);
    take(rope_next_, sequences * m.head_dim);
    take(features_, rows * drafter_.feature_dim());
    take(logits_, logit_rows_ * m.vocab);
    take(narrow_, rows * std::max<int64_t>({m.hidden, width, m.intermediate}));
    return carve.bytes();
  };
  OASIS_ASSIGN_OR_RETURN(memory_, device_.allocate(static_cast<size_t>(lay_out(nullptr))));
  lay_out(memory_.data());
  OASIS_ASSIGN_OR_RETURN(tokens_home_, device_.allocate_pinned(static_cast<size_t>(rows) * 4));
  OASIS_ASSIGN_OR_RETURN(best_home_, device_.allocate_pinned(static_cast<size_t>(logit_rows_) * 4));
  OASIS_ASSIGN_OR_RETURN(logits_home_, device_.allocate_pinned(static_cast<size_t>(m.vocab) * 4));
  return {};
}

void CudaGraphStep::run(std::span<const StepSequence> steps, std::span<const int32_t> tokens) {
  int32_t batch = 0, rows = 1, verified = 1;
  for (const StepSequence& st : steps) {
    batch = std::max(batch, st.sequence + 1);
    rows = std::max(rows, st.rows);
    verified = std::max(verified, st.verified);
  }
  batch = bucket_of(batch, config_.max_sequences);
  key_ = {.kind = core_->kind_of(batch, rows), .verified = verified};
  auto* ids = tokens_home_.as<int32_t>();
  std::fill_n(ids, batch * rows, 0);
  size_t next = 0;
  for (const StepSequence& st : steps) {
    for (int32_t r = 0; r < st.rows; ++r) ids[st.sequence * rows + r] = tokens[next++];
  }
  OASIS_CUDA_CHECK(
      cudaMemcpyAsync(tokens_, ids, static_cast<size_t>(batch * rows) * 4, cudaMemcpyHostToDevice, stream_.handle()));
  core_->begin(stream_, steps, key_.kind);
  const auto graph = graphs_.find(key_);
  if (graph != graphs_.end()) {
    core_->start_transfer(key_.kind);
    OASIS_CUDA_CHECK(cudaGraphLaunch(graph->second, stream_.handle()));
  } else {
    // What a kernel's first launch loads and allocates may wait for everything that runs, so nothing may run that waits
    // for this step: its transfer comes after it.
    core_->drain();
    chain(key_);
    core_->start_transfer(key_.kind);
  }
  stream_.synchronize();
  core_->end();
  if (graph == graphs_.end() && !config_.serial) capture(key_);
}

// After the first step of a kind, which ran its kernels one by one.
void CudaGraphStep::capture(const GraphKey& key) {
  core_->drain();
  cudaGraph_t captured = nullptr;
  OASIS_CUDA_CHECK(cudaStreamBeginCapture(stream_.handle(), cudaStreamCaptureModeThreadLocal));
  chain(key);
  OASIS_CUDA_CHECK(cudaStreamEndCapture(stream_.handle(), &captured));
  cudaGraphExec_t graph = nullptr;
  OASIS_CUDA_CHECK(cudaGraphInstantiate(&graph, captured, 0));
  OASIS_CUDA_CHECK(cudaGraphDestroy(captured));
  graphs_.emplace(key, graph);
  OASIS_CUDA_CHECK(cudaGraphUpload(graph, stream_.handle()));
  stream_.synchronize();
}

// One token through the model: this chain is the whole forward pass.
void CudaGraphStep::chain(const GraphKey& key) {
  const StepKind& kind = key.kind;
  const int64_t rows = int64_t{kind.batch} * kind.rows;
  core_->prologue(stream_, kind);
  transformer_.embed(stream_, tokens_, rows, x_);
  transformer_.rope_table(stream_, core_->positions(), rows, rope_);
  transformer_.rope_table(stream_, core_->next_positions(), kind.batch, rope_next_);
  core_->mark(stream_, kind, "embedding");
  for (int l = 0; l < model_.layers; ++l) {
    fold_taps(l, rows);
    layer(key, l, rows);
  }
  fold_taps(model_.layers, rows);
  const int64_t count = int64_t{kind.batch} * key.verified;
  logits(key);
  kernels::argmax_cuda(stream_, {.x = logits_, .rows = count, .cols = model_.vocab, .best = best_});
  core_->mark(stream_, kind, "logits");
  OASIS_CUDA_CHECK(cudaMemcpyAsync(best_home_.data(), best_, static_cast<size_t>(count) * 4, cudaMemcpyDeviceToHost,
                                   stream_.handle()));
  core_->epilogue(stream_, kind);
}

void CudaGraphStep::fold_taps(int l, int64_t rows) {
  const auto taps = drafter_.tap_layers();
  for (size_t t = 0; t < taps.size(); ++t) {
    if (taps[t] == l) drafter_.fold_tap(stream_, static_cast<int>(t), x_, rows, features_);
  }
}

void CudaGraphStep::layer(const GraphKey& key, int l, int64_t rows) {
  const auto& m = model_;
  const model::LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
  project_qkv(w, rows);
  core_->mark(stream_, key.kind, "QKV", l);
  core_->after_qkv(stream_, key.kind, l,
                   {.qkv = qkv_,
                    .q_norm = w.q_norm.empty() ? nullptr : w.q_norm.data(),
                    .k_norm = w.k_norm.empty() ? nullptr : w.k_norm.data(),
                    .eps = m.rms_eps,
                    .interleaved = m.rope.interleaved,
                    .rope = rope_,
                    .rope_next = rope_next_,
                    .q = q_});
  core_->mark(stream_, key.kind, "append, predict", l);
  core_->attention(stream_, key.kind, l, q_, attention_);
  core_->mark(stream_, key.kind, "attention", l);
  core_->finish_layer(stream_, key.kind, l);
  core_->mark(stream_, key.kind, "select", l);
  output_and_mlp(w, rows);
  core_->mark(stream_, key.kind, "output, MLP", l);
}

void CudaGraphStep::project_qkv(const model::LayerWeights& w, int64_t rows) {
  const auto& m = model_;
  kernels::norm_to_bf16(stream_, x_, w.attn_norm.data(), m.rms_eps, m.hidden, rows, 1, 1, narrow_);
  kernels::gemm_bf16(stream_, narrow_, rows, m.hidden, w.q.data, qkv_width_, qkv_, qkv_width_, false);
}

void CudaGraphStep::output_and_mlp(const model::LayerWeights& w, int64_t rows) {
  const auto& m = model_;
  const int64_t width = width_;
  kernels::round_rows(stream_, attention_, width, rows, width, narrow_);
  kernels::gemm_bf16(stream_, narrow_, rows, width, w.o.data, m.hidden, x_, m.hidden, true);
  kernels::norm_to_bf16(stream_, x_, w.ffn_norm.data(), m.rms_eps, m.hidden, rows, 1, 1, narrow_);
  kernels::gemm_bf16(stream_, narrow_, rows, m.hidden, w.gate.data, 2 * int64_t{m.intermediate}, gate_up_,
                     2 * int64_t{m.intermediate}, false);
  kernels::swiglu_to_bf16(stream_, gate_up_, rows, m.intermediate, narrow_);
  kernels::gemm_bf16(stream_, narrow_, rows, m.intermediate, w.down.data, m.hidden, x_, m.hidden, true);
}

void CudaGraphStep::logits(const GraphKey& key) {
  const auto& m = model_;
  const int64_t count = int64_t{key.kind.batch} * key.verified;
  kernels::norm_to_bf16(stream_, x_, weights_.output_norm.data(), m.rms_eps, m.hidden, count, key.verified,
                        key.kind.rows, narrow_);
  kernels::gemm_bf16(stream_, narrow_, count, m.hidden, weights_.lm_head.data, m.vocab, logits_, m.vocab, false);
}

}  // namespace

Result<std::unique_ptr<GraphStep>> make_graph_step(Device& device, model::Transformer& transformer,
                                                   lookahead::KvCore& core, draft::Drafter& drafter,
                                                   const EngineConfig& config) {
  const auto& m = transformer.config();
  if (device.backend() != Backend::kCuda || m.head_dim % 32 != 0 || m.hidden % 8 != 0 || m.intermediate % 8 != 0) {
    return std::unique_ptr<GraphStep>();
  }
  auto device_core = DeviceCore::create(device, core, kTransferSms);
  if (!device_core.ok()) {
    if (device_core.status().code() == StatusCode::kUnsupported) return std::unique_ptr<GraphStep>();
    return device_core.status();
  }
  auto& stream = cuda::as_cuda(device.foreground());
  stream.set_sms(cuda::device_sms() - kReservedSms);
  auto step = std::make_unique<CudaGraphStep>(device, transformer, drafter, config, std::move(*device_core));
  OASIS_RETURN_IF_ERROR(step->allocate(1 + core.config().max_draft_rows));
  return std::unique_ptr<GraphStep>(std::move(step));
}

}  // namespace oasis::engine
