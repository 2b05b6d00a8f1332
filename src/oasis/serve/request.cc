#include "oasis/serve/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

namespace oasis::serve {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr size_t kMostStops = 64, kLongestStop = 1024;

// Asked for, and not done: to leave them out silently would give another answer than was asked for.
constexpr const char* kNotSupported[] = {"guided_json",
                                         "guided_regex",
                                         "guided_choice",
                                         "guided_grammar",
                                         "grammar",
                                         "structured_outputs",
                                         "json_schema",
                                         "prompt_logprobs",
                                         "prompt_embeds",
                                         "chat_template",
                                         "suffix",
                                         "use_beam_search",
                                         "continue_final_message",
                                         "functions",
                                         "function_call",
                                         "audio"};

// Set once for the whole server.
constexpr std::string_view kServerWide[] = {
    "summaries",     "attention",     "block_size",  "top_k_blocks",    "resident_ratio", "block_score",
    "kv_dtype",      "fetch",         "fetch_ratio", "draft",           "accept_drafts",  "draft_tokens",
    "fast_memory",   "device",        "context",     "capacity_memory", "capacity_file",  "device_memory",
    "prefill_chunk", "prefill_share", "threads",     "max_sequences"};

void parse_sampling(Fields& f, const ServedModel& model, GenerateRequest& out) {
  auto& s = out.base.sampling;
  s.temperature = model.temperature;
  s.top_p = model.top_p;
  s.top_k = model.top_k;
  f.number("temperature", 0, 2, s.temperature);
  f.number("top_p", 0, 1, s.top_p);
  if (s.top_p <= 0) f.fail("top_p", "must be above 0");
  f.whole("top_k", -1, kMost, s.top_k);
  s.top_k = std::max(s.top_k, 0);
  f.number("min_p", 0, 1, s.min_p);
  f.number("repetition_penalty", 0.01, 100, s.repetition_penalty);
  f.number("presence_penalty", -2, 2, s.presence_penalty);
  f.number("frequency_penalty", -2, 2, s.frequency_penalty);
  int64_t seed = 0;
  out.seeded = f.find("seed") != nullptr;
  f.whole("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), seed);
  s.seed = static_cast<uint64_t>(seed);
  const Json* bias = f.object("logit_bias");
  if (!bias) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= model.vocab) {
      return f.fail("logit_bias", fmt::format("'{}' is not a token id: this model's lie in 0 .. {}", key.substr(0, 60),
                                              model.vocab - 1));
    }
    if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
      return f.fail("logit_bias", fmt::format("{} for token {} does not lie in -100 .. 100", shown(value), id));
    }
    s.logit_bias.emplace_back(id, value.get<float>());
  }
}

void parse_stops(Fields& f, const ServedModel& model, GenerateRequest& out) {
  const auto add = [&](const Json& value) {
    if (!value.is_string())
      return f.fail("stop", fmt::format("must be a string or a list of them, not {}", shown(value)));
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return f.fail("stop", "must not be empty");
    if (text.size() > kLongestStop) {
      return f.fail("stop", fmt::format("{} bytes are too long: at most {}", text.size(), kLongestStop));
    }
    out.base.stop.push_back(text);
  };
  if (const Json* stop = f.find("stop")) {
    if (stop->is_array() && stop->size() > kMostStops) {
      f.fail("stop", fmt::format("{} strings are too many: at most {}", stop->size(), kMostStops));
    } else if (stop->is_array()) {
      for (const Json& item : *stop) add(item);
    } else {
      add(*stop);
    }
  }
  f.ids("stop_token_ids", model.vocab, out.base.stop_tokens);
  f.boolean("ignore_eos", out.base.ignore_eos);
  out.base.skip_special = true;
  f.boolean("skip_special_tokens", out.base.skip_special);
}

void parse_length(Fields& f, GenerateRequest& out) {
  f.whole("max_tokens", 1, kMost, out.base.max_tokens);
  f.whole("max_completion_tokens", 1, kMost, out.base.max_tokens);
  // Load testers ask for an exact length with min_tokens = max_tokens: that is what ignore_eos means.
  int64_t least = 0;
  f.whole("min_tokens", 0, kMost, least);
  if (least == 0 || out.base.ignore_eos) return;
  if (least != out.base.max_tokens) return f.fail("min_tokens", "is not supported, unless it equals max_tokens");
  out.base.ignore_eos = true;
}

