// Frames of a cache in order of use, each in the list at most once. Index-linked: no allocation after the start.
#pragma once

#include <cstdint>
#include <vector>

#include "oasis/base/status.h"

namespace oasis::kv {

class FrameLru {
 public:
  explicit FrameLru(int32_t frames) : links_(static_cast<size_t>(frames) + 1), head_(frames) {
    links_.back() = {head_, head_};
  }
  bool empty() const { return links_[static_cast<size_t>(head_)].next == head_; }
  bool contains(int32_t frame) const { return at(frame).next != kNone; }
  int32_t oldest() const { return links_[static_cast<size_t>(head_)].next; }

  // As the most recently used one.
  void push(int32_t frame) {
    OASIS_CHECK(!contains(frame), "frame {} is in the list already", frame);
    const int32_t last = at(head_).previous;
    at(frame) = {head_, last};
    at(last).next = frame;
    at(head_).previous = frame;
  }
  void remove(int32_t frame) {
    OASIS_CHECK(contains(frame), "frame {} is not in the list", frame);
    const Link link = at(frame);
    at(link.previous).next = link.next;
    at(link.next).previous = link.previous;
    at(frame) = {};
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Link {
    int32_t next = kNone, previous = kNone;
  };
  Link& at(int32_t frame) { return links_[static_cast<size_t>(frame)]; }
  const Link& at(int32_t frame) const { return links_[static_cast<size_t>(frame)]; }

  std::vector<Link> links_;  // the last one is the ring's head
  int32_t head_;
};

}  // namespace oasis::kv
