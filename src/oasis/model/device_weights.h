// A model's weights where its device computes. The CPU uses them as they lie in their mapped files; a GPU gets a copy
// of each matrix in bf16, quantised ones unpacked on the way. There q, k and v of a layer lie one after another, and so
// do gate and up, so that each group can be one product.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "oasis/device/device.h"
#include "oasis/model/checkpoint.h"

namespace oasis::model {

class DeviceWeights {
 public:
  // Borrows the device. On the CPU the views stay those of the checkpoint, which must outlive this. Fails with the
  // bytes that did not fit.
  static Result<DeviceWeights> create(Device& device, const Checkpoint& checkpoint);

  const ModelWeights& weights() const { return weights_; }
  int64_t bytes() const { return bytes_; }  // of the device's copies
  // The device's copy of further weights (a draft head's), made once for each address: what a head borrows from its
  // target is shared.
  Result<WeightView> upload(const WeightView& view);
  Result<std::span<const float>> upload(std::span<const float> values);

 private:
  DeviceWeights(Device& device, const Checkpoint& checkpoint) : device_(&device), checkpoint_(&checkpoint) {}
  Result<std::byte*> take(size_t bytes);
  void fill(const WeightView& host, std::byte* to);
  Status upload_together(std::span<WeightView* const> views);

  Device* device_;
  const Checkpoint* checkpoint_;
  ModelWeights weights_;
  std::map<const void*, std::byte*> copies_;  // by host address
  std::vector<Buffer> memory_;
  int64_t bytes_ = 0;
};

}  // namespace oasis::model
