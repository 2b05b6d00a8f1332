#include "oasis/serve/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "oasis/text/utf8.h"

namespace oasis::serve {
namespace {

using Object = nlohmann::ordered_json;

ChatFormat format_of(const GenerateRequest& request, const ServedModel& model) {
  if (!request.chat) return {};
  return {.thinks = model.thinks,
          .opens_in_reasoning = request.opens_in_reasoning,
          .tools = request.parse_tools,
          .bare_calls = request.parse_tools && model.template_takes_tools && !model.tagged_tool_calls,
          .tool_names = request.tool_names};
}

// JSON has no infinity.
double finite(float logprob) { return std::max<double>(logprob, -9999.0); }

// A key that is its own for every token: bytes that are no text are spelled out, as the API does.
std::string token_key(std::string_view bytes) {
  if (text::is_valid_utf8(bytes)) return std::string(bytes);
  std::string key = "bytes:";
  for (const unsigned char byte : bytes) key += fmt::format("\\x{:02x}", byte);
  return key;
}

Object chat_token(const text::Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string_view bytes = tokenizer.token_bytes(token);
  Object numbers = Object::array();
  for (const unsigned char byte : bytes) numbers.push_back(byte);
  return {{"token", text::to_valid_utf8(bytes)}, {"logprob", finite(logprob)}, {"bytes", numbers}};
}

Object tool_call_json(const ToolCall& call, const std::string& id) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

std::string dump(const Object& value) { return value.dump(-1, ' ', false, Object::error_handler_t::replace); }

Answer::Answer(const GenerateRequest& request, const ServedModel& model, std::string id)
    : request_(request), model_(model), id_(std::move(id)), created_(std::time(nullptr)) {
  for (int32_t i = 0; i < request.choices(); ++i) choices_.emplace_back(format_of(request, model));
}

void Answer::set_stats(int32_t choice, const engine::RequestStats& stats) {
  choices_[static_cast<size_t>(choice)].stats = stats;
}

void Answer::add(int32_t choice, const engine::Event& event, std::vector<std::string>& chunks) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  progress(choice, event, chunks);
  c.prompt.insert(c.prompt.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
  if (event.tokens.empty() && event.text.empty() && event.finish == engine::FinishReason::kNone) return;
  if (event.finish == engine::FinishReason::kNone) {  // until the engine's own figures come
    c.stats.cached_tokens = event.cached_tokens;
    c.stats.output_tokens += static_cast<int32_t>(event.tokens.size());
  }
  open(choice, chunks);
  ChatDelta delta;
  if (request_.prompt_only) {
    c.stats.output_tokens = 0;  // the echo is all
  } else {
    for (const auto& token : event.tokens) add_logprobs(c, token);
    if (request_.chat) {
      delta = c.output.push(event.text);
    } else {
      delta.content = event.text;
    }
  }
  if (event.finish == engine::FinishReason::kNone) return add_text(choice, delta, chunks);
  if (request_.chat) {
    ChatDelta rest = c.output.finish();
    delta.reasoning += rest.reasoning;
    delta.content += rest.content;
    delta.calls.insert(delta.calls.end(), rest.calls.begin(), rest.calls.end());
  }
  add_text(choice, delta, chunks);
  const bool stopped = event.finish == engine::FinishReason::kStop;
  c.finish = stopped && c.output.called() ? "tool_calls" : std::string(to_string(event.finish));
  if (request_.prompt_only) c.finish = "length";
  if (!request_.stream) return;
  Object last = request_.chat ? Object{{"delta", Object::object()}} : Object{{"text", ""}};
  last["logprobs"] = std::exchange(c.logprobs, nullptr);
  last["finish_reason"] = c.finish;
  if (request_.show_stats) last["oasis"] = stats_json(c);
  chunks.push_back(dump(chunk(choice, std::move(last))));
}

// Before the first token: the role, or the prompt that is to be repeated.
void Answer::open(int32_t choice, std::vector<std::string>& chunks) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  if (std::exchange(c.opened, true)) return;
  if (request_.echo) echo_prompt(choice, chunks);
  if (!request_.chat || !request_.stream) return;
  chunks.push_back(dump(
      chunk(choice,
            {{"delta", {{"role", "assistant"}, {"content", ""}}}, {"logprobs", nullptr}, {"finish_reason", nullptr}})));
}

void Answer::progress(int32_t choice, const engine::Event& event, std::vector<std::string>& chunks) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  if (!request_.return_progress || !request_.stream || event.prefilled <= c.progress || event.prefilled == 0) return;
  c.progress = event.prefilled;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin_);
  Object body = request_.chat ? Object{{"delta", Object::object()}} : Object{{"text", ""}};
  body["logprobs"] = nullptr;
  body["finish_reason"] = nullptr;
  Object all = chunk(choice, std::move(body));
  all["prompt_progress"] = {{"total", event.prompt_tokens},
                            {"cache", event.cached_tokens},
                            {"processed", event.prefilled},
                            {"time_ms", ms.count()}};
  chunks.push_back(dump(all));
}

