#include "oasis/kernels/gather/gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "oasis/kernels/backend_test_util.h"

namespace oasis::kernels {
namespace {

class Gather : public testing::TestWithParam<Backend> {};

TEST_P(Gather, CopiesEveryRunAndNothingElse) {
  OASIS_SKIP_WITHOUT(GetParam());
  std::mt19937 random(3);
  for (int threads : {1, 3}) {
    Device& device = test_device(GetParam(), threads);
    for (int64_t bytes : {1, 16, 100, 4096, 8192, 200000}) {
      if (GetParam() == Backend::kCuda && bytes % 16 != 0) continue;  // it copies vectors
      for (int64_t count : {0, 1, 5, 90}) {
        const int64_t stride = bytes + 16;
        std::vector<std::byte> from(static_cast<size_t>(count * stride + 16)), to(from.size(), std::byte{0xee});
        for (auto& b : from) b = static_cast<std::byte>(random());
        std::vector<int64_t> place(static_cast<size_t>(count));
        std::iota(place.begin(), place.end(), 0);
        std::shuffle(place.begin(), place.end(), random);
        // From pinned memory, as block-heads come from their homes.
        const Buffer source = std::move(device.allocate_pinned(from.size())).value();
        std::copy(from.begin(), from.end(), source.data());
        const Buffer target = copy_to(device, to.data(), to.size());
        std::vector<Copy> copies;
        for (int64_t i = 0; i < count; ++i) {
          copies.push_back({source.data() + i * stride, target.data() + place[static_cast<size_t>(i)] * stride});
        }
        kernels_for(GetParam()).gather(device.foreground(), {.copies = copies.data(), .count = count, .bytes = bytes});
        device.foreground().copy(to.data(), target.data(), to.size());
        for (int64_t c = 0; c < count; ++c) {
          const std::byte* got = to.data() + place[static_cast<size_t>(c)] * stride;
          ASSERT_TRUE(std::equal(got, got + bytes, from.data() + c * stride));
          for (int64_t i = bytes; i < stride; ++i) ASSERT_EQ(got[i], std::byte{0xee});
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Gather, testing::Values(Backend::kCpu, Backend::kCuda), backend_name);

}  // namespace
}  // namespace oasis::kernels
