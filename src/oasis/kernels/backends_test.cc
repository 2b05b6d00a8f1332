#include <gtest/gtest.h>

#include "oasis/kernels/kernels.h"

namespace oasis::kernels {
namespace {

TEST(Backends, ABuildWithoutCudaSaysSoAndHowToGetIt) {
  if (cuda_kernels()) GTEST_SKIP() << "this build has CUDA";
  const Status status = make_cuda_device(3).status();
  ASSERT_EQ(status.code(), StatusCode::kUnsupported);
  for (const char* part : {"GPU 3", "no CUDA", "cmake --preset cuda"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace oasis::kernels
