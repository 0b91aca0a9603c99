#include "wire/icrc.h"

#include <libdeflate.h>

#include <algorithm>
#include <bit>
#include <optional>

namespace softhca::wire {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb8'8320;  // of Ethernet, lowest power in the top bit
constexpr std::uint8_t kOnes8 = 0xff;
constexpr std::uint16_t kOnes16 = 0xffff;
constexpr std::size_t kLrhBytes = 8;  // where native InfiniBand has its LRH, ones are covered
constexpr std::size_t kIpv4IdentificationAt = 4;
constexpr std::size_t kBthFecnAt = 4;

std::uint32_t crc32(std::uint32_t so_far, ConstBytes bytes) {
  return libdeflate_crc32(so_far, bytes.data(), bytes.size());
}

// a times b modulo the polynomial, over GF(2).
constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (int bit = 31; bit >= 0; --bit) {
    sum ^= b & (0u - (a >> bit & 1));
    b = b >> 1 ^ (kPolynomial & (0u - (b & 1)));
  }
  return sum;
}

constexpr int kPowers = 17;  // an IP packet has fewer than 2^17 bytes

constexpr std::uint32_t kOne = 0x8000'0000;  // the polynomial 1
using Powers = std::array<std::uint32_t, kPowers>;

// Entry k is `one_byte` to the power of 2^k.
constexpr Powers powers_of(std::uint32_t one_byte) {
  Powers powers{one_byte};
  for (std::size_t k = 1; k < powers.size(); ++k) powers[k] = product(powers[k - 1], powers[k - 1]);
  return powers;
}

// Entry k is what 2^k bytes of zeros do to a CRC register: x to the power of 8 * 2^k.
constexpr Powers kZeros = [] {
  std::uint32_t one_byte = kOne;
  for (int bit = 0; bit < 8; ++bit)
    one_byte = one_byte >> 1 ^ (kPolynomial & (0u - (one_byte & 1)));
  return powers_of(one_byte);
}();

// The same undone.
constexpr Powers kUndoZeros = [] {
  std::uint32_t one_byte = kOne;
  for (int bit = 0; bit < 8; ++bit)
    one_byte = (one_byte & kOne) != 0 ? (one_byte ^ kPolynomial) << 1 | 1 : one_byte << 1;
  return powers_of(one_byte);
}();

std::uint32_t times(std::uint32_t crc, const Powers& powers, std::size_t bytes) {
  ASSERT(bytes >> kPowers == 0);
  for (; bytes != 0; bytes &= bytes - 1)
    crc = product(crc, powers[static_cast<std::size_t>(std::countr_zero(bytes))]);
  return crc;
}

// From the identification to where the ICRC begins.
std::size_t bytes_from_identification(std::size_t packet_bytes) {
  return kIpv4Bytes - kIpv4IdentificationAt + kUdpBytes + packet_bytes;
}

// The identification that turns the ICRC made with identification 0 into the one found. CRCs are
// linear: the two differ by what the 16 bits become on their way through the rest of the packet,
// and that way can be walked back. It is one-to-one, so there is at most one answer.
std::optional<std::uint16_t> solve_identification(std::uint32_t difference,
                                                  std::size_t packet_bytes) {
  const std::uint32_t start =
      times(difference, kUndoZeros, bytes_from_identification(packet_bytes));
  if (start > kOnes16) return std::nullopt;
  return byte_swapped(static_cast<std::uint16_t>(start));  // the register's low byte went first
}

}  // namespace

std::uint32_t icrc(const Datagram& datagram, ConstBytes packet) {
  ASSERT(packet.size() >= kBthBytes);
  ASSERT(!datagram.is_ipv4() || datagram.identification);
  Datagram masked = datagram;
  masked.traffic_class = kOnes8;
  masked.hop_limit = kOnes8;
  masked.flow_label = ~std::uint32_t{0};

  std::array<std::byte, kLrhBytes + kMaxIpUdpBytes + kBthBytes> front;
  const Bytes all(front);
  std::ranges::fill(all.first(kLrhBytes), std::byte{kOnes8});
  const Bytes ip = all.subspan(kLrhBytes);
  const std::size_t ip_udp = emit_ip_udp(masked, packet.size() + kIcrcBytes, ip);
  if (datagram.is_ipv4()) store_be(ip, kIpv4ChecksumAt, kOnes16);
  store_be(ip, ip_udp - sizeof kOnes16, kOnes16);  // the UDP checksum
  const Bytes bth = ip.subspan(ip_udp, kBthBytes);
  std::ranges::copy(packet.first(kBthBytes), bth.begin());
  store_be(bth, kBthFecnAt, kOnes8);  // FECN, BECN and reserved bits

  return crc32(crc32(0, all.first(kLrhBytes + ip_udp + kBthBytes)), packet.subspan(kBthBytes));
}

std::uint32_t icrc_change(std::uint16_t identification, std::size_t packet_bytes) {
  return times(byte_swapped(identification), kZeros, bytes_from_identification(packet_bytes));
}

std::optional<std::uint16_t> find_identification(const Datagram& datagram, ConstBytes udp_payload) {
  if (udp_payload.size() < kBthBytes + kIcrcBytes) return std::nullopt;
  const ConstBytes packet = udp_payload.first(udp_payload.size() - kIcrcBytes);
  Datagram guess = datagram;
  guess.identification = std::uint16_t{0};
  const auto found = load_le<std::uint32_t>(udp_payload.last(kIcrcBytes));
  return solve_identification(icrc(guess, packet) ^ found, packet.size());
}

IcrcVerdict check_icrc(const Datagram& datagram, ConstBytes udp_payload) {
  if (udp_payload.size() < kBthBytes + kIcrcBytes) return IcrcVerdict::Wrong;
  const ConstBytes packet = udp_payload.first(udp_payload.size() - kIcrcBytes);
  const auto found = load_le<std::uint32_t>(udp_payload.last(kIcrcBytes));
  const bool hidden = datagram.is_ipv4() && !datagram.identification;

  Datagram guess = datagram;
  if (hidden) guess.identification = std::uint16_t{0};
  const std::uint32_t difference = icrc(guess, packet) ^ found;
  if (difference == 0) return IcrcVerdict::Right;
  if (!hidden) return IcrcVerdict::Wrong;
  return solve_identification(difference, packet.size()) ? IcrcVerdict::Solved : IcrcVerdict::Wrong;
}

}  // namespace softhca::wire
