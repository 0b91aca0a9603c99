#include "os/kernel_features.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cerrno>

namespace softhca::os {
namespace {

TEST(KernelFeatures, NamesTheRunningKernelAndTriesEachCall) {
  utsname name{};
  ASSERT_EQ(::uname(&name), 0);
  const KernelFeatures found = kernel_features();
  EXPECT_EQ(found.release, name.release);
  for (const Attempt& made : {found.io_uring, found.process_vm, found.pidfd, found.madv_populate})
    EXPECT_EQ(made.works(), made.error_text().empty());
}

TEST(KernelFeatures, SaysWhyAnAttemptFailed) {
  EXPECT_EQ(Attempt{EPERM}.error_text(), "Operation not permitted");
  EXPECT_TRUE(Attempt{}.works());
}

TEST(KernelFeatures, ReadsCapabilitiesBitByBit) {
  constexpr std::string_view kStatus =
      "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000004000\n";
  EXPECT_TRUE(capability_in(kStatus, 14));
  EXPECT_FALSE(capability_in(kStatus, 13));
  EXPECT_FALSE(capability_in(kStatus, 64));
  EXPECT_FALSE(capability_in("Name:\tx\n", 14));
}

TEST(KernelFeatures, TellsTheFirstUserNamespaceByItsMap) {
  EXPECT_TRUE(maps_every_user("         0          0 4294967295\n"));
  EXPECT_FALSE(maps_every_user("         0       1000          1\n"));
  EXPECT_FALSE(maps_every_user("         0          0      65536\n"));
  EXPECT_FALSE(maps_every_user(""));
}

TEST(KernelFeatures, ReportsTheMemlockLimitThatIsSet) {
  rlimit set{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &set), 0);
  const Limits found = limits();
  EXPECT_EQ(found.memlock_soft_bytes, set.rlim_cur == RLIM_INFINITY ? UINT64_MAX : set.rlim_cur);
  EXPECT_LE(found.memlock_soft_bytes, found.memlock_hard_bytes);
}

TEST(KernelFeatures, NumbersTheNamespacesOfThisProgram) {
  const Namespaces found = namespaces();
  EXPECT_NE(found.user, 0u);
  EXPECT_NE(found.network, 0u);
  EXPECT_NE(found.pid, 0u);
}

}  // namespace
}  // namespace softhca::os
