#include "oasis/draft/auto.h"

#include <array>
#include <cstring>

#include "oasis/draft/ngram_index.h"

namespace oasis::draft {

namespace {

constexpr float kRate = 1.0f / 16;  // of the running means: follows a change of text within a dozen tokens

// How often a first draft is right, and the guesses that the next token will judge.
struct Record {
  float head = 0.5f;
  std::array<float, NgramIndex::kLongest> lookup = {0.2f, 0.4f, 0.6f};  // [match length - 1]
  int32_t position = 0;                                                 // of the token that was guessed; 0: nothing was
  int32_t head_guess = -1, lookup_guess = -1;
  int32_t match_length = 0;
};

class Auto : public Drafter {
 public:
  Auto(std::unique_ptr<Drafter> head, const DrafterOptions& options)
      : head_(std::move(head)),
        records_(static_cast<size_t>(options.max_sequences)),
        indices_(static_cast<size_t>(options.max_sequences)) {}

  std::string name() const override { return "auto (" + head_->name() + ", ngram)"; }
  std::span<const int> tap_layers() const override { return head_->tap_layers(); }
  int64_t feature_dim() const override { return head_->feature_dim(); }
  void fold_tap(Stream& stream, int tap, const float* x, int64_t rows, float* features) override {
    head_->fold_tap(stream, tap, x, rows, features);
  }
  int64_t fast_bytes() const override { return head_->fast_bytes(); }
  int64_t scratch_bytes() const override { return head_->scratch_bytes(); }
  int64_t home_bytes() const override { return head_->home_bytes(); }
  uint64_t fingerprint() const override { return head_->fingerprint(); }

  Status attach(int32_t sequence) override {
    OASIS_RETURN_IF_ERROR(head_->attach(sequence));
    forget(sequence);
    return {};
  }
  void detach(int32_t sequence) override {
    head_->detach(sequence);
    forget(sequence);
  }
  void absorb(Stream& stream, int32_t sequence, int32_t first, int32_t rows, const float* features,
              const int32_t* next_tokens) override {
    head_->absorb(stream, sequence, first, rows, features, next_tokens);
  }
  void store_block(int32_t sequence, int32_t block, std::byte* out) override {
    head_->store_block(sequence, block, out);
  }
  void load_block(Stream& stream, int32_t sequence, int32_t block, const std::byte* in, int32_t next_token) override {
    head_->load_block(stream, sequence, block, in, next_token);
  }
  void judge(int32_t sequence, int32_t proposed, int32_t right) override { head_->judge(sequence, proposed, right); }

  void propose(Stream& stream, std::span<ProposeItem> items) override;
  std::vector<std::byte> save(int32_t sequence) override;
  Status restore(int32_t sequence, std::span<const std::byte> state) override;

 private:
  Record& record(int32_t sequence) { return records_[static_cast<size_t>(sequence)]; }
  void forget(int32_t sequence) {
    record(sequence) = {};
    indices_[static_cast<size_t>(sequence)].clear();
  }
  static void learn(Record& record, std::span<const int32_t> history);

  std::unique_ptr<Drafter> head_;
  std::vector<Record> records_;
  std::vector<NgramIndex> indices_;
};

void Auto::learn(Record& r, std::span<const int32_t> history) {
  if (r.position == 0 || static_cast<size_t>(r.position) >= history.size()) return;
  const int32_t truth = history[static_cast<size_t>(r.position)];
  const auto update = [&](float& mean, int32_t guess) {
    if (guess >= 0) mean += kRate * (static_cast<float>(guess == truth) - mean);
  };
  update(r.head, r.head_guess);
  if (r.match_length > 0) update(r.lookup[static_cast<size_t>(r.match_length - 1)], r.lookup_guess);
}

void Auto::propose(Stream& stream, std::span<ProposeItem> items) {
  std::vector<NgramIndex::Match> matches;
  std::vector<bool> copies;
  std::vector<ProposeItem> head_items(items.begin(), items.end());
  std::vector<int32_t> one_guess(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Record& r = record(items[i].sequence);
    learn(r, items[i].history);
    matches.push_back(indices_[static_cast<size_t>(items[i].sequence)].extend_and_find(items[i].history));
    const int length = matches[i].length;
    copies.push_back(items[i].want > 0 && length > 0 && r.lookup[static_cast<size_t>(length - 1)] > r.head);
    if (!copies[i]) continue;
    head_items[i].want = 1;  // for its record alone
    head_items[i].drafts = &one_guess[i];
  }
  head_->propose(stream, head_items);
  for (size_t i = 0; i < items.size(); ++i) {
    ProposeItem& item = items[i];
    const ProposeItem& by_head = head_items[i];
    if (copies[i]) {
      item.count = item.want;
      copy_forward(item.history, matches[i].next, {item.drafts, static_cast<size_t>(item.count)});
    } else {
      item.count = by_head.count;
    }
    Record& r = record(item.sequence);
    r.position = static_cast<int32_t>(item.history.size());
    r.head_guess = by_head.count > 0 ? by_head.drafts[0] : -1;
    r.match_length = matches[i].length;
    r.lookup_guess = r.match_length > 0 ? item.history[static_cast<size_t>(matches[i].next)] : -1;
  }
}

std::vector<std::byte> Auto::save(int32_t sequence) {
  const std::vector<std::byte> head = head_->save(sequence);
  std::vector<std::byte> state(sizeof(Record) + head.size());
  std::memcpy(state.data(), &record(sequence), sizeof(Record));
  std::copy(head.begin(), head.end(), state.begin() + sizeof(Record));
  return state;
}

Status Auto::restore(int32_t sequence, std::span<const std::byte> state) {
  Record saved;
  if (state.size() < sizeof(saved))
    return data_corruption("a saved draft state of {} bytes is shorter than its header", state.size());
  std::memcpy(&saved, state.data(), sizeof(saved));
  if (saved.match_length < 0 || saved.match_length > NgramIndex::kLongest || saved.position < 0)
    return data_corruption("a saved draft state has a match of {} tokens at {}", saved.match_length, saved.position);
  OASIS_RETURN_IF_ERROR(head_->restore(sequence, state.subspan(sizeof(saved))));
  forget(sequence);
  record(sequence) = saved;
  return {};
}

}  // namespace

std::unique_ptr<Drafter> make_auto(std::unique_ptr<Drafter> head, const DrafterOptions& options) {
  return std::make_unique<Auto>(std::move(head), options);
}

}  // namespace oasis::draft
