// What the tests of ops share to run the same checks on every backend that this build and this machine have.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "oasis/kernels/cpu_features.h"
#include "oasis/kernels/kernels.h"

namespace oasis::kernels {

inline std::string to_string(Backend backend) { return backend == Backend::kCpu ? "Cpu" : "Cuda"; }
// Names for INSTANTIATE_TEST_SUITE_P, of a backend and of a tuple that begins with one: --gtest_filter='*Cuda*' finds
// the GPU's tests.
inline std::string backend_name(const testing::TestParamInfo<Backend>& info) { return to_string(info.param); }
inline constexpr auto case_name = [](const auto& info) {
  return to_string(std::get<0>(info.param)) + "_" + std::to_string(info.index);
};
inline void PrintTo(Backend backend, std::ostream* out) { *out << to_string(backend); }

inline const Result<std::unique_ptr<Device>>& cuda_test_device() {
  // Never destroyed: the driver may be gone by then.
  static auto* device = new Result<std::unique_ptr<Device>>(make_cuda_device(0));
  return *device;
}

// Ok, or why tests of the backend are skipped.
inline Status backend_status(Backend backend) {
  return backend == Backend::kCpu ? Status() : cuda_test_device().status();
}

// A device of the backend; `threads` is for the CPU.
inline Device& test_device(Backend backend, int threads = 1) {
  if (backend == Backend::kCuda) return *cuda_test_device().value();
  static std::map<int, std::unique_ptr<Device>> devices;
  auto& device = devices[threads];
  if (!device) device = make_cpu_device(threads);
  return *device;
}

// The CPU with one instruction set, or a GPU: where ops that choose their instructions at run time are tested.
struct Target {
  Backend backend;
  CpuLevel level = CpuLevel::kPortable;
};
inline std::string target_name(const testing::TestParamInfo<Target>& target) {
  constexpr const char* kLevels[] = {"Portable", "Avx2", "Avx512"};
  return target.param.backend == Backend::kCuda ? "Cuda" : kLevels[static_cast<int>(target.param.level)];
}
// For INSTANTIATE_TEST_SUITE_P.
inline auto all_targets() {
  return testing::Values(Target{Backend::kCpu, CpuLevel::kPortable}, Target{Backend::kCpu, CpuLevel::kAvx2},
                         Target{Backend::kCpu, CpuLevel::kAvx512}, Target{Backend::kCuda});
}

// Runs its tests on the target, or skips them, saying why.
class OnTarget : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override;
  void TearDown() override { set_cpu_level(before_); }

 private:
  CpuLevel before_ = cpu_level();
};

// A copy of `bytes` bytes in memory of the device, for what kernels do not fetch from the host themselves.
inline Buffer copy_to(Device& device, const void* data, size_t bytes) {
  auto buffer = device.allocate(bytes);
  OASIS_CHECK(buffer.ok(), "{}", buffer.status().message());
  device.foreground().copy(buffer->data(), data, bytes);
  return std::move(buffer).value();
}

}  // namespace oasis::kernels

// At the head of a test or of SetUp.
#define OASIS_SKIP_WITHOUT(backend)                                                           \
  if (const ::oasis::Status status = ::oasis::kernels::backend_status(backend); !status.ok()) \
  GTEST_SKIP() << status.message()

inline void oasis::kernels::OnTarget::SetUp() {
  OASIS_SKIP_WITHOUT(GetParam().backend);
  if (GetParam().backend == Backend::kCuda) return;
  set_cpu_level(GetParam().level);
  if (cpu_level() != GetParam().level) GTEST_SKIP() << "this processor lacks the level";
}
