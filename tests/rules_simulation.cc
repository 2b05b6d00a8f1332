#include "rules_simulation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace oasis::rules {
namespace {

using Blocks = std::vector<int32_t>;

bool contains(const Blocks& blocks, int32_t block) {
  return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

// All candidates, best first: higher score, then lower block; NaN at the end; block 0 in front where it is pinned.
Blocks rank_order(const std::vector<float>& scores, bool pin_first) {
  Blocks order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int32_t b) { return scores[static_cast<size_t>(b)]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (pin_first && (a == 0 || b == 0)) return a == 0 && b != 0;
    if (std::isnan(score(a)) != std::isnan(score(b))) return std::isnan(score(b));
    if (score(a) > score(b)) return true;
    if (score(a) < score(b)) return false;
    return a < b;
  });
  return order;
}

Blocks first_of(Blocks order, int32_t n) {
  if (static_cast<int32_t>(order.size()) > n) order.resize(static_cast<size_t>(n));
  return order;
}

class Simulation {
 public:
  explicit Simulation(const Trace& trace) : trace_(trace) {}

  Result<Simulated> run() {
    Simulated out;
    OASIS_ASSIGN_OR_RETURN(out.start, start());
    for (const TraceStep& step : trace_.steps) {
      OASIS_ASSIGN_OR_RETURN(StepResult result, this->step(step));
      out.steps.push_back(std::move(result));
    }
    return out;
  }

 private:
  int32_t block_of(int32_t position) const { return position / trace_.block_size; }

  Result<StepResult> start() {
    const TraceStart& s = trace_.start;
    if (static_cast<int32_t>(s.scores.size()) != block_of(s.position + 1)) {
      return invalid_argument("start: {} scores, position {} has {} candidates", s.scores.size(), s.position,
                              block_of(s.position + 1));
    }
    const Blocks order = rank_order(s.scores, trace_.pin_first);
    for (int32_t rank = 0; rank < static_cast<int32_t>(order.size()) && rank < trace_.r; ++rank) {
      residents_.push_back({order[static_cast<size_t>(rank)], rank < trace_.k ? s.last_predicted : -2 - rank});
    }
    sealed_ = static_cast<int32_t>(s.scores.size());
    position_ = s.position;
    StepResult out;
    out.predicted = first_of(order, trace_.k);
    leave(out);
    return out;
  }

  Result<StepResult> step(const TraceStep& s) {
    if (s.position != position_ + s.advanced) {
      return invalid_argument("step {}: position {} after {} and {} tokens", s.t, s.position, position_, s.advanced);
    }
    if (s.advanced < 1 || s.advanced > trace_.accepted_at_most + 1) {
      return invalid_argument("step {}: advanced {}, at most {} are possible", s.t, s.advanced,
                              trace_.accepted_at_most + 1);
    }
    position_ = s.position;
    const int32_t candidates = block_of(s.position + 1);
    if (static_cast<int32_t>(s.scores.size()) != candidates) {
      return invalid_argument("step {}: {} scores for {} candidates", s.t, s.scores.size(), candidates);
    }
    StepResult out;
    if (trace_.exact) OASIS_RETURN_IF_ERROR(demand(s, out));
    for (; sealed_ < candidates; ++sealed_) residents_.push_back({sealed_, s.t});  // (1)
    out.predicted = first_of(rank_order(s.scores, trace_.pin_first), trace_.k);
    Blocks misses;
    for (const int32_t block : out.predicted) {  // (2)
      if (Resident* r = find(block)) {
        r->last_predicted = s.t;
      } else {
        misses.push_back(block);
      }
    }
    admit(misses, s, out);
    out.victims = evict(out.predicted);  // (4)
    leave(out);
    return out;
  }

  // (3)
  void admit(const Blocks& misses, const TraceStep& s, StepResult& out) {
    const int32_t cap = trace_.exact ? trace_.k : trace_.c * s.advanced;
    for (size_t i = 0; i < misses.size(); ++i) {
      if (!trace_.exact && contains(s.absent, misses[i])) {
        if (static_cast<int32_t>(i) < cap) out.wanted.push_back(misses[i]);
      } else if (static_cast<int32_t>(out.admitted.size()) < cap) {
        out.admitted.push_back(misses[i]);
        residents_.push_back({misses[i], s.t});
      }
    }
  }

