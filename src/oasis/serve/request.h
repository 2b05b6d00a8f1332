// From a JSON body to requests for the engine: /v1/completions and /v1/chat/completions.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/engine/request.h"
#include "oasis/serve/api_error.h"
#include "oasis/serve/fields.h"
#include "oasis/serve/served_model.h"

namespace oasis::serve {

// What the API asks for. Choice i of the answer is copy i % n of prompt i / n.
struct GenerateRequest {
  bool chat = false;
  std::vector<std::vector<int32_t>> prompts;  // token ids, one prompt each; chat: one
  int32_t n = 1;
  engine::Request base;  // all but the prompt, the seed of a copy and the callback
  bool seeded = false;   // the seed is the client's
  bool stream = false, include_usage = false, return_progress = false;
  bool echo = false;                 // completions: the answer begins with the prompt
  bool prompt_only = false;          // max_tokens 0, with echo: what the model says next is not shown
  bool show_stats = false;           // oasis.stats
  bool parse_tools = false;          // tool calls become fields
  std::set<std::string> tool_names;  // that were offered
  bool opens_in_reasoning = false;   // the template has already written <think>
  std::string prompt_text;           // for the log, where it is asked for

  int32_t choices() const { return static_cast<int32_t>(prompts.size()) * n; }
};

Failure parse_completion(const Json& body, const ServedModel& model, GenerateRequest& out);
Failure parse_chat(const Json& body, const ServedModel& model, GenerateRequest& out);

// The engine's request for choice `i`. Copies of one prompt draw from different streams: seed, seed + 1, ...
engine::Request choice_request(const GenerateRequest& request, int32_t i);

// --- shared by the two, and by /tokenize ---
// A "model" that is not the served one: 404.
Failure check_model(const Json& body, const ServedModel& model);
// Sampling, stops, streaming, length, oasis options.
void parse_common(Fields& fields, const ServedModel& model, GenerateRequest& out);
// Every prompt leaves room for a token.
Failure check_length(const GenerateRequest& request, const ServedModel& model);
// messages, tools and template variables -> ids.
Failure encode_messages(const Json& body, const ServedModel& model, std::vector<int32_t>& ids);

}  // namespace oasis::serve
