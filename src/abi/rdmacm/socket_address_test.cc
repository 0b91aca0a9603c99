#include "abi/rdmacm/socket_address.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace softhca::abi {
namespace {

const sockaddr& plain(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr&>(storage);
}

SocketAddress v4(std::array<std::uint8_t, 4> bytes, std::uint16_t port) {
  return {.address = os::IpAddress::of_ipv4(bytes), .port = port};
}

TEST(SocketAddress, OfIpv4IsThatOfItsGid) {
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_port = byte_swapped(std::uint16_t{7174});
  const std::array<std::uint8_t, 4> bytes{192, 0, 2, 1};
  std::memcpy(&from.sin_addr, bytes.data(), sizeof bytes);
  const auto to = socket_address(reinterpret_cast<const sockaddr&>(from));
  ASSERT_TRUE(to);
  EXPECT_EQ(*to, v4(bytes, 7174));
  EXPECT_EQ(to->gid(), wire::Gid::of_ipv4(bytes));
  EXPECT_EQ(text_of(*to), "192.0.2.1 port 7174");
}

TEST(SocketAddress, GoesBackAsItCame) {
  SocketAddress v6{.address = {}, .port = 1, .scope = 3, .is_ipv6 = true};
  v6.address.bytes[0] = 0xfe;
  v6.address.bytes[1] = 0x80;
  SocketAddress mapped = v4({192, 0, 2, 1}, 9);
  mapped.is_ipv6 = true;
  for (const SocketAddress& address : {v4({127, 0, 0, 1}, 65535), v6, mapped}) {
    sockaddr_storage storage;
    store(address, storage);
    const auto back = socket_address(plain(storage));
    ASSERT_TRUE(back);
    EXPECT_EQ(*back, address);
  }
}

TEST(SocketAddress, KnowsThoseThatMeanSomethingElse) {
  EXPECT_TRUE(v4({}, 1).is_any());
  EXPECT_TRUE(SocketAddress{.is_ipv6 = true}.is_any());
  EXPECT_FALSE(v4({10, 0, 0, 1}, 1).is_any());
  EXPECT_TRUE(v4({127, 3, 0, 1}, 1).is_loopback());
  SocketAddress one{.is_ipv6 = true};
  one.address.bytes[15] = 1;
  EXPECT_TRUE(one.is_loopback());
  EXPECT_FALSE(one.is_any());
  EXPECT_TRUE(v4({239, 1, 2, 3}, 1).is_multicast());
}

TEST(SocketAddress, IsNotOfOtherFamilies) {
  sockaddr_storage storage{};
  storage.ss_family = AF_UNIX;
  const auto to = socket_address(plain(storage));
  ASSERT_FALSE(to);
  EXPECT_EQ(to.error().code, EAFNOSUPPORT);
}

}  // namespace
}  // namespace softhca::abi
