// The addressable tier: one arena, every home at a fixed place in it.
#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "oasis/base/units.h"
#include "oasis/kv/host_memory.h"
#include "oasis/kv/tier.h"

namespace oasis::kv {
namespace {

constexpr int64_t kAlign = 64;
int64_t align_up(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Layout of the arena: parts [home, layer], then meta [home], then one byte a part: is it written?
class DramTier final : public Tier {
 public:
  DramTier(const TierConfig& config, int32_t homes, HostArena arena)
      : shape_(config.shape),
        homes_(homes),
        part_stride_(align_up(config.shape.part_bytes())),
        meta_bytes_(config.shape.summary_page_bytes() + config.extra_bytes),
        arena_(std::move(arena)),
        meta_(arena_.data() + int64_t{homes} * shape_.layers * part_stride_),
        present_(reinterpret_cast<std::atomic<uint8_t>*>(meta_ + homes * align_up(meta_bytes_))) {
    if (!config.device || config.device->backend() == Backend::kCpu) return;  // zeroed, and touched by use alone
    for (int64_t part = 0; part < int64_t{homes} * shape_.layers; ++part) {
      present_[part].store(0, std::memory_order_relaxed);
    }
  }

  static int64_t home_bytes(const TierConfig& config) {
    const int64_t meta = config.shape.summary_page_bytes() + config.extra_bytes;
    return config.shape.layers * (align_up(config.shape.part_bytes()) + 1) + align_up(meta);
  }

  std::string describe() const override { return fmt::format("DRAM, {} homes in {} bytes", homes_, memory_bytes()); }
  int32_t homes() const override { return homes_; }
  bool addressable() const override { return true; }
  int64_t layer_stride() const override { return part_stride_; }
  int64_t memory_bytes() const override { return arena_.bytes(); }
  int64_t file_bytes() const override { return 0; }
  int64_t pinnable_parts() const override { return int64_t{homes_} * shape_.layers; }

  Result<std::byte*> begin_write(PartKey key) override {
    const int64_t part = index(key);
    OASIS_CHECK(present_[part].load(std::memory_order_relaxed) == 0,
                "home {} layer {} is written twice; drop the home first", key.home, key.layer);
    return arena_.data() + part * part_stride_;
  }
  void end_write(PartKey key) override {
    present_[index(key)].store(1, std::memory_order_release);
    written_.fetch_add(1, std::memory_order_relaxed);
  }

  std::byte* meta(HomeId home) override {
    OASIS_CHECK(home >= 0 && home < homes_, "home {} of {}", home, homes_);
    return meta_ + home * align_up(meta_bytes_);
  }
  int64_t meta_bytes() const override { return meta_bytes_; }

  bool present(PartKey key) const override { return present_[index(key)].load(std::memory_order_relaxed) != 0; }
  const std::byte* acquire(PartKey key) override {
    const int64_t part = index(key);
    return present_[part].load(std::memory_order_acquire) ? arena_.data() + part * part_stride_ : nullptr;
  }
  void release(PartKey key) override { index(key); }

  void fetch(std::span<const PartKey> parts, FetchTicket& ticket) override {
    ticket.start(static_cast<int64_t>(parts.size()));
    for (const PartKey key : parts) {
      ticket.finish(1, present_[index(key)].load(std::memory_order_acquire)
                           ? Status()
                           : not_found("home {} layer {} was never written", key.home, key.layer));
    }
  }
  void prefetch(std::span<const PartKey>) override {}

  void drop(HomeId home) override {
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      if (present_[index({home, layer})].exchange(0, std::memory_order_acq_rel)) {
        written_.fetch_sub(1, std::memory_order_relaxed);
      }
    }
  }
  Status status(HomeId) const override { return {}; }
  void flush() override {}
  TierStats stats() const override {
    TierStats stats;
    stats.parts_present = written_.load(std::memory_order_relaxed);
    return stats;
  }

 private:
  int64_t index(PartKey key) const {
    OASIS_CHECK(key.home >= 0 && key.home < homes_ && key.layer >= 0 && key.layer < shape_.layers,
                "home {} layer {} of {} homes and {} layers", key.home, key.layer, homes_, shape_.layers);
    return int64_t{key.home} * shape_.layers + key.layer;
  }

  const KvShape shape_;
  const int32_t homes_;
  const int64_t part_stride_, meta_bytes_;
  const HostArena arena_;
  std::byte* const meta_;
  std::atomic<uint8_t>* const present_;  // [home, layer]
  std::atomic<int64_t> written_{0};
};

}  // namespace

int64_t dram_home_bytes(const TierConfig& config) { return DramTier::home_bytes(config); }

Result<std::unique_ptr<Tier>> make_dram_tier(const TierConfig& config, int64_t memory_bytes) {
  OASIS_RETURN_IF_ERROR(validate(config.shape));
  if (config.extra_bytes < 0) return invalid_argument("DRAM tier: {} extra bytes a home", config.extra_bytes);
  const int64_t home_bytes = DramTier::home_bytes(config);
  const int64_t homes = std::min<int64_t>(memory_bytes / home_bytes, std::numeric_limits<int32_t>::max());
  if (homes < 1) {
    return resource_exhausted("--capacity-memory: {} hold no block, one takes {} ({} bytes); give it at least that",
                              format_bytes(memory_bytes), format_bytes(home_bytes), home_bytes);
  }
  OASIS_ASSIGN_OR_RETURN(HostArena arena, HostArena::create("the capacity tier in DRAM (--capacity-memory)",
                                                            homes * home_bytes, config.device));
  std::unique_ptr<Tier> tier = std::make_unique<DramTier>(config, static_cast<int32_t>(homes), std::move(arena));
  return tier;
}

}  // namespace oasis::kv
