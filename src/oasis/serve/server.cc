#include "oasis/serve/server.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <ctime>
#include <unordered_set>

#include "oasis/serve/connection.h"
#include "oasis/serve/generation.h"

namespace oasis::serve {
namespace {

using net::ip::tcp;
using ErrorCode = boost::system::error_code;

// A connection takes a descriptor; the usual soft limit is 1024.
void raise_descriptor_limit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

net::awaitable<void> pause(std::chrono::milliseconds time) {
  net::steady_timer timer(co_await net::this_coro::executor, time);
  ErrorCode ignored;
  co_await timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
}

}  // namespace

ServedModel served_model(const engine::Engine& engine, const model::ModelConfig& config,
                         const text::Tokenizer& tokenizer, std::string name) {
  const auto& plan = engine.plan();
  ServedModel model;
  model.name = std::move(name);
  model.tokenizer = &tokenizer;
  model.vocab = config.vocab;
  model.context = std::min(int64_t{plan.core.max_blocks} * plan.core.shape.block_size,
                           engine.config().max_context > 0 ? engine.config().max_context : config.context);
  model.created = std::time(nullptr);
  if (config.temperature) model.temperature = std::min(*config.temperature, 2.0F);
  if (config.top_p) model.top_p = *config.top_p;
  if (config.top_k) model.top_k = std::max(*config.top_k, 0);
  describe_template(model);
  return model;
}

struct Server::Impl {
  Impl(engine::Engine& engine, ServedModel model, ServeConfig config)
      : service{.engine = engine, .model = std::move(model), .config = std::move(config)} {
    service.model.max_choices = service.max_choices();
  }

  Status listen();
  net::awaitable<void> accept();
  net::awaitable<void> wait_for_signal();
  net::awaitable<void> second_signal();
  net::awaitable<void> drain();
  net::awaitable<bool> until_quiet(double seconds);

  Service service;
  net::thread_pool workers{2};
  net::io_context io{1};
  tcp::acceptor acceptor{io};
  net::signal_set signals{io};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  int signal = 0;
};

Status Server::Impl::listen() {
  const auto& c = service.config;
  ErrorCode ec;
  const auto failed = [&](const char* what) {
    return io_error("cannot {} {}:{}: {}", what, c.host, c.port, ec.message());
  };
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(c.host, std::to_string(c.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) return failed("resolve");
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(tcp::acceptor::max_listen_connections, ec);
  if (ec) return failed("listen on");
  return {};
}

// Beyond the most connections an idle one makes room; where all are busy, clients wait in the kernel's queue.
net::awaitable<void> Server::Impl::accept() {
  while (acceptor.is_open()) {
    if (connections.size() >= service.config.max_connections) {
      std::any_of(connections.begin(), connections.end(), [](const auto& c) { return c->close_if_idle(); });
      co_await pause(std::chrono::milliseconds(5));
      continue;
    }
    ErrorCode ec;
    tcp::socket socket = co_await acceptor.async_accept(net::redirect_error(net::use_awaitable, ec));
    if (ec) {
      if (acceptor.is_open()) co_await pause(std::chrono::milliseconds(50));  // out of descriptors, say
      continue;
    }
    auto connection = std::make_shared<Connection>(service, workers, std::move(socket));
    connections.insert(connection);
    net::co_spawn(io, connection->run(),
                  [this, connection](const std::exception_ptr&) { connections.erase(connection); });
  }
}

net::awaitable<void> Server::Impl::wait_for_signal() {
  ErrorCode ec;
  const int number = co_await signals.async_wait(net::redirect_error(net::use_awaitable, ec));
  if (ec) co_return;
  signal = number;
  net::co_spawn(io, second_signal(), net::detached);
  co_await drain();
  io.stop();
}

net::awaitable<void> Server::Impl::second_signal() {
  ErrorCode ec;
  const int number = co_await signals.async_wait(net::redirect_error(net::use_awaitable, ec));
  if (!ec) ::_exit(128 + number);
}

net::awaitable<void> Server::Impl::drain() {
  service.draining = true;
  ErrorCode ignored;
  acceptor.close(ignored);
  for (const auto& connection : connections) connection->close_if_idle();
  if (co_await until_quiet(service.config.drain_seconds)) co_return;
  for (Generation* generation : service.generations) generation->cancel();
  if (co_await until_quiet(5)) co_return;
  for (const auto& connection : connections) connection->close();
  co_await until_quiet(60);  // the engine ends what it has at its next step border
}

// True: no connection is left and the engine has nothing of ours.
net::awaitable<bool> Server::Impl::until_quiet(double seconds) {
  const auto end = Service::Clock::now() + std::chrono::duration<double>(seconds);
  while (!connections.empty() || service.active > 0) {
    if (Service::Clock::now() >= end) co_return false;
    co_await pause(std::chrono::milliseconds(10));
  }
  co_return true;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::create(engine::Engine& engine, ServedModel model, ServeConfig config) {
  raise_descriptor_limit();
  auto impl = std::make_unique<Impl>(engine, std::move(model), std::move(config));
  OASIS_RETURN_IF_ERROR(impl->listen());
  // One that comes before run() is not lost: it ends the server as soon as it runs.
  impl->signals.add(SIGINT);
  impl->signals.add(SIGTERM);
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::string Server::url() const {
  ErrorCode ignored;
  const tcp::endpoint at = impl_->acceptor.local_endpoint(ignored);
  const std::string host = at.address().to_string();
  return at.address().is_v6() ? fmt::format("http://[{}]:{}", host, at.port())
                              : fmt::format("http://{}:{}", host, at.port());
}

int Server::run() {
  auto& s = *impl_;
  s.service.engine.start();
  net::co_spawn(s.io, s.accept(), net::detached);
  net::co_spawn(s.io, s.wait_for_signal(), net::detached);
  for (;;) {
    try {
      s.io.run();
      break;
    } catch (const std::exception& e) {
      // No handler should throw; one that does must not end the server.
      fmt::print(stderr, "oasis: a handler failed: {}\n", e.what());
    }
  }
  s.workers.join();
  s.service.engine.stop();
  return s.signal;
}

}  // namespace oasis::serve
