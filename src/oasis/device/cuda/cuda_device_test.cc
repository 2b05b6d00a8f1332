// Memory and streams of a GPU, and what happens where there is not enough of it. Skipped where no GPU is found.
#include "oasis/device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "oasis/base/units.h"

namespace oasis::cuda {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { device_ = new Result<std::unique_ptr<Device>>(make_cuda_device(0)); }  // never freed
  void SetUp() override {
    if (!device_->ok()) GTEST_SKIP() << device_->status().message();
  }
  static Device& device() { return *device_->value(); }
  // Of the GPU.
  static size_t total_bytes() {
    size_t free = 0, total = 0;
    OASIS_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return total;
  }
  // The runtime has no error left to report and memory can be had.
  static void expect_usable() {
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
    const auto memory = device().allocate(1 << 20), pinned = device().allocate_pinned(1 << 20);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    ASSERT_TRUE(pinned.ok()) << pinned.status().message();
    std::memset(pinned.value().data(), 0x5a, 1 << 20);
    std::vector<std::byte> back(1 << 20);
    device().foreground().copy(memory.value().data(), pinned.value().data(), 1 << 20);
    device().foreground().copy(back.data(), memory.value().data(), 1 << 20);
    EXPECT_EQ(std::memcmp(back.data(), pinned.value().data(), 1 << 20), 0);
  }

 private:
  static inline Result<std::unique_ptr<Device>>* device_ = nullptr;
};

TEST_F(CudaDeviceTest, MemoryIsAlignedForVectorsAndZero) {
  for (int round = 0; round < 3; ++round) {
    for (const size_t bytes : {size_t{1}, size_t{10'000}, size_t{5'000'000}}) {
      auto buffer = device().allocate(bytes);
      ASSERT_TRUE(buffer.ok()) << buffer.status().message();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
      EXPECT_TRUE(device_accessible(buffer->data()));
      EXPECT_TRUE(device_accessible(buffer->data() + bytes - 1));
      std::vector<std::byte> got(bytes, std::byte{1});
      device().foreground().copy(got.data(), buffer->data(), bytes);
      EXPECT_EQ(got, std::vector<std::byte>(bytes));
      // The next round is likely to get the same memory.
      device().foreground().fill(buffer->data(), 0xee, bytes);
      device().foreground().synchronize();
    }
  }
}

TEST_F(CudaDeviceTest, PinnedMemoryIsZeroAndSharedWithKernels) {
  for (int round = 0; round < 3; ++round) {
    for (const size_t bytes : {size_t{1}, size_t{10'000}, size_t{5'000'000}}) {
      auto buffer = device().allocate_pinned(bytes);
      ASSERT_TRUE(buffer.ok()) << buffer.status().message();
      EXPECT_TRUE(device_accessible(buffer->data()));
      EXPECT_TRUE(std::vector<std::byte>(buffer->data(), buffer->data() + bytes) == std::vector<std::byte>(bytes));
      device().foreground().fill(buffer->data(), 0xee, bytes);
      device().foreground().synchronize();
      EXPECT_EQ(buffer->data()[bytes - 1], std::byte{0xee});
    }
  }
  std::vector<std::byte> own(100);
  EXPECT_FALSE(device_accessible(own.data()));
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, MoreMemoryThanTheGpuHasIsRefusedWithBothNumbers) {
  const size_t total = total_bytes();
  for (const size_t asked : {2 * total, size_t{1} << 60}) {
    const Status status = device().allocate(asked).status();
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find(format_bytes(asked)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(format_bytes(total)), std::string::npos) << status.message();
    expect_usable();
  }
}

// The whole machine's is checked by the capacity tier, which knows the process's limit. cases 18 and 23
TEST_F(CudaDeviceTest, MorePinnedMemoryThanCanBeHadIsRefusedWithTheNumber) {
  const size_t asked = size_t{1} << 50;
  const Status status = device().allocate_pinned(asked).status();
  ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  EXPECT_NE(status.message().find(format_bytes(asked)), std::string::npos) << status.message();
  expect_usable();
}

TEST_F(CudaDeviceTest, AGpuThatIsNotThereIsRefusedWithTheNumberOfThoseThatAre) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  for (const int index : {99, -1}) {
    const Status status = make_cuda_device(index).status();
    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(index)), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(std::to_string(count)), std::string::npos) << status.message();
  }
  expect_usable();
}

TEST_F(CudaDeviceTest, AStreamKeepsItsOrderAndCopiesBothWays) {
  auto memory = device().allocate(1000);
  ASSERT_TRUE(memory.ok());
  const auto stream = device().make_background_stream();
  EXPECT_EQ(stream->backend(), Backend::kCuda);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    const auto byte = static_cast<uint8_t>(i);
    stream->fill(memory->data(), byte, 1000);
    std::vector<uint8_t> got(1000);
    stream->copy(got.data(), memory->data(), 1000);
    EXPECT_EQ(got, std::vector<uint8_t>(1000, byte));
    stream->enqueue([&order, i] { order.push_back(i); });
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(CudaDeviceTest, AWorkspaceGrowsAndKeepsWhatOlderGraphsUse) {
  CudaStream stream(0, false, 0);
  std::byte* small = stream.workspace(1000);
  EXPECT_EQ(stream.workspace(500), small);
  std::byte* large = stream.workspace(100'000'000);
  EXPECT_NE(large, small);
  // Both can still be written.
  stream.fill(small, 1, 1000);
  stream.fill(large, 2, 100'000'000);
  stream.synchronize();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace oasis::cuda
