#include "oasis/serve/chat_output.h"

#include <algorithm>

namespace oasis::serve {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
constexpr std::string_view kCall = "<tool_call>", kEndCall = "</tool_call>";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kBlank = " \t\r\n";

// How many bytes at the end of `text` may be the beginning of `tag`.
size_t tag_begun(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n) {
    if (text.ends_with(tag.substr(0, n))) return n;
  }
  return 0;
}

// `text` without its leading blanks.
std::string_view after_blanks(std::string_view text) {
  const size_t at = text.find_first_not_of(kBlank);
  return at == text.npos ? std::string_view() : text.substr(at);
}

// `text` is a part of `tag`, but not all of it.
bool is_begun(std::string_view text, std::string_view tag) { return text.size() < tag.size() && tag.starts_with(text); }

}  // namespace

ChatOutput::ChatOutput(ChatFormat format) : format_(std::move(format)) {
  if (format_.opens_in_reasoning) part_ = Part::kReasoning;
  if (!format_.thinks && !format_.opens_in_reasoning) part_ = Part::kDecide;
}

ChatDelta ChatOutput::push(std::string_view text) {
  ChatDelta out;
  held_ += text;
  while (advance(out, false)) {
  }
  return out;
}

ChatDelta ChatOutput::finish() {
  ChatDelta out;
  while (advance(out, true)) {
  }
  return out;
}

bool ChatOutput::advance(ChatDelta& out, bool last) {
  switch (part_) {
    case Part::kStart:
      return start(last);
    case Part::kReasoning:
      return reasoning(out, last);
    case Part::kAfterReasoning: {
      held_ = after_blanks(held_);
      if (held_.empty()) return false;
      part_ = Part::kDecide;
      return true;
    }
    case Part::kDecide:
      return decide(last);
    case Part::kContent:
      return content(out, last);
    case Part::kCall:
      return call(out, last);
    case Part::kBare:
      return bare(out, last);
  }
  return false;
}

bool ChatOutput::start(bool last) {
  const std::string_view text = after_blanks(held_);
  if (text.starts_with(kThink)) {
    held_ = std::string(text.substr(kThink.size()));
    part_ = Part::kReasoning;
    return true;
  }
  if (is_begun(text, kThink) && !last) return false;
  part_ = Part::kDecide;
  return true;
}

// The blanks before and after the reasoning are not part of it; what may be either is held back.
bool ChatOutput::reasoning(ChatDelta& out, bool last) {
  const size_t end = held_.find(kEndThink);
  std::string_view text(held_);
  if (end != held_.npos) {
    text = text.substr(0, end);
  } else if (!last) {
    text = text.substr(0, text.size() - tag_begun(text, kEndThink));
  }
  const size_t solid = text.find_last_not_of(kBlank);
  const std::string_view sure = solid == text.npos ? std::string_view() : text.substr(0, solid + 1);
  out.reasoning += reasoned_ ? sure : after_blanks(sure);
  reasoned_ |= !sure.empty();
  if (end != held_.npos) {
    held_.erase(0, end + kEndThink.size());
    part_ = Part::kAfterReasoning;
    return true;
  }
  held_.erase(0, sure.size());
  if (!reasoned_) held_ = after_blanks(held_);
  if (last) held_.clear();
  return false;
}

// Is the answer as a whole a call without tags? Only its first characters can tell.
bool ChatOutput::decide(bool last) {
  if (!format_.tools || !format_.bare_calls) {
    part_ = Part::kContent;
    return true;
  }
  const std::string_view text = after_blanks(held_);
  if (!last && (text.empty() || is_begun(text, kPython))) return false;
  const std::string_view inside = text.starts_with('{') ? after_blanks(text.substr(1)) : std::string_view();
  if (!last && text.starts_with('{') && inside.empty()) return false;
  part_ = inside.starts_with('"') || text.starts_with(kPython) ? Part::kBare : Part::kContent;
  return true;
}

bool ChatOutput::content(ChatDelta& out, bool last) {
  if (!format_.tools) {
    out.content += held_;
    held_.clear();
    return false;
  }
  const size_t tag = held_.find(kCall);
  const size_t end = tag != held_.npos ? tag : held_.size() - (last ? 0 : tag_begun(held_, kCall));
  const std::string_view text = std::string_view(held_).substr(0, end);
  if (spoke_ || !after_blanks(text).empty()) {
    out.content += text;
    spoke_ = true;
    held_.erase(0, end);
  } else if (tag != held_.npos || (last && calls_ > 0)) {
    held_.erase(0, end);  // blanks before or after a call
  } else if (last) {
    out.content += text;
    held_.erase(0, end);
  }
  if (tag == held_.npos) return false;
  held_.erase(0, kCall.size());
  part_ = Part::kCall;
  return true;
}

// A model may end its answer without the closing tag.
bool ChatOutput::call(ChatDelta& out, bool last) {
  const size_t end = held_.find(kEndCall, searched_);
  if (end == held_.npos && !last) {
    searched_ = held_.size() - std::min(held_.size(), kEndCall.size() - 1);
    return false;
  }
  searched_ = 0;
  const std::string inside = held_.substr(0, end);
  held_.erase(0, end == held_.npos ? end : end + kEndCall.size());
  part_ = Part::kContent;
  if (auto calls = parse_tagged_calls(inside)) {
    take(out, std::move(*calls));
    spoke_ = false;
  } else {
    spoke_ = true;
    out.content += std::string(kCall) + inside + (end == held_.npos ? "" : std::string(kEndCall));
  }
  return true;
}

bool ChatOutput::bare(ChatDelta& out, bool last) {
  if (!last) return false;
  part_ = Part::kContent;
  if (auto calls = parse_bare_calls(held_, format_.tool_names)) {
    take(out, std::move(*calls));
    held_.clear();
  }
  return true;
}

void ChatOutput::take(ChatDelta& out, std::vector<ToolCall> calls) {
  calls_ += static_cast<int>(calls.size());
  out.calls.insert(out.calls.end(), std::make_move_iterator(calls.begin()), std::make_move_iterator(calls.end()));
}

}  // namespace oasis::serve
