#pragma once

#include <vector>

namespace oasis::kernels {

// Quest's score in fp64, head by head: for every row, sum over the query heads of the group of sum_i q_i * corner_i,
// the upper corner where q_i is positive, the lower one where it is negative (= max(q_i * upper_i, q_i * lower_i) in a
// box that rounding has not turned inside out); the largest over the rows. `magnitude` gets the largest sum of |terms|,
// by which a rounding error is judged.
double score_ref(const std::vector<std::vector<std::vector<double>>>& q,  // [row][query head][d]
                 const std::vector<double>& upper, const std::vector<double>& lower, double& magnitude);

}  // namespace oasis::kernels