  // T, the union of the lists of the rows that fit R, becomes resident. Blocks that are not sealed before this step
  // need nothing: they lie in open slots.
  Status demand(const TraceStep& s, StepResult& out) {
    Blocks t;
    for (const VerifiedRow& row : s.verified) {
      if (static_cast<int32_t>(row.scores.size()) != block_of(row.position)) {
        return invalid_argument("step {}: {} scores of the row at position {}", s.t, row.scores.size(), row.position);
      }
      if (out.rows_fitted == s.rows_taken) break;
      Blocks list = first_of(rank_order(row.scores, trace_.pin_first), trace_.k), grown = t;
      for (const int32_t block : list) {
        if (block < sealed_ && !contains(grown, block)) grown.push_back(block);
      }
      if (static_cast<int32_t>(grown.size()) > trace_.r) break;
      t = grown;
      ++out.rows_fitted;
      list.push_back(block_of(row.position));
      std::sort(list.begin(), list.end());
      out.row_lists.push_back(list);
    }
    if (s.rows_taken > out.rows_fitted) {
      return invalid_argument("step {}: {} rows were taken, {} fit", s.t, s.rows_taken, out.rows_fitted);
    }
    for (const int32_t block : t) {
      if (Resident* r = find(block)) {
        r->last_predicted = s.t;
      } else {
        out.demanded.push_back(block);
        residents_.push_back({block, s.t});
      }
    }
    out.demand_victims = evict(t);
    return {};
  }

  Blocks evict(const Blocks& kept) {
    Blocks victims;
    while (static_cast<int32_t>(residents_.size()) > trace_.r) {
      auto victim = residents_.end();
      for (auto r = residents_.begin(); r != residents_.end(); ++r) {
        if (contains(kept, r->block)) continue;
        const bool older = victim == residents_.end() || r->last_predicted < victim->last_predicted ||
                           (r->last_predicted == victim->last_predicted && r->block < victim->block);
        if (older) victim = r;
      }
      victims.push_back(victim->block);
      residents_.erase(victim);
    }
    return victims;
  }

  // The residents, and what the next step attends: P where resident, fillers, the blocks that its rows can lie in.
  void leave(StepResult& out) const {
    out.residents = residents_;
    std::sort(out.residents.begin(), out.residents.end(), [](auto& a, auto& b) { return a.block < b.block; });

    std::vector<Resident> fillers;
    for (const Resident& r : residents_) {
      if (contains(out.predicted, r.block)) {
        out.list.push_back(r.block);
      } else {
        fillers.push_back(r);
      }
    }
    std::sort(fillers.begin(), fillers.end(), [](auto& a, auto& b) {
      return a.last_predicted != b.last_predicted ? a.last_predicted > b.last_predicted : a.block > b.block;
    });
    for (const Resident& r : fillers) {
      if (static_cast<int32_t>(out.list.size()) >= std::min(trace_.k, sealed_)) break;
      out.list.push_back(r.block);
    }
    const int32_t last_open = std::min(block_of(position_ + 2 + 2 * trace_.accepted_at_most), trace_.max_blocks - 1);
    for (int32_t block = block_of(position_ + 1); block <= last_open; ++block) out.list.push_back(block);
    std::sort(out.list.begin(), out.list.end());
  }

  Resident* find(int32_t block) {
    for (Resident& r : residents_) {
      if (r.block == block) return &r;
    }
    return nullptr;
  }

  const Trace& trace_;
  std::vector<Resident> residents_;
  int32_t sealed_ = 0;    // blocks sealed so far: 0 .. sealed_ - 1
  int32_t position_ = 0;  // of the last x_t, or of the last token before the first step
};

}  // namespace

Result<Simulated> simulate(const Trace& trace) { return Simulation(trace).run(); }

}  // namespace oasis::rules
