#include "oasis/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace oasis::model {

namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended.
double llama3(double frequency, const RopeConfig& rope) {
  const double wavelength = kTwoPi / frequency, original = static_cast<double>(rope.original_context);
  const double low = rope.low_freq_factor, high = rope.high_freq_factor;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / rope.factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN (arXiv 2309.00071): the pair at which a wave makes `rotations` turns over the original context.
double correction_dim(double rotations, const RopeConfig& rope, int head_dim) {
  return head_dim * std::log(static_cast<double>(rope.original_context) / (rotations * kTwoPi)) /
         (2 * std::log(static_cast<double>(rope.theta)));
}

void apply_yarn(const RopeConfig& rope, int head_dim, std::vector<double>& frequencies) {
  const double low = std::max(std::floor(correction_dim(rope.beta_fast, rope, head_dim)), 0.0);
  double high = std::min(std::ceil(correction_dim(rope.beta_slow, rope, head_dim)), head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

bool in_range(double value, double low, double high) { return value >= low && value <= high; }  // false for NaN

}  // namespace

Status validate(const RopeConfig& rope, int head_dim) {
  if (!(rope.theta > 1.0f && rope.theta <= 1e12f))
    return invalid_argument("rope theta {} is outside (1, 1e12]", rope.theta);
  if (rope.scaling != RopeScaling::kNone) {
    if (!in_range(rope.factor, 1, 1024)) return invalid_argument("rope factor {} is outside [1, 1024]", rope.factor);
    if (rope.original_context < 1 || rope.original_context > (int64_t{1} << 24))
      return invalid_argument("rope original context {} is outside [1, 2^24]", rope.original_context);
  }
  if (rope.scaling == RopeScaling::kLlama3 &&
      !(rope.low_freq_factor > 0 && rope.low_freq_factor < rope.high_freq_factor && rope.high_freq_factor <= 1e6f))
    return invalid_argument("rope low_freq_factor {} and high_freq_factor {} must rise and be positive",
                            rope.low_freq_factor, rope.high_freq_factor);
  if (rope.scaling == RopeScaling::kYarn) {
    if (!in_range(rope.attention_factor, 0, 100))
      return invalid_argument("rope attention_factor {} is outside [0, 100]", rope.attention_factor);
    if (!(rope.beta_slow > 0 && rope.beta_slow < rope.beta_fast && rope.beta_fast <= 1e6f))
      return invalid_argument("rope beta_slow {} and beta_fast {} must rise and be positive", rope.beta_slow,
                              rope.beta_fast);
  }
  if (!rope.freq_divisors.empty() && rope.freq_divisors.size() != static_cast<size_t>(head_dim / 2))
    return invalid_argument("{} rope frequency divisors for head_dim {}: there must be {}", rope.freq_divisors.size(),
                            head_dim, head_dim / 2);
  for (float divisor : rope.freq_divisors)
    if (!in_range(divisor, 1e-6, 1e6)) return invalid_argument("rope frequency divisor {} is not sane", divisor);
  return {};
}

std::vector<double> rope_frequencies(const RopeConfig& rope, int head_dim) {
  std::vector<double> frequencies(head_dim / 2);
  for (int j = 0; j < head_dim / 2; ++j) {
    frequencies[j] = std::pow(static_cast<double>(rope.theta), -2.0 * j / head_dim);
    if (!rope.freq_divisors.empty()) frequencies[j] /= rope.freq_divisors[j];
    if (rope.scaling == RopeScaling::kLlama3) frequencies[j] = llama3(frequencies[j], rope);
  }
  if (rope.scaling == RopeScaling::kYarn) apply_yarn(rope, head_dim, frequencies);
  return frequencies;
}

float rope_attention_scale(const RopeConfig& rope) {
  if (rope.scaling != RopeScaling::kYarn) return 1.0f;
  if (rope.attention_factor > 0) return rope.attention_factor;
  return static_cast<float>(0.1 * std::log(static_cast<double>(rope.factor)) + 1.0);
}

}  // namespace oasis::model
