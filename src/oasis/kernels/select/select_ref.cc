#include "oasis/kernels/select/select_ref.h"

#include <algorithm>
#include <tuple>

namespace oasis::kernels {
namespace {

void join_sealed(RefHead& head, const RefStep& step) {
  while (!head.open.empty() && *head.open.begin() < step.candidates) {
    head.residents[*head.open.begin()] = step.t;
    head.open.erase(head.open.begin());
  }
}

void evict_down_to_r(RefHead& head, const RefStep& step, const std::set<int32_t>& kept) {
  while (static_cast<int32_t>(head.residents.size()) > step.r) {
    std::set<std::pair<int32_t, int32_t>> by_age;  // (last predicted, block)
    for (const auto& [block, last] : head.residents) {
      if (!kept.contains(block)) by_age.emplace(last, block);
    }
    head.residents.erase(by_age.begin()->second);
  }
}

double step_spread(const std::vector<float>& scores) {
  const size_t n = scores.size();
  return n == 0 ? 0 : double{scores[n / 4]} - double{scores[3 * n / 4]};
}

}  // namespace

RefOutcome select_ref(RefHead& head, const RefStep& step) {
  RefOutcome out;
  const std::set<int32_t> p(step.p.begin(), step.p.end());
  join_sealed(head, step);

  std::vector<size_t> miss_ranks;
  for (size_t rank = 0; rank < step.p.size(); ++rank) {
    auto found = head.residents.find(step.p[rank]);
    if (found == head.residents.end()) {
      miss_ranks.push_back(rank);
    } else {
      found->second = step.t;
      ++out.hits;
    }
  }
  out.misses = static_cast<int32_t>(miss_ranks.size());

  if (const double now = step_spread(step.scores); now > 0) {
    head.spread = head.spread > 0 ? head.spread * 15 / 16 + now / 16 : now;
  }
  const bool adaptive = step.threshold > -1e300;
  for (size_t i = 0; i < miss_ranks.size(); ++i) {
    const int32_t block = step.p[miss_ranks[i]];
    const bool none_yet = out.admitted.empty();
    bool far_enough = true;
    if (adaptive) {
      double margin = double{step.scores[miss_ranks[i]]} - double{step.scores.back()};
      if (head.spread > 0) margin /= head.spread;
      far_enough = margin >= step.threshold;
    }
    const bool absent = step.absent.contains(block) && !step.wait_for_absent;
    if (absent && static_cast<int32_t>(i) < step.cap && (far_enough || i == 0)) out.wanted.push_back(block);

    const bool under_cap = static_cast<int32_t>(out.admitted.size()) < step.cap;
    if (!under_cap || !(far_enough || none_yet)) {
      ++out.refused;
    } else if (absent) {
      ++out.refused_absent;
    } else if (step.budget && *step.budget <= 0 && !none_yet) {
      ++out.refused;
    } else {
      if (step.budget) --*step.budget;
      out.admitted.push_back(block);
      head.residents[block] = step.t;
    }
  }
  evict_down_to_r(head, step, p);

  for (int32_t block = step.candidates; block < step.open_end; ++block) head.open.insert(block);

  std::set<int32_t> attended;
  std::set<std::tuple<int32_t, int32_t>> others;  // by last predicted, then block: fillers come from the end
  for (const auto& [block, last] : head.residents) {
    if (p.contains(block)) {
      attended.insert(block);
    } else {
      others.emplace(last, block);
    }
  }
  const size_t enough = static_cast<size_t>(std::min(step.k, step.candidates));
  while (attended.size() < enough && !others.empty()) {
    attended.insert(std::get<1>(*others.rbegin()));
    others.erase(std::prev(others.end()));
  }
  for (int32_t block = step.candidates; block < step.open_end; ++block) attended.insert(block);
  out.list.assign(attended.begin(), attended.end());
  return out;
}

RefOutcome demand_ref(RefHead& head, const RefStep& step) {
  RefOutcome out;
  const std::set<int32_t> t(step.p.begin(), step.p.end());
  for (const int32_t block : step.p) {
    if (head.open.contains(block)) continue;
    if (head.residents.contains(block)) {
      ++out.hits;
    } else {
      ++out.misses;
      out.admitted.push_back(block);
    }
    head.residents[block] = step.t;
  }
  evict_down_to_r(head, step, t);
  return out;
}

}  // namespace oasis::kernels
