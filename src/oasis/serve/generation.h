// A client's request in the engine: one or several choices. The engine's thread puts events in and never waits; the
// server's thread takes them out.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "oasis/serve/request.h"
#include "oasis/serve/service.h"

namespace oasis::serve {

namespace net = boost::asio;

struct Piece {
  int32_t choice;
  engine::Event event;
};

// Lives until its last choice has ended, whoever else has let go of it. Everything but on_event() on the server's
// thread.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(Service& service, net::any_io_executor executor, int32_t choices, Service::Clock::time_point arrival);
  ~Generation();
  // Queues all choices. On a failure those queued already are cancelled.
  Failure submit(const GenerateRequest& request);

  // Waits until something has come, and returns all of it in order.
  net::awaitable<std::vector<Piece>> next();
  // All choices end at the next step border.
  void cancel();
  // The client took so little that what waits for it passed ServeConfig::stream_bytes: events are lost, and the choices
  // are cancelled.
  bool overflowed() const;
  // Called once, when that happens.
  std::function<void()> on_overflow;

  // Of a choice whose last event has been taken.
  const engine::RequestStats& stats(int32_t choice) const { return choices_[static_cast<size_t>(choice)].stats; }
  double first_token_seconds() const;  // of the earliest choice since the arrival; -1: none yet

 private:
  struct Choice {
    engine::RequestId id = 0;
    bool submitted = false, settled = false;
    engine::RequestStats stats;
    // Engine's thread only.
    Service::Clock::time_point last_token;
    bool began = false;
  };

  void on_event(int32_t choice, const engine::Event& event);  // engine's thread
  void time(Choice& choice, const engine::Event& event);      // engine's thread
  void settle(int32_t choice, engine::FinishReason reason);
  void wake();

  Service& service_;
  const net::any_io_executor executor_;
  const Service::Clock::time_point arrival_;
  const int64_t limit_bytes_;
  std::vector<Choice> choices_;
  net::steady_timer changed_;

  mutable std::mutex mutex_;
  std::vector<Piece> pending_;
  int64_t pending_bytes_ = 0;
  bool wake_posted_ = false, overflowed_ = false;
  double first_token_seconds_ = -1;
};

}  // namespace oasis::serve
