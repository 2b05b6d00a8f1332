// The bridge between the engine's thread and the server's, with a tiny model.
#include "oasis/serve/generation.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "oasis/model/random_checkpoint.h"

namespace oasis::serve {
namespace {

struct Bench {
  Bench() {
    model::ModelConfig c;
    c.name = "tiny";
    c.layers = 2;
    c.hidden = 64;
    c.heads = 2;
    c.kv_heads = 1;
    c.head_dim = 64;
    c.intermediate = 64;
    c.vocab = 100;
    c.context = 4096;
    device = make_cpu_device(1);
    checkpoint.emplace(model::make_random(c, 1));
    auto made = engine::Engine::create(*device, *checkpoint, nullptr, {.max_sequences = 2, .draft = "none"});
    EXPECT_TRUE(made.ok()) << made.status().message();
    engine = std::move(*made);
    service.reset(new Service{.engine = *engine, .model = {.name = "tiny", .vocab = 100}});
  }
  // Runs `client` beside the engine's thread until nothing is left to do.
  template <typename Client>
  void run(Client client) {
    engine->start();
    net::co_spawn(io, client(), [](const std::exception_ptr& e) { EXPECT_EQ(e, nullptr); });
    const auto end = Service::Clock::now() + std::chrono::seconds(60);
    do {
      io.restart();
      io.run_for(std::chrono::milliseconds(5));
    } while (service->active > 0 && Service::Clock::now() < end);
    io.restart();
    io.run_for(std::chrono::milliseconds(5));
    engine->stop();
    EXPECT_EQ(service->active, 0);
    EXPECT_TRUE(service->generations.empty());
  }

  std::unique_ptr<Device> device;
  std::optional<model::Checkpoint> checkpoint;
  net::io_context io;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<Service> service;
};

GenerateRequest request(int32_t max_tokens) {
  GenerateRequest r{.prompts = {{1, 2, 3}}, .n = 2};
  r.base.max_tokens = max_tokens;
  r.base.ignore_eos = true;
  return r;
}

TEST(Generation, AllTokensOfAllChoicesArriveWithTheirCosts) {
  Bench bench;
  bench.run([&]() -> net::awaitable<void> {
    const GenerateRequest r = request(20);
    auto generation =
        std::make_shared<Generation>(*bench.service, bench.io.get_executor(), r.choices(), Service::Clock::now());
    EXPECT_FALSE(generation->submit(r).has_value());
    EXPECT_EQ(bench.service->active, 2);
    std::vector<size_t> tokens(2);
    for (int left = 2; left > 0;) {
      const std::vector<Piece> pieces = co_await generation->next();
      for (const Piece& piece : pieces) {
        tokens[static_cast<size_t>(piece.choice)] += piece.event.tokens.size();
        if (piece.event.finish == engine::FinishReason::kNone) continue;
        --left;
        EXPECT_EQ(generation->stats(piece.choice).output_tokens, 20);
      }
    }
    EXPECT_EQ(tokens, (std::vector<size_t>{20, 20}));
    EXPECT_GT(generation->first_token_seconds(), 0);
  });
}

TEST(Generation, WhoeverTakesNothingIsCancelledWhenTheBufferIsFull) {
  Bench bench;
  bench.service->config.stream_bytes = 5000;
  bool told = false;
  std::weak_ptr<Generation> weak;
  bench.run([&]() -> net::awaitable<void> {
    const GenerateRequest r = request(4000);
    auto generation =
        std::make_shared<Generation>(*bench.service, bench.io.get_executor(), r.choices(), Service::Clock::now());
    weak = generation;
    generation->on_overflow = [&] { told = true; };
    EXPECT_FALSE(generation->submit(r).has_value());
    co_return;  // and never asks for a piece
  });
  EXPECT_TRUE(told);
  EXPECT_LT(bench.engine->metrics().output_tokens, 1000);
  EXPECT_EQ(bench.engine->metrics().cancelled, 2);
  EXPECT_TRUE(weak.expired());
}

TEST(Generation, ARequestThatCannotRunLeavesNothingBehind) {
  Bench bench;
  bench.run([&]() -> net::awaitable<void> {
    GenerateRequest r = request(5);
    r.prompts.push_back(std::vector<int32_t>(5000, 1));  // longer than the context: refused after two were queued
    auto generation =
        std::make_shared<Generation>(*bench.service, bench.io.get_executor(), r.choices(), Service::Clock::now());
    const Failure failure = generation->submit(r);
    EXPECT_TRUE(failure.has_value());
    EXPECT_EQ(failure->status, 400);
    co_return;
  });
  EXPECT_EQ(bench.engine->metrics().cancelled + bench.engine->metrics().finished, 2);
}

}  // namespace
}  // namespace oasis::serve
