#include "oasis/serve/generation.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace oasis::serve {
namespace {

bool is_progress(const engine::Event& e) {
  return e.tokens.empty() && e.prompt_logprobs.empty() && e.text.empty() && e.finish == engine::FinishReason::kNone;
}

// What an event takes in memory, and later on the wire, roughly.
int64_t size_of(const engine::Event& e) {
  size_t bytes = sizeof(Piece) + e.text.size();
  for (const auto* tokens : {&e.tokens, &e.prompt_logprobs}) {
    for (const auto& token : *tokens) bytes += sizeof token + token.top.size() * sizeof(engine::TokenLogprob);
  }
  return static_cast<int64_t>(bytes);
}

double seconds_between(Service::Clock::time_point begin, Service::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Generation::Generation(Service& service, net::any_io_executor executor, int32_t choices,
                       Service::Clock::time_point arrival)
    : service_(service),
      executor_(std::move(executor)),
      arrival_(arrival),
      limit_bytes_(service.config.stream_bytes),
      choices_(static_cast<size_t>(choices)),
      changed_(executor_, Service::Clock::time_point::max()) {}

Generation::~Generation() = default;

Failure Generation::submit(const GenerateRequest& request) {
  service_.generations.insert(this);
  for (int32_t i = 0; i < static_cast<int32_t>(choices_.size()); ++i) {
    engine::Request r = choice_request(request, i);
    r.on_event = [self = shared_from_this(), i](const engine::Event& event) { self->on_event(i, event); };
    auto id = service_.engine.submit(std::move(r));
    if (!id.ok()) {
      cancel();
      if (i == 0) service_.generations.erase(this);
      return from_engine(id.status(), false);
    }
    Choice& c = choices_[static_cast<size_t>(i)];
    c.id = *id;
    c.submitted = true;
    ++service_.active;
  }
  return {};
}

void Generation::on_event(int32_t choice, const engine::Event& event) {
  time(choices_[static_cast<size_t>(choice)], event);
  const bool last = event.finish != engine::FinishReason::kNone;
  bool overflow = false, post_wake = false;
  {
    std::lock_guard lock(mutex_);
    if (!overflowed_ || last) {
      const bool replaces = is_progress(event) && !pending_.empty() && pending_.back().choice == choice &&
                            is_progress(pending_.back().event);
      if (replaces) {
        pending_.back().event = event;
      } else {
        pending_.push_back({choice, event});
        pending_bytes_ += size_of(event);
      }
      overflow = !overflowed_ && pending_bytes_ > limit_bytes_;
      overflowed_ |= overflow;
    }
    post_wake = !std::exchange(wake_posted_, true);
  }
  if (overflow) {
    net::post(executor_, [self = shared_from_this()] {
      self->cancel();
      if (self->on_overflow) self->on_overflow();
    });
  }
  if (last) {
    net::post(executor_, [self = shared_from_this(), choice, reason = event.finish] { self->settle(choice, reason); });
  }
  if (post_wake) net::post(executor_, [self = shared_from_this()] { self->wake(); });
}

void Generation::time(Choice& c, const engine::Event& event) {
  if (event.tokens.empty()) return;
  const auto now = Service::Clock::now();
  if (c.began) {
    service_.metrics.next_tokens(seconds_between(c.last_token, now), static_cast<int>(event.tokens.size()));
  } else {
    const double seconds = seconds_between(arrival_, now);
    service_.metrics.first_token(seconds);
    std::lock_guard lock(mutex_);
    if (first_token_seconds_ < 0) first_token_seconds_ = seconds;
  }
  c.began = true;
  c.last_token = now;
}

// The choice has left the engine: its costs are fetched and its place is free. Once.
void Generation::settle(int32_t choice, engine::FinishReason reason) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  if (!c.submitted || std::exchange(c.settled, true)) return;
  c.stats = service_.engine.take_stats(c.id).value_or(engine::RequestStats{});
  --service_.active;
  service_.metrics.ended(reason, c.stats, seconds_between(arrival_, Service::Clock::now()));
  for (const Choice& other : choices_) {
    if (other.submitted && !other.settled) return;
  }
  service_.generations.erase(this);
}

void Generation::wake() {
  {
    std::lock_guard lock(mutex_);
    wake_posted_ = false;
  }
  changed_.cancel();
}

net::awaitable<std::vector<Piece>> Generation::next() {
  for (;;) {
    std::vector<Piece> pieces;
    {
      std::lock_guard lock(mutex_);
      pieces.swap(pending_);
      pending_bytes_ = 0;
    }
    if (!pieces.empty()) {
      for (const Piece& p : pieces) {
        if (p.event.finish != engine::FinishReason::kNone) settle(p.choice, p.event.finish);
      }
      co_return pieces;
    }
    // Posted wakes run on this very thread, so none is lost between the look and the wait.
    boost::system::error_code cancelled;
    co_await changed_.async_wait(net::redirect_error(net::use_awaitable, cancelled));
  }
}

void Generation::cancel() {
  for (const Choice& c : choices_) {
    if (c.submitted && !c.settled) service_.engine.cancel(c.id);
  }
}

bool Generation::overflowed() const {
  std::lock_guard lock(mutex_);
  return overflowed_;
}

double Generation::first_token_seconds() const {
  std::lock_guard lock(mutex_);
  return first_token_seconds_;
}

}  // namespace oasis::serve
