#include "src/cuda/driver.hpp"

#include <gtest/gtest.h>

#include "src/cuda/device.hpp"
#include "src/cuda/memory.hpp"

namespace attune::cuda {
namespace {

TEST(CudaDriver, VersionsReadLikeNvidias) {
  EXPECT_EQ(version_text(13000), "13.0");
  EXPECT_EQ(version_text(12080), "12.8");
}

TEST(CudaDriver, AFailureHasTheCallAndTheKernel) {
  EXPECT_TRUE(cuda_status(kSuccess, "cuInit").ok());
  const Status s = cuda_status(719, "cuLaunchKernelEx", "sm90.attn_fwd/naive");
  EXPECT_EQ(s.code, ATTUNE_CUDA_ERROR);
  EXPECT_TRUE(s.message.starts_with("cuLaunchKernelEx of sm90.attn_fwd/naive: ")) << s.message;
  EXPECT_EQ(cuda_status(kOutOfMemory, "cuMemAlloc").code, ATTUNE_OUT_OF_MEMORY);
}

TEST(CudaDriver, WithoutADeviceEverythingSaysWhy) {
  if (why_unusable().empty()) GTEST_SKIP() << "there is a device";
  Scope scope;
  Buffer buffer;
  Device facts;
  EXPECT_EQ(scope.enter(nullptr, nullptr).code, ATTUNE_UNSUPPORTED);
  EXPECT_NE(scope.enter(nullptr, nullptr).message.find(why_unusable()), std::string::npos);
  EXPECT_FALSE(device(0, &facts).ok());
  if (driver() == nullptr) {
    EXPECT_EQ(buffer.allocate(16).code, ATTUNE_UNSUPPORTED);
    EXPECT_EQ(device_count(), 0);
  }
}

}  // namespace
}  // namespace attune::cuda
