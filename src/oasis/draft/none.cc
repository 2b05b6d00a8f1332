#include "oasis/draft/none.h"

namespace oasis::draft {

namespace {

class None : public Drafter {
 public:
  std::string name() const override { return "none"; }
  Status attach(int32_t) override { return {}; }
  void detach(int32_t) override {}
  void propose(Stream&, std::span<ProposeItem> items) override {
    for (ProposeItem& item : items) item.count = 0;
  }
  std::vector<std::byte> save(int32_t) override { return {}; }
  Status restore(int32_t, std::span<const std::byte>) override { return {}; }
};

}  // namespace

std::unique_ptr<Drafter> make_none() { return std::make_unique<None>(); }

}  // namespace oasis::draft
