#include "oasis/kernels/gather/gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace oasis::kernels {
namespace {

TEST(Gather, CopiesEveryRunAndNothingElse) {
  std::mt19937 random(3);
  for (int threads : {1, 3}) {
    const auto device = make_cpu_device(threads);
    for (int64_t bytes : {1, 100, 4096, 8192, 200000}) {
      for (int64_t count : {0, 1, 5, 90}) {
        const int64_t stride = bytes + 16;
        std::vector<std::byte> from(static_cast<size_t>(count * stride)), to(from.size(), std::byte{0xee});
        for (auto& b : from) b = static_cast<std::byte>(random());
        std::vector<int64_t> place(static_cast<size_t>(count));
        std::iota(place.begin(), place.end(), 0);
        std::shuffle(place.begin(), place.end(), random);
        std::vector<Copy> copies;
        for (int64_t i = 0; i < count; ++i) {
          copies.push_back({from.data() + i * stride, to.data() + place[static_cast<size_t>(i)] * stride});
        }
        gather_cpu(device->foreground(), {.copies = copies.data(), .count = count, .bytes = bytes});
        for (const Copy& c : copies) {
          ASSERT_TRUE(std::equal(c.from, c.from + bytes, c.to));
          for (int64_t i = bytes; i < stride; ++i) ASSERT_EQ(c.to[i], std::byte{0xee});
        }
      }
    }
  }
}

}  // namespace
}  // namespace oasis::kernels
