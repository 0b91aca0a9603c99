// Datagrams: what rsockets put in front of a datagram's bytes.
//
// A datagram goes from queue pair to queue pair, once the sender knows the receiver's. Until then
// it goes by UDP between the two sockets, with a header that tells the sender's queue pair; the
// receiver answers with his own.
//
// See also  docs/rsockets.md
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "base/bytes.h"

namespace softhca::rsocket {

// An address and port of UDP.
struct Endpoint {
  bool is_ipv6{};
  std::array<std::byte, 16> address{};  // of IPv4 the first four bytes
  std::uint16_t port{};
  std::uint32_t flow{};  // of IPv6, in network order

  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

// In front of a datagram that goes between queue pairs: whom it is from.
inline constexpr std::size_t kSourceBytesMax = 24;
// How many bytes of `to` it took.
std::size_t store_source(std::span<std::byte, kSourceBytesMax> to, const Endpoint& source);

struct Source {
  Endpoint endpoint{};
  std::size_t bytes{};  // the datagram's own begin behind so many
};
std::optional<Source> parse_source(ConstBytes datagram);

// In front of what goes by UDP.
struct Introduction {
  bool has_bytes{};  // a datagram follows, and an answer is asked for
  std::uint32_t qpn{};
  bool is_ipv6{};
  std::array<std::byte, 16> address{};  // the sender's
  std::size_t bytes{};                  // the datagram's own begin behind so many
};
inline constexpr std::size_t kIntroductionBytesMax = 28;
// `bytes` is not read. How many bytes of `to` it took.
std::size_t store_introduction(std::span<std::byte, kIntroductionBytesMax> to,
                               const Introduction& introduction);
std::optional<Introduction> parse_introduction(ConstBytes datagram);

}  // namespace softhca::rsocket
