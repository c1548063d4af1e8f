// The peak is measured on the device that is asked for.
#include <gtest/gtest.h>

#include <vector>

#include "cli/peak_cuda.hpp"
#include "tests/cuda/fake/load.hpp"
#include "tests/jit/compiler.hpp"

namespace attune::cli {
namespace {

TEST(FakePeak, IsThatOfTheDevice) {
  cuda::fake::Books& books = cuda::fake_books();
  ATTUNE_NEEDS_NVRTC();
  ASSERT_EQ(cuda::why_unusable(), "");
  for (const int ordinal : {0, 1}) {
    books.launched.clear();
    double tflops = 0;
    const Status s = gpu_peak(ordinal, PeakKind::f16, &tflops);
    ASSERT_TRUE(s.ok()) << s.message;
    EXPECT_GT(tflops, 0);
    ASSERT_FALSE(books.launched.empty());
    for (const cuda::fake::Launched& launched : books.launched) {
      cuda::CUdevice device = -1;
      cuda::CUcontext popped = nullptr;
      EXPECT_EQ(launched.name, "attune_peak_f16");
      ASSERT_EQ(cuda::driver()->cuCtxPushCurrent(launched.context), cuda::kSuccess);
      EXPECT_EQ(cuda::driver()->cuCtxGetDevice(&device), cuda::kSuccess);
      EXPECT_EQ(cuda::driver()->cuCtxPopCurrent(&popped), cuda::kSuccess);
      EXPECT_EQ(device, ordinal);
    }
  }
  books.launched.clear();
  cuda::CUcontext left = nullptr;
  EXPECT_EQ(cuda::driver()->cuCtxGetCurrent(&left), cuda::kSuccess);
  EXPECT_EQ(left, nullptr);
}

}  // namespace
}  // namespace attune::cli
