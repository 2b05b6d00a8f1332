#include "oasis/serve/connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <exception>

namespace oasis::serve {
namespace {

// `operators || timer`: what reads is cancelled when the time is over.
using namespace net::experimental::awaitable_operators;

net::awaitable<void> wait_seconds(double seconds) {
  net::steady_timer timer(co_await net::this_coro::executor);
  timer.expires_after(std::chrono::duration_cast<Service::Clock::duration>(std::chrono::duration<double>(seconds)));
  boost::system::error_code ignored;
  co_await timer.async_wait(net::redirect_error(net::use_awaitable, ignored));
}

// The error of `operation`, or timeout.
net::awaitable<boost::system::error_code> within(double seconds, net::awaitable<boost::system::error_code> operation) {
  auto first = co_await (std::move(operation) || wait_seconds(seconds));
  if (first.index() == 1) co_return beast::error::timeout;
  co_return std::get<0>(first);
}

ApiError http_error(int status, std::string message, std::string code) {
  return {.status = status, .message = std::move(message), .code = std::move(code)};
}

const char* reason_phrase(int status) {
  return status == 499 ? "Client Closed Request" : http::obsolete_reason(static_cast<http::status>(status)).data();
}

}  // namespace

Connection::Connection(Service& service, net::thread_pool& workers, net::ip::tcp::socket socket)
    : service_(service),
      workers_(workers),
      stream_(std::move(socket)),
      buffer_(static_cast<size_t>(service.config.header_bytes) + (size_t{64} << 10)) {
  ErrorCode ignored;
  stream_.socket().set_option(net::ip::tcp::no_delay(true), ignored);
}

net::awaitable<void> Connection::run() {
  try {
    while (co_await serve_one()) {
    }
  } catch (const std::exception&) {
    // The socket is broken, or memory is short: this connection alone ends.
  }
  busy_ = false;
  close();
}

bool Connection::close_if_idle() {
  if (busy_ || closed_) return false;
  close();
  return true;
}

void Connection::close() {
  closed_ = true;
  ErrorCode ignored;
  stream_.socket().shutdown(net::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

net::awaitable<bool> Connection::serve_one() {
  busy_ = false;
  if (service_.draining) co_return false;
  if (buffer_.size() == 0) {
    const auto readable = [this]() -> net::awaitable<ErrorCode> {
      ErrorCode ec;
      co_await stream_.socket().async_wait(net::ip::tcp::socket::wait_read,
                                           net::redirect_error(net::use_awaitable, ec));
      co_return ec;
    };
    if (co_await within(service_.config.idle_seconds, readable())) co_return false;
  }
  Exchange x;
  x.arrival = Service::Clock::now();
  std::string failure;
  try {
    co_await serve(x);
  } catch (const std::exception& e) {
    failure = e.what();
  }
  service_.body_bytes -= x.body_bytes;
  if (!failure.empty()) {
    x.keep_alive = false;
    if (!x.answered && !gone_) {
      const ApiError error{.status = 500, .message = "internal error: " + failure, .type = "server_error"};
      co_await decline(x, error);
    }
  }
  if (x.log.status != 0) finish(x);
  if (gone_ || !x.keep_alive) {
    if (!gone_ && x.answered) co_await linger();
    co_return false;
  }
  co_return true;
}

net::awaitable<void> Connection::serve(Exchange& x) {
  if (!co_await read_header(x)) co_return;
  busy_ = true;
  const auto& message = x.parser.get();
  x.head = message.method() == http::verb::head;
  x.log.method = std::string(message.method_string());
  x.route = find_route(message.target());
  x.log.endpoint = x.route.name;
  x.keep_alive = message.keep_alive() && !service_.draining;
  const Failure failure = check_header(x);
  if (failure) {
    x.keep_alive = x.keep_alive && x.parser.is_done();  // no body follows
    Reply error = to_reply(*failure);
    if (failure->status == 405) error.allow = x.route.method == std::string_view("GET") ? "GET, HEAD" : x.route.method;
    co_return co_await reply(x, std::move(error));
  }
  if (!co_await read_body(x)) co_return;
  x.arrival = Service::Clock::now();
  switch (x.route.endpoint) {
    case Endpoint::kCompletions:
    case Endpoint::kChat:
      co_return co_await generate(x);
    case Endpoint::kTokenize:
    case Endpoint::kDetokenize: {
      auto work = [](const ServedModel& model, Endpoint endpoint, std::string_view body) -> net::awaitable<Reply> {
        co_return answer_tokens(model, endpoint, body);
      };
      Reply answer = co_await net::co_spawn(workers_, work(service_.model, x.route.endpoint, x.parser.get().body()),
                                            net::use_awaitable);
      co_return co_await reply(x, std::move(answer));
    }
    default: {
      Reply answer = answer_get(service_, x.route);
      co_return co_await reply(x, std::move(answer));
    }
  }
}

// False: the connection ends, and what was to be said has been.
net::awaitable<bool> Connection::read_header(Exchange& x) {
  x.parser.header_limit(static_cast<uint32_t>(service_.config.header_bytes));
  x.parser.body_limit(static_cast<uint64_t>(service_.config.body_bytes));
  const auto read = [this, &x]() -> net::awaitable<ErrorCode> {
    ErrorCode ec;
    co_await http::async_read_header(stream_.socket(), buffer_, x.parser, net::redirect_error(net::use_awaitable, ec));
    co_return ec;
  };
  const ErrorCode ec = co_await within(service_.config.read_seconds, read());
  x.log.id = fmt::format("{:x}-{:x}-{}", service_.model.created, getpid(), service_.next_request);
  if (!ec) {
    ++service_.next_request;
    co_return true;
  }
  busy_ = true;
  const Failure failure = read_failure(ec, "header");
  if (failure) co_await refuse(x, *failure);
  co_return false;
}

// What a client is told whose header or body could not be read; nothing: it has gone.
Failure Connection::read_failure(ErrorCode ec, const char* part) const {
  if (ec == beast::error::timeout) {
    return http_error(408, fmt::format("no whole {} within {} seconds", part, service_.config.read_seconds),
                      "request_timeout");
  }
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return http_error(431, fmt::format("the header has more than {} bytes", service_.config.header_bytes),
                      "header_too_large");
  }
  if (ec == http::error::body_limit) {
    return http_error(413, fmt::format("the body has more than {} bytes", service_.config.body_bytes),
                      "body_too_large");
  }
  const bool of_http = ec.category() == make_error_code(http::error::end_of_stream).category();
  if (!of_http || ec == http::error::end_of_stream || ec == http::error::partial_message) return {};
  return http_error(400, fmt::format("this is not HTTP: {}", ec.message()), "bad_http");
}

Failure Connection::check_header(Exchange& x) const {
  const auto& message = x.parser.get();
  if (x.route.endpoint == Endpoint::kNone) {
    return http_error(404,
                      fmt::format("there is no {}; docs/serving.md lists the endpoints",
                                  std::string_view(message.target()).substr(0, 100)),
                      "not_found");
  }
  const std::string_view method = x.head ? "GET" : std::string_view(message.method_string());
  if (method != x.route.method) {
    return http_error(405, fmt::format("{} wants the method {}", x.route.name, x.route.method), "method_not_allowed");
  }
  if (x.route.needs_key && !service_.config.keys.allow(std::string_view(message[http::field::authorization]))) {
    return ApiError{.status = 401,
                    .message = "no valid API key: send the header Authorization: Bearer KEY",
                    .type = "authentication_error",
                    .code = "invalid_api_key"};
  }
  // A chunked body may grow to the limit.
  const auto length = x.parser.content_length();
  x.body_bytes = x.parser.is_done() ? 0 : length ? static_cast<int64_t>(*length) : service_.config.body_bytes;
  if (service_.body_bytes + x.body_bytes > service_.config.total_body_bytes) {
    x.body_bytes = 0;
    return unavailable("too many bodies are being read: try again");
  }
  service_.body_bytes += x.body_bytes;
  return {};
}

net::awaitable<bool> Connection::read_body(Exchange& x) {
  if (x.parser.is_done()) co_return true;
  if (beast::iequals(x.parser.get()[http::field::expect], "100-continue")) {
    if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  }
  const auto read = [this, &x]() -> net::awaitable<ErrorCode> {
    ErrorCode ec;
    co_await http::async_read(stream_.socket(), buffer_, x.parser, net::redirect_error(net::use_awaitable, ec));
    co_return ec;
  };
  const ErrorCode ec = co_await within(service_.config.read_seconds, read());
  if (!ec) co_return true;
  const Failure failure = read_failure(ec, "body");
  if (failure) {
    co_await refuse(x, *failure);
  } else {
    x.log.status = 499;
    x.log.finish = "gone";
    gone_ = true;
  }
  co_return false;
}

net::awaitable<void> Connection::decline(Exchange& x, const ApiError& error) {
  Reply answer = to_reply(error);
  co_await reply(x, std::move(answer));
}

net::awaitable<void> Connection::refuse(Exchange& x, const ApiError& error) {
  x.keep_alive = false;
  co_await decline(x, error);
}

net::awaitable<void> Connection::reply(Exchange& x, Reply r) {
  x.log.status = r.status;
  if (r.status >= 400) {
    // What the body says, for the log.
    const auto body = Json::parse(r.body, nullptr, false);
    if (body.is_object() && body.contains("error")) x.log.error = body["error"].value("message", "");
  }
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nServer: oasis\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Request-Id: {}\r\n",
                  r.status, reason_phrase(r.status), r.type, r.body.size(), x.log.id);
  if (r.retry_after > 0) text += fmt::format("Retry-After: {}\r\n", r.retry_after);
  if (r.status == 401) text += "WWW-Authenticate: Bearer\r\n";
  if (!r.allow.empty()) text += fmt::format("Allow: {}\r\n", r.allow);
  text += x.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (!x.head) text += r.body;
  x.answered = true;
  if (!co_await write(text)) gone_ = true;
}

net::awaitable<bool> Connection::write(std::string_view bytes) {
  stream_.expires_after(std::chrono::duration_cast<Service::Clock::duration>(
      std::chrono::duration<double>(service_.config.write_seconds)));
  ErrorCode ec;
  co_await net::async_write(stream_, net::buffer(bytes), net::redirect_error(net::use_awaitable, ec));
  stream_.expires_never();
  co_return !ec;
}

// A socket that is closed with unread bytes in it takes the answer down with it: what the client still sends is read
// for a moment.
net::awaitable<void> Connection::linger() {
  ErrorCode ignored;
  stream_.socket().shutdown(net::ip::tcp::socket::shutdown_send, ignored);
  const auto drain = [this]() -> net::awaitable<ErrorCode> {
    std::vector<char> sink(size_t{64} << 10);
    ErrorCode ec;
    for (int64_t left = 2 * service_.config.body_bytes; left > 0 && !ec;) {
      left -= static_cast<int64_t>(
          co_await stream_.socket().async_read_some(net::buffer(sink), net::redirect_error(net::use_awaitable, ec)));
    }
    co_return ec;
  };
  co_await within(1, drain());
}

void Connection::finish(Exchange& x) {
  x.log.seconds = std::chrono::duration<double>(Service::Clock::now() - x.arrival).count();
  service_.metrics.answered(x.log.endpoint.empty() ? "unknown" : x.log.endpoint, x.log.status);
  write_line(x.log, service_.config.log_format);
}

}  // namespace oasis::serve
