#include "oasis/model/device_weights.h"

#include <algorithm>

#include "oasis/base/numeric.h"
#include "oasis/kernels/matmul/matmul.h"

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

Result<const void*> DeviceWeights::copy(const void* host, std::span<const std::byte> bytes) {
  OASIS_ASSIGN_OR_RETURN(Buffer buffer, device_->allocate(bytes.size()));
  device_->foreground().copy(buffer.data(), bytes.data(), bytes.size());
  bytes_ += static_cast<int64_t>(bytes.size());
  return static_cast<const void*>(copies_.emplace(host, std::move(buffer)).first->second.data());
}

Result<WeightView> DeviceWeights::upload(const WeightView& view) {
  if (device_->backend() == Backend::kCpu || !view) return view;
  WeightView out = view;
  if (out.type != DType::kF32) out.type = DType::kBF16;
  if (const auto it = copies_.find(view.data); it != copies_.end()) {
    out.data = it->second.data();
    return out;
  }
  if (view.type == out.type) {
    const auto bytes = static_cast<size_t>(view.rows * view.row_bytes());
    OASIS_ASSIGN_OR_RETURN(out.data, copy(view.data, {static_cast<const std::byte*>(view.data), bytes}));
  } else {
    const std::vector<bf16> rows = to_bf16_rows(view);
    OASIS_ASSIGN_OR_RETURN(out.data, copy(view.data, std::as_bytes(std::span(rows))));
  }
  return out;
}

Result<std::span<const float>> DeviceWeights::upload(std::span<const float> values) {
  if (device_->backend() == Backend::kCpu || values.empty()) return values;
  if (const auto it = copies_.find(values.data()); it != copies_.end()) {
    return std::span<const float>(it->second.as<float>(), values.size());
  }
  OASIS_ASSIGN_OR_RETURN(const void* data, copy(values.data(), std::as_bytes(values)));
  return std::span<const float>(static_cast<const float*>(data), values.size());
}

Result<DeviceWeights> DeviceWeights::create(Device& device, const ModelWeights& weights) {
  DeviceWeights out(device);
  out.weights_ = weights;
  ModelWeights& w = out.weights_;
  OASIS_ASSIGN_OR_RETURN(w.embed, out.upload(w.embed));
  OASIS_ASSIGN_OR_RETURN(w.lm_head, out.upload(w.lm_head));
  OASIS_ASSIGN_OR_RETURN(w.output_norm, out.upload(w.output_norm));
  for (LayerWeights& layer : w.layers) {
    for (WeightView* view : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      OASIS_ASSIGN_OR_RETURN(*view, out.upload(*view));
    }
    for (std::span<const float>* norm : {&layer.attn_norm, &layer.ffn_norm, &layer.q_norm, &layer.k_norm}) {
      OASIS_ASSIGN_OR_RETURN(*norm, out.upload(*norm));
    }
  }
  return out;
}

}  // namespace oasis::model
