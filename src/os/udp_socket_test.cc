#include "os/udp_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "os/bound_sockets.h"
#include "os/datagram_arena.h"

namespace softhca::os {
namespace {

const IpAddress kV4 = IpAddress::of_ipv4({127, 0, 0, 1});
const IpAddress kV6{.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

bool has_ipv6() { return static_cast<bool>(UdpSocket::open({.address = kV6}, UdpUse::SendOnly)); }

void expect_round_trip(const IpAddress& address) {
  auto receiver = UdpSocket::open({.address = address}, UdpUse::Shared);
  auto sender = UdpSocket::open({.address = address}, UdpUse::SendOnly);
  ASSERT_TRUE(receiver);
  ASSERT_TRUE(sender);
  ASSERT_NE(sender->port(), receiver->port());
  // More than one batch, every size once.
  std::vector<std::byte> bytes(100);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  std::vector<OutgoingDatagram> datagrams;
  for (std::size_t i = 0; i < 70; ++i)
    datagrams.push_back({.bytes = ConstBytes(bytes).first(i),
                         .destination = address,
                         .destination_port = receiver->port(),
                         .traffic_class = static_cast<std::uint8_t>(i % 2 == 0 ? 0 : 0x6a),
                         .hop_limit = static_cast<std::uint8_t>(i % 3)});
  const SendOutcome outcome = sender->send(datagrams);
  EXPECT_EQ(outcome.taken, datagrams.size());
  EXPECT_EQ(outcome.lost, 0u);

  DatagramArena arena(128, 256);
  std::size_t got = 0;
  while (const std::size_t n = arena.receive(receiver->fd(), got, 32)) got += n;
  ASSERT_EQ(got, datagrams.size());
  for (std::size_t i = 0; i < got; ++i) {
    const Arrival& arrival = arena.arrival(i);
    EXPECT_TRUE(std::ranges::equal(arrival.bytes, datagrams[i].bytes));
    EXPECT_EQ(arrival.source, address);
    EXPECT_EQ(arrival.source_port, sender->port());
    EXPECT_EQ(arrival.traffic_class, datagrams[i].traffic_class) << i;
    EXPECT_FALSE(arrival.truncated);
    EXPECT_FALSE(arrival.uid);
  }
}

TEST(UdpSocket, CarriesDatagramsOverIpv4) { expect_round_trip(kV4); }

TEST(UdpSocket, CarriesDatagramsOverIpv6) {
  if (!has_ipv6()) GTEST_SKIP() << "no ::1 here";
  expect_round_trip(kV6);
}

// The smallest buffer that the kernel makes holds some, but not all of these.
TEST(UdpSocket, TellsWithWhatArrivesHowMuchFoundNoRoom) {
  auto receiver = UdpSocket::open({.address = kV4}, UdpUse::Shared);
  auto sender = UdpSocket::open({.address = kV4}, UdpUse::SendOnly);
  ASSERT_TRUE(receiver && sender);
  const int least = 1;
  ASSERT_EQ(setsockopt(receiver->fd(), SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
  const std::vector<std::byte> bytes(1000);
  const OutgoingDatagram datagram{
      .bytes = bytes, .destination = kV4, .destination_port = receiver->port()};
  DatagramArena arena(64, 2048);
  const auto send = [&](int count) {
    for (int i = 0; i < count; ++i) ASSERT_EQ(sender->send({&datagram, 1}).taken, 1u);
  };
  send(50);
  const std::size_t room = arena.receive(receiver->fd(), 0, 64);
  ASSERT_GT(room, 0u);
  ASSERT_LT(room, 50u);
  EXPECT_EQ(arena.arrival(0).dropped, 0u);
  send(1);
  ASSERT_EQ(arena.receive(receiver->fd(), 0, 64), 1u);
  EXPECT_EQ(arena.arrival(0).dropped, 50 - room);
}

// As Linux rxe sends them.
TEST(UdpSocket, TakesDatagramsOverIpv6ThatHaveNoChecksum) {
  if (!has_ipv6()) GTEST_SKIP() << "no ::1 here";
  auto receiver = UdpSocket::open({.address = kV6}, UdpUse::Shared);
  ASSERT_TRUE(receiver);
  const OwnedFd sender(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ASSERT_EQ(setsockopt(sender.get(), SOL_UDP, UDP_NO_CHECK6_TX, &on, sizeof on), 0);
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(receiver->port());
  to.sin6_addr = in6addr_loopback;
  const std::array<std::byte, 4> bytes{};
  ASSERT_EQ(sendto(sender.get(), bytes.data(), bytes.size(), 0,
                   reinterpret_cast<const sockaddr*>(&to), sizeof to),
            4);
  DatagramArena arena(1, 64);
  EXPECT_EQ(arena.receive(receiver->fd(), 0, 1), 1u);
}

TEST(UdpSocket, TakesAndCountsWhatTheSystemRefusesForGood) {
  auto sender = UdpSocket::open({.address = kV4}, UdpUse::SendOnly);
  auto receiver = UdpSocket::open({.address = kV4}, UdpUse::Shared);
  ASSERT_TRUE(sender);
  ASSERT_TRUE(receiver);
  const std::vector<std::byte> too_long(70'000);
  const std::vector<std::byte> fine(10);
  std::vector<OutgoingDatagram> datagrams;
  for (const auto* bytes : {&fine, &too_long, &fine, &too_long, &too_long, &fine})
    datagrams.push_back(
        {.bytes = *bytes, .destination = kV4, .destination_port = receiver->port()});
  const SendOutcome outcome = sender->send(datagrams);
  EXPECT_EQ(outcome.taken, 6u);
  EXPECT_EQ(outcome.lost, 3u);
  DatagramArena arena(8, 64);
  EXPECT_EQ(arena.receive(receiver->fd(), 0, 8), 3u);
}

TEST(UdpSocket, TellsWhenADatagramIsLongerThanASlot) {
  auto receiver = UdpSocket::open({.address = kV4}, UdpUse::Shared);
  ASSERT_TRUE(receiver);
  const std::vector<std::byte> bytes(65);
  const OutgoingDatagram datagram{
      .bytes = bytes, .destination = kV4, .destination_port = receiver->port()};
  ASSERT_EQ(receiver->send({&datagram, 1}).taken, 1u);
  DatagramArena arena(1, 64);
  ASSERT_EQ(arena.receive(receiver->fd(), 0, 8), 1u);
  EXPECT_TRUE(arena.arrival(0).truncated);
  EXPECT_EQ(arena.arrival(0).bytes.size(), 64u);
  EXPECT_EQ(arena.receive(receiver->fd(), 0, 8), 0u);
  EXPECT_EQ(arena.receive(receiver->fd(), 1, 8), 0u);
}

TEST(UdpSocket, ThrowsAwayWhatArrivesIfItOnlySends) {
  auto sender = UdpSocket::open({.address = kV4}, UdpUse::SendOnly);
  ASSERT_TRUE(sender);
  const std::array<std::byte, 4> bytes{};
  const OutgoingDatagram datagram{
      .bytes = bytes, .destination = kV4, .destination_port = sender->port()};
  EXPECT_EQ(sender->send({&datagram, 1}).taken, 1u);
  DatagramArena arena(1, 64);
  EXPECT_EQ(arena.receive(sender->fd(), 0, 1), 0u);
}

TEST(UdpSocket, SteersByAKeyInThePayload) {
  auto first = UdpSocket::open({.address = kV4}, UdpUse::Shared);
  ASSERT_TRUE(first);
  auto second = UdpSocket::open({.address = kV4, .port = first->port()}, UdpUse::Shared);
  ASSERT_TRUE(second);
  const std::array<SteeringRule, 2> rules{{{.key = 5, .member = 1}, {.key = 6, .member = 0}}};
  ASSERT_TRUE(first->steer(8, 4, 0xff, rules));
  std::array<std::byte, 12> bytes{};
  for (const std::uint32_t key : {5u, 5u, 6u, 5u}) {
    store_be(bytes, 8, 0xabc0'0003u | key << 4);
    const OutgoingDatagram datagram{
        .bytes = bytes, .destination = kV4, .destination_port = first->port()};
    ASSERT_EQ(first->send({&datagram, 1}).taken, 1u);
  }
  DatagramArena arena(8, 64);
  EXPECT_EQ(arena.receive(first->fd(), 0, 8), 1u);
  EXPECT_EQ(arena.receive(second->fd(), 0, 8), 3u);
}

TEST(UdpSocket, FailsWithTheReasonOfTheSystem) {
  auto holder = UdpSocket::open({.address = kV4}, UdpUse::SendOnly);
  ASSERT_TRUE(holder);
  const auto taken = UdpSocket::open({.address = kV4, .port = holder->port()}, UdpUse::Shared);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().number, EADDRINUSE);
  EXPECT_EQ(error_text(taken.error()), "bind: Address already in use");
  const auto absent =
      UdpSocket::open({.address = IpAddress::of_ipv4({198, 51, 100, 7})}, UdpUse::Shared);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().number, EADDRNOTAVAIL);
}

TEST(BoundSockets, ListsExactlyTheSocketsOfOneAddressAndPort) {
  for (const IpAddress& address : {kV4, kV6}) {
    if (address == kV6 && !has_ipv6()) continue;
    auto first = UdpSocket::open({.address = address}, UdpUse::Shared);
    ASSERT_TRUE(first);
    auto second = UdpSocket::open({.address = address, .port = first->port()}, UdpUse::Shared);
    ASSERT_TRUE(second);
    const auto both = bound_udp_sockets(address, first->port());
    ASSERT_TRUE(both);
    std::vector<std::uint64_t> inodes;
    for (const BoundSocket& socket : *both) inodes.push_back(socket.inode);
    std::ranges::sort(inodes);
    std::vector<std::uint64_t> expected{first->inode(), second->inode()};
    std::ranges::sort(expected);
    EXPECT_EQ(inodes, expected);
    first->close();
    EXPECT_EQ(first->inode(), 0u);
    EXPECT_EQ(bound_udp_sockets(address, second->port())->size(), 1u);
  }
}

}  // namespace
}  // namespace softhca::os
