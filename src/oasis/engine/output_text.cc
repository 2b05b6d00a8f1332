#include "oasis/engine/output_text.h"

#include <algorithm>

namespace oasis::engine {

OutputText::OutputText(const text::Tokenizer& tokenizer, std::vector<std::string> stops, bool skip_special)
    : detokenizer_(tokenizer, skip_special), stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string OutputText::push(int32_t token, bool& stopped) {
  held_ += detokenizer_.push(token);
  return release(stopped);
}

std::string OutputText::finish() {
  held_ += detokenizer_.finish();
  bool stopped = false;
  std::string out = release(stopped);
  if (!stopped) out += held_;
  held_.clear();
  return out;
}

// Gives out all but the longest tail that a stop string could begin with.
std::string OutputText::release(bool& stopped) {
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped = true;
    std::string out = held_.substr(0, end);
    held_.clear();
    return out;
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

}  // namespace oasis::engine
