#include "os/packet_socket.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "os/interfaces.h"
#include "os/test_child.h"
#include "os/udp_socket.h"

namespace softhca::os {
namespace {

constexpr int kPatienceMs = 2000;

using Frame = std::vector<std::byte>;

// To 02:00:00:00:00:`last`, of a type for local experiments, `bytes` long.
Frame frame_to(unsigned last, std::size_t bytes = 80) {
  Frame frame(bytes, static_cast<std::byte>(last ^ bytes));
  std::fill_n(frame.begin(), 12, std::byte{2});
  frame[5] = static_cast<std::byte>(last);
  frame[12] = std::byte{0x88};
  frame[13] = std::byte{0xb5};
  return frame;
}

void send_all(PacketSocket& from, const std::vector<Frame>& frames) {
  const std::vector<ConstBytes> views(frames.begin(), frames.end());
  const PacketsSent sent = from.send(views);
  EXPECT_EQ(sent.taken, frames.size());
  EXPECT_EQ(sent.lost, 0u);
}

// The next `count`, or what came of them.
std::vector<Frame> receive_some(PacketSocket& at, std::size_t count) {
  std::vector<Frame> all;
  std::array<ConstBytes, 8> some;
  pollfd readable{at.fd(), POLLIN, 0};
  while (all.size() < count && ::poll(&readable, 1, kPatienceMs) == 1)
    for (const ConstBytes one : std::span(some).first(at.receive(some)))
      all.emplace_back(one.begin(), one.end());
  return all;
}

bool is_silent(PacketSocket& at) {
  std::array<ConstBytes, 8> some;
  return at.receive(some) == 0;
}

// The kernel drops what is sent before it has noticed the carrier of an interface that is up.
bool all_are_running() {
  for (int left_ms = kPatienceMs; left_ms > 0; left_ms -= 10) {
    const auto all = interfaces();
    if (all && std::ranges::all_of(*all, &Interface::running)) return true;
    ::poll(nullptr, 0, 10);
  }
  return false;
}

// The test runs in network and user namespaces of its own, with a cable between two interfaces on
// which nobody else speaks.
template <class Body>
void with_cable(Body body) {
  const int status = run_in_child([&] {
    const int own = ::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;
    if (::unshare(own) != 0) return kChildSkips;
    constexpr const char* kSetUp =
        "{ ip link set lo up && ip link add left type veth peer name right && for end in left "
        "right; do ip link set $end addrgenmode none && ip link set $end up || exit 1; done; } "
        ">/dev/null 2>&1";
    if (std::system(kSetUp) != 0) return kChildSkips;
    EXPECT_TRUE(all_are_running());
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kChildSkips) GTEST_SKIP() << "no namespace of its own, or no veth, or no ip";
  EXPECT_EQ(status, 0);
}

PacketSocket open_on(const char* interface, PacketUse use = PacketUse::Both) {
  auto opened = PacketSocket::open(::if_nametoindex(interface), use);
  EXPECT_TRUE(opened) << error_text(opened.error());
  return std::move(*opened);
}

TEST(PacketSocket, CarriesWholeFramesInOrderAndHearsNothingOfItsOwn) {
  with_cable([] {
    PacketSocket left = open_on("left"), right = open_on("right");
    EXPECT_FALSE(left.is_loopback());
    EXPECT_NE(left.address(), right.address());
    std::vector<Frame> frames;
    for (std::size_t i = 0; i < 70; ++i) frames.push_back(frame_to(7, 60 + i));
    send_all(left, frames);
    EXPECT_EQ(receive_some(right, 70), frames);
    EXPECT_TRUE(is_silent(left));
    EXPECT_TRUE(is_silent(right));
  });
}

TEST(PacketSocket, PutsTheTagBack) {
  with_cable([] {
    PacketSocket left = open_on("left"), right = open_on("right");
    Frame tagged = frame_to(7);
    const std::array<std::byte, 4> tag{std::byte{0x81}, std::byte{0}, std::byte{0x60},
                                       std::byte{5}};
    tagged.insert(tagged.begin() + 12, tag.begin(), tag.end());
    send_all(left, {tagged, frame_to(8)});
    EXPECT_EQ(receive_some(right, 2), (std::vector<Frame>{tagged, frame_to(8)}));
  });
}

TEST(PacketSocket, TakesAndCountsWhatTheInterfaceCannotCarry) {
  with_cable([] {
    PacketSocket left = open_on("left", PacketUse::SendOnly), right = open_on("right");
    const Frame fine = frame_to(1, 1514), long_one = frame_to(2, 1519);
    const std::array<ConstBytes, 4> frames{long_one, fine, long_one, fine};
    const PacketsSent sent = left.send(frames);
    EXPECT_EQ(sent.taken, 4u);
    EXPECT_EQ(sent.lost, 2u);
    EXPECT_EQ(receive_some(right, 2), (std::vector<Frame>{fine, fine}));
  });
}

// The kernel leaves the checksum of what it sends to the interface.
TEST(PacketSocket, FillsInTheChecksumThatTheInterfaceWouldHave) {
  with_cable([] {
    PacketSocket lo = open_on("lo");
    EXPECT_TRUE(lo.is_loopback());
    const IpAddress address = IpAddress::of_ipv4({127, 0, 0, 1});
    auto udp = UdpSocket::open({.address = address}, UdpUse::Shared);
    ASSERT_TRUE(udp);
    const std::array<std::byte, 3> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
    const OutgoingDatagram datagram{
        .bytes = bytes, .destination = address, .destination_port = udp->port()};
    ASSERT_EQ(udp->send({&datagram, 1}).taken, 1u);
    const std::vector<Frame> got = receive_some(lo, 1);
    ASSERT_EQ(got.size(), 1u);  // once, though it left and came back
    ASSERT_EQ(got[0].size(), 14u + 20 + 8 + 3);
    // RFC 768: the sum over pseudo header, header, bytes and a zero is all ones.
    Frame summed(got[0].begin() + 26, got[0].end());  // addresses, UDP
    summed.insert(summed.end(),
                  {std::byte{0}, std::byte{0}, std::byte{17}, std::byte{0}, std::byte{8 + 3}});
    std::uint32_t sum = 0;
    for (std::size_t at = 0; at < summed.size(); at += 2) sum += load_be<std::uint16_t>(summed, at);
    EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffu);
  });
}

TEST(PacketSocket, LetsInWhatItIsAskedTo) {
  with_cable([] {
    PacketSocket right = open_on("right");
    const auto kernel_says = [](const char* what) {
      const std::string look = "ip -d link show right | grep -qw '" + std::string(what) + "'";
      return std::system(look.c_str()) == 0;
    };
    EXPECT_TRUE(right.set_promiscuous(true));
    EXPECT_TRUE(kernel_says("promiscuity 1"));
    EXPECT_TRUE(right.set_promiscuous(false));
    EXPECT_TRUE(kernel_says("promiscuity 0"));
    EXPECT_TRUE(right.set_all_multicasts(true));
    EXPECT_TRUE(right.set_all_multicasts(false));
    EXPECT_TRUE(right.set_promiscuous(true));
    right = {};
    EXPECT_TRUE(kernel_says("promiscuity 0"));
  });
}

TEST(PacketSocket, FailsWithTheReasonOfTheSystem) {
  with_cable([] {
    const auto absent = PacketSocket::open(4'000'000, PacketUse::Both);
    ASSERT_FALSE(absent);
    EXPECT_EQ(absent.error().number, ENODEV);
  });
  const int status = run_in_child([] {
    if (!become_ordinary_user(65536)) return kChildSkips;
    const auto refused = PacketSocket::open(1, PacketUse::SendOnly);
    return !refused && refused.error().number == EPERM ? 0 : 1;
  });
  EXPECT_TRUE(status == 0 || status == kChildSkips) << status;
}

}  // namespace
}  // namespace softhca::os
