// For tests: a text that a drafter is led through as by an engine, with taps drawn at random instead of a target's.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "oasis/draft/drafter.h"

namespace oasis::draft {

struct ScriptedText {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> taps;  // [position][tap * hidden]: the target's residual streams

  ScriptedText(int length, int vocab, int tap_count, int hidden, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int p = 0; p < length; ++p) {
      tokens.push_back(static_cast<int32_t>(random() % vocab));
      auto& row = taps.emplace_back();
      for (int tap = 0; tap < tap_count; ++tap)
        for (int i = 0; i < hidden; ++i) row.push_back(normal(random) * static_cast<float>(1 + 2 * tap));
    }
  }

  // Fused features of positions [first, first + rows).
  std::vector<float> features(Drafter& drafter, Stream& stream, int first, int rows) const {
    const size_t taps_in = drafter.tap_layers().size(), hidden = taps[0].size() / taps_in;
    std::vector<float> features(rows * drafter.feature_dim()), x(rows * hidden);
    for (size_t tap = 0; tap < taps_in; ++tap) {
      for (int r = 0; r < rows; ++r) std::copy_n(&taps[first + r][tap * hidden], hidden, &x[r * hidden]);
      drafter.fold_tap(stream, static_cast<int>(tap), x.data(), rows, features.data());
    }
    return features;
  }
};

// One sequence of a drafter, led through a text.
class Follower {
 public:
  Follower(Drafter& drafter, Stream& stream, int32_t sequence, const ScriptedText& text)
      : drafter_(drafter), stream_(stream), sequence_(sequence), text_(text) {}

  // Rows up to position end - 1 as a prompt's, `chunk` at a time; `stored` receives the record of each whole block.
  void absorb(int end, int chunk, int block_size = 16, std::vector<std::vector<std::byte>>* stored = nullptr) {
    while (next_ < end) {
      const int rows = std::min(chunk, end - next_);
      const auto features = text_.features(drafter_, stream_, next_, rows);
      drafter_.absorb(stream_, sequence_, next_, rows, features.data(), text_.tokens.data() + next_ + 1);
      const int before = next_ / block_size;
      next_ += rows;
      if (stored)
        for (int block = before; block < next_ / block_size; ++block) {
          auto& record = stored->emplace_back(drafter_.home_bytes());
          drafter_.store_block(sequence_, block, record.data());
        }
    }
  }
  void load(int block, const std::vector<std::byte>& record, int block_size = 16) {
    next_ = (block + 1) * block_size;
    drafter_.load_block(stream_, sequence_, block, record.data(), text_.tokens[next_]);
  }
  void skip_to(int position) { next_ = position; }

  // The drafts after the token at `position`, all rows up to it being verified now.
  std::vector<int32_t> propose(int position, int want) {
    std::vector<int32_t> drafts(want);
    auto item = prepare(position, drafts);
    drafter_.propose(stream_, {&item, 1});
    drafts.resize(item.count);
    return drafts;
  }
  // The item of such a proposal; its features live until the next one.
  ProposeItem prepare(int position, std::vector<int32_t>& drafts) {
    features_ = text_.features(drafter_, stream_, next_, position - next_);
    const ProposeItem item = {.sequence = sequence_,
                              .history = std::span(text_.tokens).first(position + 1),
                              .first_position = next_,
                              .rows = position - next_,
                              .features = features_.data(),
                              .want = static_cast<int32_t>(drafts.size()),
                              .drafts = drafts.data()};
    next_ = position;
    return item;
  }

 private:
  Drafter& drafter_;
  Stream& stream_;
  int32_t sequence_;
  const ScriptedText& text_;
  int next_ = 0;
  std::vector<float> features_;
};

}  // namespace oasis::draft
