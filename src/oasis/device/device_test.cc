#include "oasis/device/device.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace oasis {
namespace {

TEST(ThreadPool, EveryItemRunsOnceForAnyNumberOfThreads) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
      pool.run(items, [&](int64_t i, int worker) {
        ASSERT_LT(worker, threads);
        seen[static_cast<size_t>(i)]++;
      });
      for (auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsDoNotLoseAWakeUp) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 20000; ++i) pool.run(4, [&](int64_t item, int) { sum += item; });
  EXPECT_EQ(sum.load(), 20000 * 6);
}

TEST(WorkerStream, RunsInOrderAndSynchronizes) {
  auto device = make_cpu_device(1);
  auto stream = device->make_background_stream();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream->enqueue([&order, i] { order.push_back(i); });
  stream->synchronize();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Device, MemoryIsAlignedAndZero) {
  auto device = make_cpu_device(1);
  auto buffer = device->allocate(10000);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 4096, 0u);
  for (size_t i = 0; i < 10000; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
}

}  // namespace
}  // namespace oasis
