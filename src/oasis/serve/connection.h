// One client's connection: requests one after another, within limits of size and time.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "oasis/serve/answer.h"
#include "oasis/serve/endpoints.h"
#include "oasis/serve/generation.h"
#include "oasis/serve/service.h"

namespace oasis::serve {

namespace beast = boost::beast;
namespace http = boost::beast::http;

// On the server's thread; `workers` read bodies, so that a long prompt delays nobody's stream.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Service& service, net::thread_pool& workers, net::ip::tcp::socket socket);

  // Until the client leaves, misbehaves, or the server drains. Throws nothing.
  net::awaitable<void> run();
  // Ends the connection if it is serving no request; false: it is, and goes on.
  bool close_if_idle();
  void close();

 private:
  using Parser = http::request_parser<http::string_body>;
  using ErrorCode = boost::system::error_code;

  // A request and what becomes of it.
  struct Exchange {
    Parser parser;
    Route route;
    Service::Clock::time_point arrival;
    LogLine log;
    bool keep_alive = false;
    bool head = false;       // HEAD: the headers alone
    bool answered = false;   // at least the headers are out
    int64_t body_bytes = 0;  // taken from Service::body_bytes
  };

  // --- connection.cc ---
  net::awaitable<bool> serve_one();  // false: the connection ends
  net::awaitable<void> serve(Exchange& x);
  net::awaitable<bool> read_header(Exchange& x);
  net::awaitable<bool> read_body(Exchange& x);
  Failure check_header(Exchange& x) const;
  Failure read_failure(ErrorCode ec, const char* part) const;
  net::awaitable<void> decline(Exchange& x, const ApiError& error);
  net::awaitable<void> refuse(Exchange& x, const ApiError& error);  // and end the connection
  net::awaitable<void> reply(Exchange& x, Reply reply);
  net::awaitable<bool> write(std::string_view bytes);
  net::awaitable<void> linger();
  void finish(Exchange& x);  // log and count

  // --- connection_generate.cc ---
  net::awaitable<void> generate(Exchange& x);
  net::awaitable<void> answer(Exchange& x, const GenerateRequest& request, Generation& generation);
  net::awaitable<Failure> answer_whole(Exchange& x, Answer& answer, Generation& generation);
  net::awaitable<Failure> answer_stream(Exchange& x, const GenerateRequest& request, Answer& answer,
                                        Generation& generation);
  net::awaitable<bool> open_stream(Exchange& x);
  net::awaitable<bool> send_chunks(const std::vector<std::string>& chunks, bool chunked);
  // Returns when the client has gone.
  net::awaitable<void> watch(Generation& generation);

  Service& service_;
  net::thread_pool& workers_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  bool busy_ = false;  // serving a request: drain waits for it
  bool closed_ = false;
  bool gone_ = false;  // the client left, or takes too little
};

}  // namespace oasis::serve