// Nothing comes before the first token, so its log-probability is null.
void Answer::echo_prompt(int32_t choice, std::vector<std::string>& chunks) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  const auto& ids = request_.prompts[static_cast<size_t>(choice / request_.n)];
  if (request_.base.sampling.logprobs >= 0) {
    add_logprobs(c, {.token = ids[0], .logprob = std::numeric_limits<float>::quiet_NaN()});
    for (const engine::Sampled& token : std::exchange(c.prompt, {})) add_logprobs(c, token);
  }
  add_text(choice, {.content = model_.tokenizer->decode(ids, true)}, chunks);
}

void Answer::add_logprobs(Choice& c, const engine::Sampled& sampled) const {
  if (request_.base.sampling.logprobs < 0) return;
  const auto& tokenizer = *model_.tokenizer;
  const bool known = sampled.logprob == sampled.logprob;
  if (request_.chat) {
    if (c.logprobs.is_null()) c.logprobs = {{"content", Object::array()}};
    Object entry = chat_token(tokenizer, sampled.token, sampled.logprob);
    entry["top_logprobs"] = Object::array();
    for (const auto& top : sampled.top) entry["top_logprobs"].push_back(chat_token(tokenizer, top.token, top.logprob));
    c.logprobs["content"].push_back(std::move(entry));
    return;
  }
  if (c.logprobs.is_null()) {
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      c.logprobs[name] = Object::array();
    }
  }
  const std::string_view bytes = tokenizer.token_bytes(sampled.token);
  Object top;
  if (known && request_.base.sampling.logprobs > 0) {
    top = Object::object();
    for (const auto& t : sampled.top) top[token_key(tokenizer.token_bytes(t.token))] = finite(t.logprob);
  }
  c.logprobs["tokens"].push_back(token_key(bytes));
  c.logprobs["token_logprobs"].push_back(known ? Object(finite(sampled.logprob)) : Object());
  c.logprobs["top_logprobs"].push_back(std::move(top));
  c.logprobs["text_offset"].push_back(c.offset);
  const bool shown = !request_.base.skip_special || !tokenizer.is_control(sampled.token);
  if (shown) c.offset += text::count_utf8(text::to_valid_utf8(bytes));
}

