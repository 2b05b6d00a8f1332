// The JSON of an answer, streamed or whole, from the engine's events.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oasis/engine/request.h"
#include "oasis/serve/chat_output.h"
#include "oasis/serve/request.h"

namespace oasis::serve {

// Borrows request and model.
class Answer {
 public:
  Answer(const GenerateRequest& request, const ServedModel& model, std::string id);

  // Takes in an event of `choice`. Streaming: appends the chunks that it is worth to `chunks`.
  void add(int32_t choice, const engine::Event& event, std::vector<std::string>& chunks);
  // What the choice cost: before its last event is added.
  void set_stats(int32_t choice, const engine::RequestStats& stats);
  // The chunk of stream_options.include_usage; after all events.
  std::string usage_chunk() const;
  // Not streamed: the whole answer; after all events.
  std::string whole() const;

  int32_t choices() const { return static_cast<int32_t>(choices_.size()); }
  // Of an answer that has not ended: so far.
  int64_t prompt_tokens() const, cached_tokens() const, output_tokens() const;

 private:
  using Object = nlohmann::ordered_json;
  struct Choice {
    explicit Choice(ChatFormat format) : output(std::move(format)) {}
    ChatOutput output;
    std::string text, reasoning;          // whole answers
    Object calls = Object::array();       // whole answers
    Object logprobs;                      // not yet given out; null: none
    std::vector<engine::Sampled> prompt;  // its log-probabilities, as they come
    size_t offset = 0;                    // characters of text so far, for text_offset
    int32_t call_count = 0, progress = -1;
    bool opened = false;  // the first chunk is out
    std::string finish;
    engine::RequestStats stats;
  };

  void open(int32_t choice, std::vector<std::string>& chunks);
  void progress(int32_t choice, const engine::Event& event, std::vector<std::string>& chunks);
  void add_logprobs(Choice& c, const engine::Sampled& sampled) const;
  void add_text(int32_t choice, const ChatDelta& delta, std::vector<std::string>& chunks);
  void echo_prompt(int32_t choice, std::vector<std::string>& chunks);
  Object head(const char* object) const;
  Object chunk(int32_t choice, Object body) const;
  Object usage() const;
  Object stats_json(const Choice& c) const;
  Object whole_choice(int32_t index) const;

  const GenerateRequest& request_;
  const ServedModel& model_;
  const std::string id_;
  const int64_t created_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<Choice> choices_;
};

// With every byte that is no UTF-8 replaced.
std::string dump(const nlohmann::ordered_json& value);

}  // namespace oasis::serve
