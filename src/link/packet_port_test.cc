#include "link/packet_port.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>

#include "os/test_child.h"

namespace softhca::link {
namespace {

using trace::ReasonId;

// The loopback interface of a network namespace of the test's own.
template <class Body>
void with_own_loopback(Body body) {
  const int status = os::run_in_child([&] {
    const int own = ::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;
    if (::unshare(own) != 0) return os::kChildSkips;
    body(::if_nametoindex("lo"));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == os::kChildSkips) GTEST_SKIP() << "no network namespace of its own";
  EXPECT_EQ(status, 0);
}

TEST(PacketPort, HasADescriptorToListenToWhileItReceives) {
  with_own_loopback([](std::uint32_t lo) {
    PacketPort port(lo);
    EXPECT_EQ(port.fds_version(), 0u);
    EXPECT_TRUE(port.open_for(FrameUse::Sending));
    EXPECT_EQ(port.fd(), -1);
    EXPECT_TRUE(port.brings_back());
    const std::uint32_t sending = port.fds_version();
    EXPECT_NE(sending, 0u);
    for (const FrameUse use : {FrameUse::Own, FrameUse::Everything, FrameUse::Multicasts}) {
      EXPECT_TRUE(port.open_for(use));
      EXPECT_GE(port.fd(), 0);
    }
    const std::uint32_t receiving = port.fds_version();
    EXPECT_NE(receiving, sending);
    EXPECT_TRUE(port.open_for(FrameUse::None));
    EXPECT_EQ(port.fd(), -1);
    EXPECT_NE(port.fds_version(), receiving);
    port.close_left();
  });
}

TEST(PacketPort, StaysClosedWhereItIsRefused) {
  const int status = os::run_in_child([] {
    if (!os::become_ordinary_user(65536)) return os::kChildSkips;
    PacketPort port(1);
    const auto refused = port.open_for(FrameUse::Everything);
    const bool is_so = !refused && refused.error().id == ReasonId::FramesStayInside &&
                       port.fd() == -1 && port.fds_version() == 0;
    return is_so ? 0 : 1;
  });
  if (status == os::kChildSkips) GTEST_SKIP() << "cannot become an ordinary user";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace softhca::link
