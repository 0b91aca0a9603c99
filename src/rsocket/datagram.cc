#include "rsocket/datagram.h"

#include <algorithm>

namespace softhca::rsocket {
namespace {

constexpr std::uint32_t kTag = 0x55555555;
constexpr std::uint8_t kOpBytes = 0;
constexpr std::uint8_t kOpAnswer = 7;
constexpr std::uint32_t kQpnMask = 0xffffff;

constexpr std::size_t address_bytes(bool is_ipv6) { return is_ipv6 ? 16 : 4; }
constexpr std::uint8_t version_of(bool is_ipv6) { return is_ipv6 ? 6 : 4; }

constexpr std::uint8_t source_bytes(bool is_ipv6) { return is_ipv6 ? 24 : 8; }
constexpr std::uint8_t introduction_bytes(bool is_ipv6) { return is_ipv6 ? 28 : 16; }

// Version and length name the same family, and the bytes are there.
bool is_header(ConstBytes datagram, std::uint8_t version, std::uint8_t length,
               std::uint8_t (*length_of)(bool)) {
  return (version == 4 || version == 6) && length == length_of(version == 6) &&
         datagram.size() >= length;
}

void copy_address(ConstBytes from, bool is_ipv6, std::array<std::byte, 16>& to) {
  std::ranges::copy(from.first(address_bytes(is_ipv6)), to.begin());
}

}  // namespace

std::size_t store_source(std::span<std::byte, kSourceBytesMax> to, const Endpoint& source) {
  const std::uint8_t length = source_bytes(source.is_ipv6);
  store_be(to, 0, version_of(source.is_ipv6));
  store_be(to, 1, length);
  store_be(to, 2, source.port);
  if (source.is_ipv6) store_le(to, 4, source.flow);
  const std::size_t bytes = address_bytes(source.is_ipv6);
  std::copy_n(source.address.begin(), bytes, to.subspan(length - bytes).begin());
  return length;
}

std::optional<Source> parse_source(ConstBytes datagram) {
  if (datagram.size() < 2) return {};
  const auto length = load_be<std::uint8_t>(datagram, 1);
  if (!is_header(datagram, load_be<std::uint8_t>(datagram), length, source_bytes)) return {};
  Source source{.endpoint = {.is_ipv6 = length == source_bytes(true),
                             .port = load_be<std::uint16_t>(datagram, 2)},
                .bytes = length};
  Endpoint& endpoint = source.endpoint;
  if (endpoint.is_ipv6) endpoint.flow = load_le<std::uint32_t>(datagram, 4);
  copy_address(datagram.subspan(length - address_bytes(endpoint.is_ipv6)), endpoint.is_ipv6,
               endpoint.address);
  return source;
}

std::size_t store_introduction(std::span<std::byte, kIntroductionBytesMax> to,
                               const Introduction& introduction) {
  const std::uint8_t length = introduction_bytes(introduction.is_ipv6);
  store_be(to, 0, kTag);
  store_be(to, 4, version_of(introduction.is_ipv6));
  store_be(to, 5, introduction.has_bytes ? kOpBytes : kOpAnswer);
  store_be(to, 6, length);
  store_be(to, 7, std::uint8_t{0});
  store_be(to, 8, introduction.qpn & kQpnMask);
  std::copy_n(introduction.address.begin(), address_bytes(introduction.is_ipv6), to.begin() + 12);
  return length;
}

std::optional<Introduction> parse_introduction(ConstBytes datagram) {
  if (datagram.size() < introduction_bytes(false) || load_be<std::uint32_t>(datagram) != kTag)
    return {};
  const auto op = load_be<std::uint8_t>(datagram, 5);
  const auto length = load_be<std::uint8_t>(datagram, 6);
  const bool known = op == kOpBytes || op == kOpAnswer;
  if (!known ||
      !is_header(datagram, load_be<std::uint8_t>(datagram, 4), length, introduction_bytes))
    return {};
  Introduction introduction{.has_bytes = op == kOpBytes,
                            .qpn = load_be<std::uint32_t>(datagram, 8) & kQpnMask,
                            .is_ipv6 = length == introduction_bytes(true),
                            .bytes = length};
  copy_address(datagram.subspan(12), introduction.is_ipv6, introduction.address);
  return introduction;
}

}  // namespace softhca::rsocket