void Answer::add_text(int32_t choice, const ChatDelta& delta, std::vector<std::string>& chunks) {
  Choice& c = choices_[static_cast<size_t>(choice)];
  Object calls = Object::array();
  for (const ToolCall& call : delta.calls) {
    Object json =
        tool_call_json(call, fmt::format("call_{}_{}_{}", id_.substr(id_.find('-') + 1), choice, c.call_count));
    if (request_.stream) json["index"] = c.call_count;
    ++c.call_count;
    calls.push_back(std::move(json));
  }
  if (!request_.stream) {
    c.text += delta.content;
    c.reasoning += delta.reasoning;
    for (auto& call : calls) c.calls.push_back(std::move(call));
    return;
  }
  if (delta.empty()) return;
  Object body;
  if (request_.chat) {
    Object shown = Object::object();
    if (!delta.reasoning.empty()) shown["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) shown["content"] = delta.content;
    if (!calls.empty()) shown["tool_calls"] = std::move(calls);
    body["delta"] = std::move(shown);
  } else {
    body["text"] = delta.content;
  }
  body["logprobs"] = std::exchange(c.logprobs, nullptr);
  body["finish_reason"] = nullptr;
  chunks.push_back(dump(chunk(choice, std::move(body))));
}

Object Answer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

// `body`: the choice without its index.
Object Answer::chunk(int32_t choice, Object body) const {
  Object all = head(request_.chat ? "chat.completion.chunk" : "text_completion");
  Object indexed = {{"index", choice}};
  indexed.update(body);
  all["choices"] = Object::array({std::move(indexed)});
  if (request_.include_usage) all["usage"] = nullptr;
  return all;
}

int64_t Answer::prompt_tokens() const {
  int64_t sum = 0;
  for (const auto& prompt : request_.prompts) sum += static_cast<int64_t>(prompt.size());
  return sum;
}

// Of each prompt's first copy: the others share what that one left.
int64_t Answer::cached_tokens() const {
  int64_t sum = 0;
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(request_.n)) sum += choices_[i].stats.cached_tokens;
  return sum;
}

int64_t Answer::output_tokens() const {
  int64_t sum = 0;
  for (const Choice& c : choices_) sum += c.stats.output_tokens;
  return sum;
}

Object Answer::usage() const {
  int64_t accepted = 0, compared = 0;
  for (const Choice& c : choices_) {
    accepted += c.stats.accepted;
    compared += c.stats.compared;
  }
  return {{"prompt_tokens", prompt_tokens()},
          {"completion_tokens", output_tokens()},
          {"total_tokens", prompt_tokens() + output_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens()}}},
          {"completion_tokens_details",
           {{"accepted_prediction_tokens", accepted}, {"rejected_prediction_tokens", compared - accepted}}}};
}

Object Answer::stats_json(const Choice& c) const {
  const auto& s = c.stats;
  return {
      {"queued_seconds", s.queued_seconds},
      {"prefill_seconds", s.prefill_seconds},
      {"decode_seconds", s.decode_seconds},
      {"steps", s.steps},
      {"sparse_steps", s.sparse_steps},
      {"preemptions", s.preemptions},
      {"drafts", {{"proposed", s.proposed}, {"compared", s.compared}, {"right", s.right}, {"accepted", s.accepted}}}};
}

std::string Answer::usage_chunk() const {
  Object all = head(request_.chat ? "chat.completion.chunk" : "text_completion");
  all["choices"] = Object::array();
  all["usage"] = usage();
  return dump(all);
}

Object Answer::whole_choice(int32_t index) const {
  const Choice& c = choices_[static_cast<size_t>(index)];
  Object choice = {{"index", index}};
  if (request_.chat) {
    Object message = {{"role", "assistant"}};
    message["content"] = c.text.empty() && !c.calls.empty() ? Object() : Object(c.text);
    if (!c.reasoning.empty()) message["reasoning_content"] = c.reasoning;
    if (!c.calls.empty()) message["tool_calls"] = c.calls;
    choice["message"] = std::move(message);
  } else {
    choice["text"] = c.text;
  }
  choice["logprobs"] = c.logprobs;
  choice["finish_reason"] = c.finish;
  if (request_.show_stats) choice["oasis"] = stats_json(c);
  return choice;
}

std::string Answer::whole() const {
  Object all = head(request_.chat ? "chat.completion" : "text_completion");
  all["choices"] = Object::array();
  for (size_t i = 0; i < choices_.size(); ++i) all["choices"].push_back(whole_choice(static_cast<int32_t>(i)));
  all["usage"] = usage();
  return dump(all);
}

}  // namespace oasis::serve
