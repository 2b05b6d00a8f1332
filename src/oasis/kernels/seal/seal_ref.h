#pragma once

#include <vector>

namespace oasis::kernels {

struct RefBox {
  std::vector<double> upper, lower;  // [d]
};

// The box of `keys` [token][d], shrunk about its middle, in fp64.
RefBox seal_ref(const std::vector<std::vector<double>>& keys, double beta);

}  // namespace oasis::kernels