void parse_streaming(Fields& f, GenerateRequest& out) {
  f.boolean("stream", out.stream);
  f.boolean("return_progress", out.return_progress);
  const Json* options = f.object("stream_options");
  if (!options) return;
  Fields nested(*options, "stream_options.");
  nested.boolean("include_usage", out.include_usage);
  if (nested.failed()) return f.fail("stream_options", nested.failure()->message);
  if (!out.stream) f.fail("stream_options", "needs stream: true");
}

void parse_oasis(Fields& f, const ServedModel& model, GenerateRequest& out) {
  const Json* options = f.object("oasis");
  if (!options) return;
  Fields nested(*options, "oasis.");
  for (const auto& [name, value] : options->items()) {
    if (name == "stats" || name == "follow") continue;
    const bool known = std::find(std::begin(kServerWide), std::end(kServerWide), name) != std::end(kServerWide);
    return f.fail("oasis", known
                               ? fmt::format("{} is set when the server starts, not by a request", name)
                               : fmt::format("'{}' is not an option: there are stats and follow", name.substr(0, 60)));
  }
  nested.boolean("stats", out.show_stats);
  nested.ids("follow", model.vocab, out.base.forced);
  if (nested.failed()) f.fail("oasis", nested.failure()->message);
}

void refuse_unsupported(Fields& f) {
  for (const char* name : kNotSupported) {
    const Json* value = f.find(name);
    if (value && *value != Json(false)) f.fail(name, "is not supported by this server");
  }
  if (const Json* format = f.object("response_format")) {
    const auto type = format->find("type");
    if (type == format->end() || !type->is_string()) {
      f.fail("response_format", "must have a type that is a string");
    } else if (*type != "text") {
      f.fail("response_format", fmt::format("type {} is not supported by this server: only \"text\" is", shown(*type)),
             "unsupported_response_format");
    }
  }
  int64_t best_of = 0;
  f.whole("best_of", 0, kMost, best_of);
  int64_t n = 1;
  f.whole("n", 1, kMost, n);
  if (best_of > n) f.fail("best_of", "more than n is not supported by this server");
}

}  // namespace

Failure check_model(const Json& body, const ServedModel& model) {
  const auto it = body.find("model");
  if (it == body.end() || it->is_null()) return {};
  if (!it->is_string()) return bad_request(fmt::format("model: must be a string, not {}", shown(*it)), "model");
  if (*it == model.name) return {};
  ApiError error =
      bad_request(fmt::format("the model {} does not exist: this server has \"{}\"", shown(*it), model.name), "model",
                  "model_not_found");
  error.status = 404;
  return error;
}

void parse_common(Fields& f, const ServedModel& model, GenerateRequest& out) {
  refuse_unsupported(f);
  f.whole("n", 1, 128, out.n);
  parse_sampling(f, model, out);
  parse_stops(f, model, out);
  parse_length(f, out);
  parse_streaming(f, out);
  parse_oasis(f, model, out);
}

Failure check_length(const GenerateRequest& request, const ServedModel& model) {
  for (const auto& prompt : request.prompts) {
    if (static_cast<int64_t>(prompt.size()) < model.context) continue;
    return bad_request(fmt::format("the prompt has {} tokens, and this server's context ends at {}, with the output",
                                   prompt.size(), model.context),
                       request.chat ? "messages" : "prompt", "context_length_exceeded");
  }
  return {};
}

engine::Request choice_request(const GenerateRequest& request, int32_t i) {
  engine::Request r = request.base;
  r.prompt = request.prompts[static_cast<size_t>(i / request.n)];
  if (request.seeded) {
    r.sampling.seed += static_cast<uint64_t>(i % request.n);
  } else {
    thread_local std::mt19937_64 seeds{(uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()};
    r.sampling.seed = seeds();
  }
  return r;
}

}  // namespace oasis::serve
