// The endpoints that generate: parse on a worker, queue, and hand on what the engine says while the client stays.
#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>

#include "oasis/serve/connection.h"

namespace oasis::serve {
namespace {

using namespace net::experimental::awaitable_operators;

Failure parse(std::string_view body, bool chat, const ServedModel& model, GenerateRequest& out) {
  Json json;
  if (Failure failure = parse_object(body, json)) return failure;
  return chat ? parse_chat(json, model, out) : parse_completion(json, model, out);
}

// The error that ends an answer, if the choice ended with one.
Failure failure_of(const engine::Event& event) {
  if (event.finish == engine::FinishReason::kError) return from_engine(event.error, true);
  if (event.finish == engine::FinishReason::kCancelled) return unavailable("the server is shutting down");
  return {};
}

void add_reason(std::string& all, engine::FinishReason reason) {
  const std::string_view text = to_string(reason);
  if (all.find(text) != all.npos) return;
  if (!all.empty()) all += ',';
  all += text;
}

}  // namespace

net::awaitable<void> Connection::generate(Exchange& x) {
  const bool chat = x.route.endpoint == Endpoint::kChat;
  const auto full = [this](int32_t more) { return service_.active + more > service_.max_choices(); };
  const auto too_many = [this] {
    return overloaded(fmt::format("{} requests run or wait, and no more are taken: try again", service_.active));
  };
  Failure failure;
  if (service_.draining) {
    failure = unavailable("the server is shutting down");
  } else if (full(1)) {
    failure = too_many();
  }
  if (failure) co_return co_await decline(x, *failure);
  GenerateRequest request;
  auto work = [](std::string_view body, bool chat, const ServedModel& model,
                 GenerateRequest& out) -> net::awaitable<Failure> { co_return parse(body, chat, model, out); };
  failure =
      co_await net::co_spawn(workers_, work(x.parser.get().body(), chat, service_.model, request), net::use_awaitable);
  if (!failure && full(request.choices())) failure = too_many();
  if (failure) co_return co_await decline(x, *failure);
  if (service_.config.log_prompts) x.log.prompt = request.prompt_text;
  auto generation = std::make_shared<Generation>(service_, stream_.get_executor(), request.choices(), x.arrival);
  failure = generation->submit(request);
  if (failure) co_return co_await decline(x, *failure);
  co_await answer(x, request, *generation);
}

net::awaitable<void> Connection::answer(Exchange& x, const GenerateRequest& request, Generation& generation) {
  generation.on_overflow = [weak = weak_from_this()] {
    if (auto self = weak.lock()) {
      self->gone_ = true;
      self->close();
    }
  };
  Answer answer(request, service_.model, (request.chat ? "chatcmpl-" : "cmpl-") + x.log.id);
  bool produced = false;
  const auto produce = [&]() -> net::awaitable<void> {
    Failure failure;
    if (request.stream) {
      failure = co_await answer_stream(x, request, answer, generation);
    } else {
      failure = co_await answer_whole(x, answer, generation);
    }
    if (failure) {
      generation.cancel();
      x.log.error = failure->message;
      Reply error = to_reply(*failure);
      if (!x.answered) co_await reply(x, std::move(error));
    }
    produced = true;
  };
  co_await (produce() || watch(generation));
  generation.on_overflow = nullptr;
  gone_ |= !produced;
  x.log.prompt_tokens = answer.prompt_tokens();
  x.log.cached_tokens = answer.cached_tokens();
  x.log.output_tokens = answer.output_tokens();
  x.log.first_token_seconds = generation.first_token_seconds();
  if (gone_) {
    generation.cancel();
    x.log.status = 499;
    x.log.finish = generation.overflowed() ? "too slow" : "gone";
  }
}

// A failure: nothing has been sent yet.
net::awaitable<Failure> Connection::answer_whole(Exchange& x, Answer& answer, Generation& generation) {
  std::vector<std::string> none;
  for (int32_t left = answer.choices(); left > 0;) {
    const std::vector<Piece> pieces = co_await generation.next();
    for (const Piece& piece : pieces) {
      if (Failure failure = failure_of(piece.event)) co_return failure;
      if (piece.event.finish != engine::FinishReason::kNone) {
        answer.set_stats(piece.choice, generation.stats(piece.choice));
        add_reason(x.log.finish, piece.event.finish);
        --left;
      }
      answer.add(piece.choice, piece.event, none);
    }
  }
  Reply whole{.body = answer.whole()};
  co_await reply(x, std::move(whole));
  co_return Failure{};
}

// The header goes out with the engine's first sign of life, so that a request that it refuses still gets its status.
net::awaitable<Failure> Connection::answer_stream(Exchange& x, const GenerateRequest& request, Answer& answer,
                                                  Generation& generation) {
  const bool chunked = x.parser.get().version() >= 11;
  if (!chunked) x.keep_alive = false;
  Failure failure;
  for (int32_t left = answer.choices(); left > 0 && !failure;) {
    std::vector<std::string> chunks;
    const std::vector<Piece> pieces = co_await generation.next();
    for (const Piece& piece : pieces) {
      if ((failure = failure_of(piece.event))) break;
      if (piece.event.finish != engine::FinishReason::kNone) {
        answer.set_stats(piece.choice, generation.stats(piece.choice));
        add_reason(x.log.finish, piece.event.finish);
        --left;
      }
      answer.add(piece.choice, piece.event, chunks);
    }
    if (failure && !x.answered) co_return failure;
    if (failure) {
      add_reason(x.log.finish, engine::FinishReason::kError);
      chunks.push_back(to_json(*failure));
    } else if (left == 0 && request.include_usage) {
      chunks.push_back(answer.usage_chunk());
    }
    if (!x.answered && !co_await open_stream(x)) co_return Failure{};
    if (left == 0 || failure) chunks.push_back("[DONE]");
    if (!chunks.empty() && !co_await send_chunks(chunks, chunked)) co_return Failure{};
  }
  if (chunked && !co_await write("0\r\n\r\n")) gone_ = true;
  co_return failure;
}

net::awaitable<bool> Connection::open_stream(Exchange& x) {
  x.answered = true;
  x.log.status = 200;
  std::string text = fmt::format(
      "HTTP/1.1 200 OK\r\nServer: oasis\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: "
      "no-cache\r\n"
      "X-Accel-Buffering: no\r\nX-Request-Id: {}\r\n{}Connection: {}\r\n\r\n",
      x.log.id, x.parser.get().version() >= 11 ? "Transfer-Encoding: chunked\r\n" : "",
      x.keep_alive ? "keep-alive" : "close");
  const bool sent = co_await write(text);
  gone_ |= !sent;
  co_return sent;
}

// Server-sent events, all of them in one chunk of HTTP.
net::awaitable<bool> Connection::send_chunks(const std::vector<std::string>& chunks, bool chunked) {
  std::string events;
  for (const std::string& chunk : chunks) {
    events += "data: ";
    events += chunk;
    events += "\n\n";
  }
  if (chunked) events = fmt::format("{:x}\r\n{}\r\n", events.size(), events);
  const bool sent = co_await write(events);
  gone_ |= !sent;
  co_return sent;
}

// A client that shuts its side down has gone too. What it sends meanwhile is its next request: kept, within the buffer.
net::awaitable<void> Connection::watch(Generation& generation) {
  auto& socket = stream_.socket();
  for (;;) {
    ErrorCode ec;
    co_await socket.async_wait(net::ip::tcp::socket::wait_read, net::redirect_error(net::use_awaitable, ec));
    if (ec == net::error::operation_aborted) co_return;
    char byte = 0;
    const ssize_t n = ec ? 0 : ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    if (n > 0 && buffer_.size() + 4096 <= buffer_.max_size()) {
      buffer_.commit(socket.read_some(buffer_.prepare(4096), ec));
      continue;
    }
    gone_ = true;  // or it sends far more than it waits for
    generation.cancel();
    close();
    co_return;
  }
}

}  // namespace oasis::serve
