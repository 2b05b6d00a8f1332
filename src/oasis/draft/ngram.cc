#include "oasis/draft/ngram.h"

#include "oasis/draft/ngram_index.h"

namespace oasis::draft {

namespace {

class Ngram : public Drafter {
 public:
  explicit Ngram(const DrafterOptions& options) : index_(static_cast<size_t>(options.max_sequences)) {}

  std::string name() const override { return "ngram"; }
  Status attach(int32_t sequence) override {
    index_[static_cast<size_t>(sequence)].clear();
    return {};
  }
  void detach(int32_t sequence) override { index_[static_cast<size_t>(sequence)].clear(); }

  void propose(Stream&, std::span<ProposeItem> items) override {
    for (ProposeItem& item : items) {
      const auto match = index_[static_cast<size_t>(item.sequence)].extend_and_find(item.history);
      item.count = match.length > 0 ? item.want : 0;
      copy_forward(item.history, match.next, {item.drafts, static_cast<size_t>(item.count)});
    }
  }

  // The index follows from the history, which comes with every proposal.
  std::vector<std::byte> save(int32_t) override { return {}; }
  Status restore(int32_t sequence, std::span<const std::byte>) override { return attach(sequence); }

 private:
  std::vector<NgramIndex> index_;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram(const DrafterOptions& options) { return std::make_unique<Ngram>(options); }

}  // namespace oasis::draft
