#include "oasis/model/device_weights.h"

#include <algorithm>

#include "oasis/base/numeric.h"
#include "oasis/kernels/kernels.h"

namespace oasis::model {
namespace {

// Rows of a quantised or half-precision matrix as bf16.
std::vector<bf16> to_bf16_rows(const WeightView& view) {
  const int64_t elements = view.rows * view.cols;
  std::vector<bf16> out(static_cast<size_t>(elements));
  std::vector<float> row(static_cast<size_t>(view.cols));
  const auto* data = static_cast<const std::byte*>(view.data);
  for (int64_t r = 0; r < view.rows; ++r) {
    kernels::dequantize(view.type, data + r * view.row_bytes(), view.cols, row.data());
    std::transform(row.begin(), row.end(), out.begin() + r * view.cols, [](float x) { return to_bf16(x); });
  }
  return out;
}

}  // namespace

Result<std::byte*> DeviceWeights::take(size_t bytes) {
  OASIS_ASSIGN_OR_RETURN(Buffer buffer, device_->allocate(bytes));
  bytes_ += static_cast<int64_t>(bytes);
  return memory_.emplace_back(std::move(buffer)).data();
}

void DeviceWeights::fill(const WeightView& host, std::byte* to) {
  const auto bytes = static_cast<size_t>(bytes_of(DType::kBF16, host.rows * host.cols));
  if (const RandomMatrix* random = checkpoint_->placeholder(host.data)) {
    kernels::kernels_for(device_->backend())
        .fill_random(device_->foreground(), {.out = reinterpret_cast<bf16*>(to),
                                             .count = host.rows * host.cols,
                                             .seed = random->seed,
                                             .first = random->first,
                                             .half_width = random->half_width});
  } else if (host.type == DType::kBF16) {
    device_->foreground().copy(to, host.data, bytes);
  } else {
    device_->foreground().copy(to, to_bf16_rows(host).data(), bytes);
  }
  copies_[host.data] = to;
}

Result<WeightView> DeviceWeights::upload(const WeightView& view) {
  WeightView out = view;
  WeightView* const one[] = {&out};
  OASIS_RETURN_IF_ERROR(upload_together(one));
  return out;
}

// One after another in one piece of memory, unless the device has them already.
Status DeviceWeights::upload_together(std::span<WeightView* const> views) {
  if (device_->backend() == Backend::kCpu || !*views[0]) return {};
  std::byte* next = nullptr;
  if (!copies_.contains(views[0]->data)) {
    int64_t elements = 0;
    for (const WeightView* view : views) elements += view->rows * view->cols;
    OASIS_ASSIGN_OR_RETURN(next, take(static_cast<size_t>(bytes_of(DType::kBF16, elements))));
  }
  for (WeightView* view : views) {
    if (next) {
      fill(*view, next);
      next += bytes_of(DType::kBF16, view->rows * view->cols);
    }
    view->data = copies_.at(view->data);
    view->type = DType::kBF16;
  }
  return {};
}

Result<std::span<const float>> DeviceWeights::upload(std::span<const float> values) {
  if (device_->backend() == Backend::kCpu || values.empty()) return values;
  std::byte*& at = copies_[values.data()];
  if (!at) {
    OASIS_ASSIGN_OR_RETURN(at, take(values.size_bytes()));
    device_->foreground().copy(at, values.data(), values.size_bytes());
  }
  return std::span<const float>(reinterpret_cast<const float*>(at), values.size());
}

Result<DeviceWeights> DeviceWeights::create(Device& device, const Checkpoint& checkpoint) {
  DeviceWeights out(device, checkpoint);
  out.weights_ = checkpoint.weights();
  ModelWeights& w = out.weights_;
  OASIS_ASSIGN_OR_RETURN(w.embed, out.upload(w.embed));
  OASIS_ASSIGN_OR_RETURN(w.lm_head, out.upload(w.lm_head));
  OASIS_ASSIGN_OR_RETURN(w.output_norm, out.upload(w.output_norm));
  for (LayerWeights& layer : w.layers) {
    WeightView* const qkv[] = {&layer.q, &layer.k, &layer.v};
    WeightView* const gate_up[] = {&layer.gate, &layer.up};
    OASIS_RETURN_IF_ERROR(out.upload_together(qkv));
    OASIS_RETURN_IF_ERROR(out.upload_together(gate_up));
    OASIS_ASSIGN_OR_RETURN(layer.o, out.upload(layer.o));
    OASIS_ASSIGN_OR_RETURN(layer.down, out.upload(layer.down));
    for (std::span<const float>* norm : {&layer.attn_norm, &layer.ffn_norm, &layer.q_norm, &layer.k_norm}) {
      OASIS_ASSIGN_OR_RETURN(*norm, out.upload(*norm));
    }
  }
  return out;
}

}  // namespace oasis::model
