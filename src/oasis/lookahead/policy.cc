#include "oasis/lookahead/policy.h"

#include <algorithm>

namespace oasis::lookahead {
namespace {

// The paper's: at most C misses a head and token advanced.
class BoundedPolicy : public FetchPolicy {
 public:
  explicit BoundedPolicy(int32_t cap) : cap_(cap) {}
  FetchMode mode() const override { return FetchMode::kBounded; }
  FetchLimits limits(int32_t advanced) const override { return {.cap = cap_ * std::max(1, advanced)}; }

 private:
  int32_t cap_;
};

// Everything predicted comes in ahead, everything missed on the critical path.
class ExactPolicy : public FetchPolicy {
 public:
  explicit ExactPolicy(int32_t attend) : attend_(attend) {}
  FetchMode mode() const override { return FetchMode::kExact; }
  FetchLimits limits(int32_t) const override { return {.cap = attend_, .wait_for_absent = true, .demand = true}; }

 private:
  int32_t attend_;
};

// The misses that matter most, as many as the link carries in a step: a threshold on the margin over the head's K-th
// score, moved once a step so that the budget is just used up. budget = link rate x (step - wait), so waiting never
// feeds itself.
class AdaptivePolicy : public FetchPolicy {
 public:
  explicit AdaptivePolicy(const CoreConfig& c)
      : attend_(c.attend_blocks), initial_budget_(int64_t{c.cap()} * c.shape.layers * c.shape.kv_heads) {}
  FetchMode mode() const override { return FetchMode::kAdaptive; }
  FetchLimits limits(int32_t) const override { return {.cap = attend_, .margin_threshold = threshold_}; }
  int64_t* budget() override { return &left_; }
  void begin_step() override { left_ = budget_ > 0 ? budget_ : initial_budget_; }
  void end_step(const StepFeedback& f) override {
    if (f.fetched > 0 && f.transfer_seconds > 0) {
      const double rate = static_cast<double>(f.fetched) / f.transfer_seconds;  // block-heads a second
      rate_ = rate_ > 0 ? rate_ + kWeight * (rate - rate_) : rate;
    }
    if (rate_ > 0)
      budget_ = std::max<int64_t>(1, static_cast<int64_t>(rate_ * std::max(0.0, f.seconds - f.wait_seconds)));
    // All of the budget used and something refused: be choosier; a good part left over: less so.
    if (left_ <= 0 && f.refused > 0) {
      threshold_ = std::min(kMaxThreshold, threshold_ + kStep);
    } else if (budget_ > 0 && static_cast<double>(left_) > kSlack * static_cast<double>(budget_)) {
      threshold_ = std::max(0.0f, threshold_ - kStep);
    }
  }

 private:
  static constexpr double kWeight = 0.1, kSlack = 0.1;
  static constexpr float kStep = 0.02f, kMaxThreshold = 4.0f;  // in units of the head's spread of scores
  int32_t attend_;
  int64_t initial_budget_;
  int64_t budget_ = 0, left_ = 0;
  double rate_ = 0;
  float threshold_ = 0;
};

}  // namespace

std::unique_ptr<FetchPolicy> make_policy(const CoreConfig& c) {
  switch (c.fetch) {
    case FetchMode::kBounded:
      return std::make_unique<BoundedPolicy>(c.cap());
    case FetchMode::kExact:
      return std::make_unique<ExactPolicy>(c.attend_blocks);
    case FetchMode::kAdaptive:
      return std::make_unique<AdaptivePolicy>(c);
  }
  OASIS_CHECK(false, "unknown fetch mode {}", static_cast<int>(c.fetch));
}

}  // namespace oasis::lookahead
