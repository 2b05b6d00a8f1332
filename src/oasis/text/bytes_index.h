// A fixed map from byte strings to token ids: open addressing over views of memory that someone else keeps.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace oasis::text {

class BytesIndex {
 public:
  explicit BytesIndex(size_t capacity = 0) {
    size_t slots = 16;
    while (slots < 2 * capacity) slots *= 2;
    slots_.resize(slots);
  }

  // The first insertion of a key wins. At most `capacity` keys.
  void insert(std::string_view key, int32_t id) {
    const uint64_t h = hash(key);
    for (size_t i = h & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[i];
      if (slot.id < 0) {
        slot = {key.data(), static_cast<uint32_t>(key.size()), static_cast<uint32_t>(h >> 32), id};
        return;
      }
      if (slot.matches(key, h)) return;
    }
  }

  // -1: not there.
  int32_t find(std::string_view key) const {
    const uint64_t h = hash(key);
    for (size_t i = h & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[i];
      if (slot.id < 0 || slot.matches(key, h)) return slot.id;
    }
  }

 private:
  struct Slot {
    const char* data = nullptr;
    uint32_t size = 0;
    uint32_t tag = 0;
    int32_t id = -1;

    bool matches(std::string_view key, uint64_t h) const {
      return tag == static_cast<uint32_t>(h >> 32) && size == key.size() && std::memcmp(data, key.data(), size) == 0;
    }
  };

  static uint64_t hash(std::string_view key) {
    uint64_t h = key.size() * 0x9E3779B97F4A7C15ull;
    size_t i = 0;
    for (; i + 8 <= key.size(); i += 8) {
      uint64_t word;
      std::memcpy(&word, key.data() + i, 8);
      h = mix(h ^ word);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, key.data() + i, key.size() - i);
    return mix(h ^ rest);
  }
  static uint64_t mix(uint64_t x) {  // the finaliser of MurmurHash3
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
    return x ^ (x >> 33);
  }

  std::vector<Slot> slots_;
};

}  // namespace oasis::text
