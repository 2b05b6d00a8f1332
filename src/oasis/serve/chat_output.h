// A chat answer taken apart as it arrives: reasoning, content and tool calls.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "oasis/serve/tool_calls.h"

namespace oasis::serve {

// What a piece of text adds to the answer.
struct ChatDelta {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

struct ChatFormat {
  bool thinks = false;              // a <think>..</think> at the beginning is reasoning
  bool opens_in_reasoning = false;  // and its <think> stands in the prompt
  bool tools = false;               // tool calls are looked for
  bool bare_calls = false;          // also calls without tags: a whole answer that is JSON
  std::set<std::string> tool_names;
};

// All deltas joined are the same however the text is cut into pieces. What is no well-formed call stays content, letter
// by letter. Blanks around the reasoning and around calls are left out.
class ChatOutput {
 public:
  explicit ChatOutput(ChatFormat format);
  ChatDelta push(std::string_view text);
  ChatDelta finish();  // what was held back
  bool called() const { return calls_ > 0; }

 private:
  enum class Part { kStart, kReasoning, kAfterReasoning, kDecide, kContent, kCall, kBare };
  // One step forward; false: more text is needed.
  bool advance(ChatDelta& out, bool last);
  bool start(bool last);
  bool reasoning(ChatDelta& out, bool last);
  bool decide(bool last);
  bool content(ChatDelta& out, bool last);
  bool call(ChatDelta& out, bool last);
  bool bare(ChatDelta& out, bool last);
  void take(ChatDelta& out, std::vector<ToolCall> calls);

  ChatFormat format_;
  Part part_ = Part::kStart;
  std::string held_;     // not yet given out
  size_t searched_ = 0;  // kCall: no closing tag begins before
  int calls_ = 0;
  bool reasoned_ = false;  // some reasoning was given out
  bool spoke_ = false;     // some content was given out since the last call
};

}  // namespace oasis::serve
