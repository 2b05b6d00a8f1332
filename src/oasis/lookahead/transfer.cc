#include "oasis/lookahead/transfer.h"

#include <algorithm>
#include <chrono>

namespace oasis::lookahead {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpins = 2000;

int64_t nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

}  // namespace

Transfer::Transfer(Device& device, kv::Tier& tier, const CoreConfig& config)
    : tier_(tier),
      kernels_(kernels::kernels_for(device.backend())),
      config_(config),
      stream_(device.make_background_stream()),
      done_(static_cast<size_t>(config.shape.layers)) {
  for (auto& d : done_) d.store(-1, std::memory_order_relaxed);
  if (!config.serial) thread_ = std::thread([this] { work(); });
}

Transfer::~Transfer() {
  drain();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Transfer::publish(int32_t layer, int64_t step, std::vector<TransferItem> items) {
  Plan plan{.layer = layer, .step = step, .items = std::move(items)};
  if (config_.serial || plan.items.empty()) {
    if (!plan.items.empty()) {
      if (config_.hooks.delay) config_.hooks.delay(Stage::kTransfer, layer, step);
      run_now(std::move(plan.items));
    }
    auto& done = done_[static_cast<size_t>(layer)];
    done.store(step, std::memory_order_release);
    done.notify_all();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(plan));
  }
  changed_.notify_one();
}

double Transfer::wait(int32_t layer, int64_t step) {
  auto& done = done_[static_cast<size_t>(layer)];
  if (done.load(std::memory_order_acquire) >= step) return 0;
  const auto begin = Clock::now();
  int spins = 0;
  for (int64_t seen; (seen = done.load(std::memory_order_acquire)) < step;) {
    if (++spins > kSpins) done.wait(seen, std::memory_order_acquire);
  }
  return static_cast<double>(nanoseconds_since(begin)) * 1e-9;
}

// In pieces, so that no more is pinned at once than the tier has room for.
void Transfer::run_now(std::vector<TransferItem> items) {
  const auto begin = Clock::now();
  const auto piece = static_cast<size_t>(std::max<int64_t>(1, tier_.pinnable_parts() / 4));
  for (size_t first = 0; first < items.size(); first += piece) {
    const auto from = items.begin() + static_cast<int64_t>(first);
    Plan plan{
        .layer = -1, .step = -1, .items = {from, from + static_cast<int64_t>(std::min(piece, items.size() - first))}};
    plan.ticket = std::make_unique<kv::FetchTicket>();
    start_reads(plan);
    const Status status = plan.ticket->wait();
    finish(plan, status);
  }
  busy_nanoseconds_.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
}

void Transfer::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && reading_.empty() && in_hand_ == 0; });
}

std::vector<TransferError> Transfer::take_errors() {
  std::lock_guard lock(mutex_);
  return std::exchange(errors_, {});
}

// Takes plans in the order of their publication and reads in the order of their arrival.
void Transfer::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::list<Plan>::iterator arrived;
    changed_.wait(lock, [&] {
      arrived =
          std::find_if(reading_.begin(), reading_.end(), [this](const Plan& p) { return arrived_.contains(p.id); });
      return stop_ || arrived != reading_.end() || !queue_.empty();
    });
    const auto started = Clock::now();
    if (arrived != reading_.end()) {
      Plan plan = std::move(*arrived);
      reading_.erase(arrived);
      arrived_.erase(plan.id);
      ++in_hand_;
      lock.unlock();
      finish(plan, plan.ticket->wait());
      lock.lock();
      --in_hand_;
    } else if (!queue_.empty()) {
      Plan plan = std::move(queue_.front());
      queue_.pop_front();
      ++in_hand_;
      lock.unlock();
      begin(std::move(plan));
      lock.lock();
      --in_hand_;
    } else {
      return;
    }
    busy_nanoseconds_.fetch_add(nanoseconds_since(started), std::memory_order_relaxed);
    if (queue_.empty() && reading_.empty() && in_hand_ == 0) idle_.notify_all();
  }
}

// A plan counts as arrived once its ticket's callback has run, not when the ticket is done: the callback is the last
// that a tier's thread has to do with this object.
void Transfer::begin(Plan plan) {
  if (config_.hooks.delay) config_.hooks.delay(Stage::kTransfer, plan.layer, plan.step);
  plan.id = ++last_id_;
  plan.ticket = std::make_unique<kv::FetchTicket>([this, id = plan.id] {
    std::lock_guard lock(mutex_);
    arrived_.insert(id);
    changed_.notify_one();
  });
  start_reads(plan);
  std::lock_guard lock(mutex_);
  reading_.push_back(std::move(plan));
}

void Transfer::start_reads(Plan& plan) {
  for (const TransferItem& item : plan.items) plan.parts.push_back(item.part);
  const auto key = [](const kv::PartKey& k) { return std::pair(k.home, k.layer); };
  std::sort(plan.parts.begin(), plan.parts.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  plan.parts.erase(
      std::unique(plan.parts.begin(), plan.parts.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
      plan.parts.end());
  tier_.fetch(plan.parts, *plan.ticket);
}

// A part that could not be brought in hits the sequences that wanted it and nobody else.
void Transfer::finish(Plan& plan, const Status& status) {
  std::vector<kernels::Copy> copies;
  std::vector<kv::PartKey> acquired;
  copies.reserve(plan.items.size());
  for (const TransferItem& item : plan.items) {
    if (config_.hooks.poison) stream_->fill(item.to, 0xff, static_cast<size_t>(config_.shape.block_head_bytes()));
    const std::byte* part = tier_.acquire(item.part);
    if (!part) {
      std::lock_guard lock(mutex_);
      errors_.push_back({item.sequence, plan.step, status});
      continue;
    }
    acquired.push_back(item.part);
    copies.push_back({.from = part + item.offset, .to = item.to});
  }
  if (config_.hooks.poison) stream_->synchronize();
  kernels_.gather(*stream_, {.copies = copies.data(),
                             .count = static_cast<int64_t>(copies.size()),
                             .bytes = config_.shape.block_head_bytes()});
  stream_->synchronize();
  for (const kv::PartKey& part : acquired) tier_.release(part);
  for (const kv::PartKey& part : plan.parts) tier_.release(part);  // the ticket's own pins
  moved_.fetch_add(static_cast<int64_t>(copies.size()), std::memory_order_relaxed);
  if (plan.layer < 0) return;
  auto& done = done_[static_cast<size_t>(plan.layer)];
  done.store(plan.step, std::memory_order_release);
  done.notify_all();
}

}  // namespace oasis::lookahead
