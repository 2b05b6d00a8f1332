// The oracle: products in fp64 on weights unpacked by code of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/dtype.h"

namespace oasis::kernels {

// Row `row` of w, one value at a time from the description of the formats.
std::vector<double> weight_row_ref(const WeightView& w, int64_t row);

// How the activations of a row are held, and what that may cost.
enum class ActivationsRef { kExact, kBf16, kInt8Blocks, kInt16Blocks };
struct ProductRef {
  double value;      // x . w
  double magnitude;  // sum of |x| |w|
  double tolerance;  // of `value`, where every activation and weight is off by half a unit in its last place
  double deviation;  // standard deviation of `value`, where these errors are independent and uniform
};
ProductRef product_ref(const float* x, const std::vector<double>& w, ActivationsRef activations, bool bf16_weights);

}  // namespace oasis::kernels
