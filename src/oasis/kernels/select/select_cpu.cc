#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <vector>

#include "oasis/base/status.h"
#include "oasis/kernels/select/select.h"

namespace oasis::kernels {
namespace {

constexpr int64_t kInlineSlots = 2048;  // slots of all heads: below, waking other threads costs more than it saves
constexpr float kNoThreshold = -std::numeric_limits<float>::infinity();

struct Scratch {
  std::vector<uint8_t> predicted_slot;  // [slots]: 1 = holds a block of P
  std::vector<int32_t> misses;          // ranks in P, ascending
  std::vector<uint64_t> others;         // residents outside P, as eviction keys
  std::vector<int32_t> free_slots;      // in the order they are given out
  std::vector<uint64_t> chosen;         // bit a block: listed for the next step
};

// Residents go in ascending order of (last_predicted, block) and fill the list in descending order of it.
uint64_t eviction_key(int32_t last_predicted, int32_t block) {
  return static_cast<uint64_t>(static_cast<uint32_t>(last_predicted) ^ 0x80000000u) << 32 |
         static_cast<uint32_t>(block);
}
int32_t block_of(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

bool is_present(const uint8_t* present, int32_t block) {
  if (!present) return true;
  return std::atomic_ref<uint8_t>(const_cast<uint8_t&>(present[block])).load(std::memory_order_relaxed) != 0;
}

// Takes one block-head of the step's budget if any is left, or else, with `overdraw`, all the same.
bool take(int64_t* budget, bool overdraw) {
  std::atomic_ref<int64_t> left(*budget);
  for (int64_t n = left.load(std::memory_order_relaxed); n > 0 || overdraw;) {
    if (left.compare_exchange_weak(n, n - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

// Margins of a head's predicted blocks over its K-th, in units of its running spread.
class Margins {
 public:
  Margins(const float* scores, int32_t count, float* running, float threshold)
      : scores_(scores), threshold_(threshold) {
    if (count == 0 || !scores) return;
    kth_ = scores[count - 1];
    spread_ = scores[count / 4] - scores[int64_t{3} * count / 4];
    if (!running) return;
    if (spread_ > 0) *running = *running > 0 ? *running + SelectParams::kSpreadWeight * (spread_ - *running) : spread_;
    spread_ = *running;
  }
  bool reached_by(int32_t rank) const {
    if (threshold_ == kNoThreshold) return true;
    const float above = scores_[rank] - kth_;
    return (spread_ > 0 ? above / spread_ : above) >= threshold_;
  }

 private:
  const float* scores_;
  float threshold_;
  float kth_ = 0;
  float spread_ = 0;
};

// The work on one (item, head).
class Head {
 public:
  Head(const SelectParams& params, int64_t item, int64_t head, Scratch& scratch)
      : p_(params),
        item_(params.item[item]),
        map_(item_.maps[head]),
        at_(item * params.kv_heads + head),
        predicted_(params.predicted + at_ * params.predicted_stride),
        count_(params.predicted_count[at_]),
        fetches_(params.fetches + at_ * params.fetch_stride),
        s_(scratch) {
    OASIS_CHECK(count_ <= item_.resident_limit, "{} blocks predicted, only {} may be resident", count_,
                item_.resident_limit);
  }

  void select() {
    seal();
    touch();
    OASIS_CHECK(hits_ + static_cast<int32_t>(s_.misses.size()) == count_, "an open block is predicted");
    admit();
    make_room();
    place();
    open();
    write_list();
    write_counts();
  }

  // Blocks that are open, those sealed in this step among them, stay open: the rows of this step read them whatever R.
  void demand() {
    touch();
    for (const int32_t rank : s_.misses) admit_block(predicted_[rank]);
    make_room();
    place();
    write_counts();
  }

 private:
  // (1) Blocks below `candidates` that are open were sealed in this step: they turn into residents where they are.
  void seal() {
    for (int32_t block = item_.candidates - 1; block >= 0; --block) {
      const int32_t slot = map_.slot_of_block[block];
      if (slot < 0 || map_.last_predicted[slot] != HeadMap::kOpen) {
        OASIS_CHECK(block < item_.sealed_begin, "block {} is sealed but was not open", block);
        return;
      }
      map_.last_predicted[slot] = item_.step;
    }
  }

  // (2) Residents in P; what is left of P are the misses.
  void touch() {
    s_.predicted_slot.assign(static_cast<size_t>(item_.slots), 0);
    s_.misses.clear();
    for (int32_t rank = 0; rank < count_; ++rank) {
      const int32_t slot = map_.slot_of_block[predicted_[rank]];
      if (slot < 0) {
        OASIS_CHECK(predicted_[rank] < item_.candidates, "block {} is predicted but not sealed", predicted_[rank]);
        s_.misses.push_back(rank);
      } else if (map_.last_predicted[slot] != HeadMap::kOpen) {  // demand may name open blocks
        OASIS_CHECK(!s_.predicted_slot[static_cast<size_t>(slot)], "block {} is predicted twice", predicted_[rank]);
        s_.predicted_slot[static_cast<size_t>(slot)] = 1;
        map_.last_predicted[slot] = item_.step;
        ++hits_;
      }
    }
  }

  void admit_block(int32_t block) {
    OASIS_CHECK(admitted_ < p_.fetch_stride, "more than {} fetches of one head", p_.fetch_stride);
    fetches_[admitted_++] = {.block = block, .slot = -1};
  }

  // (3) Decides which misses come in. Their slots are known once the victims are.
  void admit() {
    const Margins margins(p_.predicted_scores ? p_.predicted_scores + at_ * p_.predicted_stride : nullptr, count_,
                          p_.spread ? p_.spread + at_ : nullptr, item_.margin_threshold);
    int32_t seen = 0;
    for (const int32_t rank : s_.misses) {
      const int32_t block = predicted_[rank], nth = seen++;
      const bool first = admitted_ == 0;
      if (admitted_ >= item_.cap) {
        refused_ += static_cast<int32_t>(s_.misses.size()) - nth;
        return;
      }
      const bool reached = margins.reached_by(rank);
      if (!reached && !first) {
        ++refused_;
      } else if (!item_.wait_for_absent && !is_present(item_.present, block)) {
        ++absent_;
        if (nth < item_.cap && (reached || nth == 0)) want(block);
      } else if (p_.budget && !take(p_.budget, first)) {
        ++refused_;
      } else {
        admit_block(block);
      }
    }
  }

  void want(int32_t block) {
    if (!p_.wanted) return;
    OASIS_CHECK(wanted_ < p_.fetch_stride, "more than {} absent blocks of one head", p_.fetch_stride);
    p_.wanted[at_ * p_.fetch_stride + wanted_++] = {.block = block, .slot = -1};
  }

  // (4) Unmaps the residents that go. Leaves in free_slots the slots free before, then those of the victims; in
  // `others` the residents outside P that stay.
  void make_room() {
    s_.free_slots.clear();
    s_.others.clear();
    for (int32_t slot = 0; slot < item_.slots; ++slot) {
      const int32_t block = map_.block_of_slot[slot];
      if (block < 0) {
        s_.free_slots.push_back(slot);
      } else if (!s_.predicted_slot[static_cast<size_t>(slot)] && map_.last_predicted[slot] != HeadMap::kOpen) {
        s_.others.push_back(eviction_key(map_.last_predicted[slot], block));
      }
    }
    const int64_t others = static_cast<int64_t>(s_.others.size());
    const int64_t victims = hits_ + admitted_ + others - item_.resident_limit;
    if (victims <= 0) return;
    OASIS_CHECK(victims <= others, "{} residents must go, {} may", victims, others);
    std::nth_element(s_.others.begin(), s_.others.begin() + (victims - 1), s_.others.end());
    const size_t freed = s_.free_slots.size();
    for (int64_t i = 0; i < victims; ++i) {
      const int32_t block = block_of(s_.others[static_cast<size_t>(i)]), slot = map_.slot_of_block[block];
      map_.slot_of_block[block] = -1;
      map_.block_of_slot[slot] = -1;
      s_.free_slots.push_back(slot);
    }
    std::sort(s_.free_slots.begin() + static_cast<int64_t>(freed), s_.free_slots.end());
    s_.others.erase(s_.others.begin(), s_.others.begin() + victims);
  }

  int32_t put(int32_t block, int32_t last_predicted) {
    OASIS_CHECK(given_ < s_.free_slots.size(), "no slot left for block {}: {} slots, {} residents allowed", block,
                item_.slots, item_.resident_limit);
    const int32_t slot = s_.free_slots[given_++];
    OASIS_CHECK(map_.slot_of_block[block] < 0, "block {} gets a second slot", block);
    map_.slot_of_block[block] = slot;
    map_.block_of_slot[slot] = block;
    map_.last_predicted[slot] = last_predicted;
    return slot;
  }

  void place() {
    for (int32_t i = 0; i < admitted_; ++i) fetches_[i].slot = put(fetches_[i].block, item_.step);
  }

  void open() {
    for (int32_t block = item_.candidates; block < item_.open_end; ++block) {
      if (map_.slot_of_block[block] < 0) put(block, HeadMap::kOpen);
    }
  }

  void write_list() {
    s_.chosen.assign(static_cast<size_t>(item_.candidates + 63) / 64, 0);
    const auto choose = [&](int32_t block) {
      s_.chosen[static_cast<size_t>(block) / 64] |= uint64_t{1} << (block % 64);
    };
    for (int32_t rank = 0; rank < count_; ++rank) {
      if (map_.slot_of_block[predicted_[rank]] >= 0) choose(predicted_[rank]);
    }
    const int64_t others = static_cast<int64_t>(s_.others.size());
    const int64_t wanted = std::min(item_.attend_limit, item_.candidates) - (hits_ + admitted_);
    const int64_t fillers = std::clamp<int64_t>(wanted, 0, others);
    if (fillers > 0) {
      const auto begin = s_.others.end() - fillers;
      if (fillers < others) std::nth_element(s_.others.begin(), begin, s_.others.end());
      for (auto key = begin; key != s_.others.end(); ++key) choose(block_of(*key));
    }

    ListEntry* list = p_.list + at_ * p_.list_stride;
    int64_t length = hits_ + admitted_ + fillers + (item_.open_end - item_.candidates);
    OASIS_CHECK(length <= p_.list_stride, "a list of {} blocks, list_stride is {}", length, p_.list_stride);
    length = 0;
    const auto emit = [&](int32_t block) {
      list[length++] = {.block = block, .page = item_.page_of_slot[map_.slot_of_block[block]]};
    };
    for (size_t word = 0; word < s_.chosen.size(); ++word) {
      for (uint64_t bits = s_.chosen[word]; bits != 0; bits &= bits - 1) {
        emit(static_cast<int32_t>(word) * 64 + std::countr_zero(bits));
      }
    }
    for (int32_t block = item_.candidates; block < item_.open_end; ++block) emit(block);
    p_.list_count[at_] = static_cast<int32_t>(length);
  }

  void write_counts() {
    p_.fetch_count[at_] = admitted_;
    if (p_.wanted) p_.wanted_count[at_] = wanted_;
    if (!p_.stats) return;
    const int32_t stats[4] = {hits_, static_cast<int32_t>(s_.misses.size()), refused_, absent_};
    std::copy_n(stats, 4, p_.stats + at_ * 4);
  }

  const SelectParams& p_;
  const SelectItem& item_;
  const HeadMap& map_;
  const int64_t at_;  // item * kv_heads + head
  const int32_t* const predicted_;
  const int32_t count_;
  Fetch* const fetches_;
  Scratch& s_;

  size_t given_ = 0;  // of free_slots
  int32_t hits_ = 0, admitted_ = 0, wanted_ = 0, refused_ = 0, absent_ = 0;
};

void for_each_head(Stream& stream, const SelectParams& p, void (Head::*work)()) {
  int64_t slots = 0;
  for (int64_t i = 0; i < p.items; ++i) slots += p.item[i].slots * p.kv_heads;
  const auto body = [&](int64_t at, int) {
    if (!p.item[at / p.kv_heads].maps) return;
    thread_local Scratch scratch;
    Head head(p, at / p.kv_heads, at % p.kv_heads, scratch);
    (head.*work)();
  };
  if (slots > kInlineSlots) {
    stream.pool().run(p.items * p.kv_heads, body);
  } else {
    for (int64_t at = 0; at < p.items * p.kv_heads; ++at) body(at, 0);
  }
}

}  // namespace

void select_cpu(Stream& stream, const SelectParams& params) { for_each_head(stream, params, &Head::select); }

void demand_cpu(Stream& stream, const SelectParams& params) { for_each_head(stream, params, &Head::demand); }

}  // namespace oasis::kernels
