// The HTTP server: listens, serves connections on one thread, ends in good order on SIGTERM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "oasis/base/status.h"
#include "oasis/engine/engine.h"
#include "oasis/serve/service.h"

namespace oasis::serve {

// The API's view of what the engine runs. `name`: as clients call it. Borrows the tokenizer.
ServedModel served_model(const engine::Engine& engine, const model::ModelConfig& model,
                         const text::Tokenizer& tokenizer, std::string name);

class Server {
 public:
  // Listens. `engine` must outlive the server and is not started yet.
  static Result<std::unique_ptr<Server>> create(engine::Engine& engine, ServedModel model, ServeConfig config);
  ~Server();

  std::string url() const;  // with the port that was taken
  // Serves until SIGTERM or SIGINT, then drains; a second signal ends the process. Returns the first signal's number.
  int run();

  struct Impl;

 private:
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oasis::serve
