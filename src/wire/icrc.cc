#include "wire/icrc.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "wire/crc32.h"

namespace softhca::wire {
namespace {

constexpr std::uint32_t kPolynomial = 0xedb8'8320;  // of Ethernet, lowest power in the top bit
constexpr std::uint8_t kOnes8 = 0xff;
constexpr std::uint16_t kOnes16 = 0xffff;
constexpr std::size_t kLrhBytes = 8;  // where native InfiniBand has its LRH, ones are covered
constexpr std::size_t kIpv4IdentificationAt = 4;
constexpr std::size_t kBthFecnAt = 4;

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

// Of what stands in front of the BTH.
std::uint32_t crc_of_front(const Datagram& datagram, std::size_t packet_bytes) {
  ASSERT(!datagram.is_ipv4() || datagram.identification);
  Datagram masked = datagram;
  masked.traffic_class = kOnes8;
  masked.hop_limit = kOnes8;
  masked.flow_label = ~std::uint32_t{0};

  std::array<std::byte, kLrhBytes + kMaxIpUdpBytes> front;
  const Bytes all(front);
  std::ranges::fill(all.first(kLrhBytes), std::byte{kOnes8});
  const Bytes ip = all.subspan(kLrhBytes);
  const std::size_t ip_udp = emit_ip_udp(masked, packet_bytes + kIcrcBytes, ip);
  if (datagram.is_ipv4()) store_be(ip, kIpv4ChecksumAt, kOnes16);
  store_be(ip, ip_udp - sizeof kOnes16, kOnes16);  // the UDP checksum
  return crc32(0, all.first(kLrhBytes + ip_udp));
}

std::uint32_t icrc_behind(std::uint32_t crc_of_front, ConstBytes packet) {
  ASSERT(packet.size() >= kBthBytes);
  std::array<std::byte, kBthBytes> bth;
  std::ranges::copy(packet.first(kBthBytes), bth.begin());
  store_be(Bytes(bth), kBthFecnAt, kOnes8);  // FECN, BECN and reserved bits
  return crc32(crc32(crc_of_front, bth), packet.subspan(kBthBytes));
}

struct Sealed {
  ConstBytes packet;
  std::uint32_t icrc;
};
std::optional<Sealed> sealed_of(ConstBytes udp_payload) {
  if (udp_payload.size() < kBthBytes + kIcrcBytes) return std::nullopt;
  return Sealed{udp_payload.first(udp_payload.size() - kIcrcBytes),
                load_le<std::uint32_t>(udp_payload.last(kIcrcBytes))};
}

bool is_hidden(const Datagram& datagram) { return datagram.is_ipv4() && !datagram.identification; }

Datagram guess_of(const Datagram& datagram) {
  Datagram guess = datagram;
  if (is_hidden(datagram)) guess.identification = std::uint16_t{0};
  return guess;
}

IcrcVerdict verdict_of(std::uint32_t difference, bool hidden, std::size_t packet_bytes) {
  if (difference == 0) return IcrcVerdict::Right;
  return hidden && solve_identification(difference, packet_bytes) ? IcrcVerdict::Solved
                                                                  : IcrcVerdict::Wrong;
}

}  // namespace

std::uint32_t icrc(const Datagram& datagram, ConstBytes packet) {
  return icrc_behind(crc_of_front(datagram, packet.size()), packet);
}

std::uint32_t icrc_change(std::uint16_t identification, std::size_t packet_bytes) {
  return times(byte_swapped(identification), kZeros, bytes_from_identification(packet_bytes));
}

std::optional<std::uint16_t> find_identification(const Datagram& datagram, ConstBytes udp_payload) {
  const auto sealed = sealed_of(udp_payload);
  if (!sealed) return std::nullopt;
  Datagram guess = datagram;
  guess.identification = std::uint16_t{0};
  return solve_identification(icrc(guess, sealed->packet) ^ sealed->icrc, sealed->packet.size());
}

IcrcVerdict check_icrc(const Datagram& datagram, ConstBytes udp_payload) {
  const auto sealed = sealed_of(udp_payload);
  if (!sealed) return IcrcVerdict::Wrong;
  return verdict_of(icrc(guess_of(datagram), sealed->packet) ^ sealed->icrc, is_hidden(datagram),
                    sealed->packet.size());
}

std::uint32_t IcrcChanges::of(std::uint16_t identification, std::size_t packet_bytes) {
  Row& row = rows_[packet_bytes / 4 % rows_.size()];
  if (row.packet_bytes != packet_bytes) {
    row.packet_bytes = packet_bytes;
    for (unsigned bit = 0; bit < row.of_bit.size(); ++bit)
      row.of_bit[bit] = icrc_change(static_cast<std::uint16_t>(1u << bit), packet_bytes);
  }
  std::uint32_t change = 0;
  for (std::uint32_t rest = identification; rest != 0; rest &= rest - 1)
    change ^= row.of_bit[static_cast<std::size_t>(std::countr_zero(rest))];
  return change;
}

std::uint32_t IcrcMemory::icrc(const Datagram& datagram, ConstBytes packet) {
  const std::uint16_t identification = datagram.identification.value_or(0);
  Row& row = rows_[(packet.size() / 4 ^ datagram.source_port) % rows_.size()];
  if (row.packet_bytes != packet.size() || row.source_port != datagram.source_port ||
      row.destination_port != datagram.destination_port || row.identification != identification ||
      row.source != datagram.source || row.destination != datagram.destination)
    row = {.packet_bytes = packet.size(),
           .source = datagram.source,
           .destination = datagram.destination,
           .source_port = datagram.source_port,
           .destination_port = datagram.destination_port,
           .identification = identification,
           .crc = crc_of_front(datagram, packet.size())};
  return icrc_behind(row.crc, packet);
}

IcrcVerdict IcrcMemory::check(const Datagram& datagram, ConstBytes udp_payload,
                              std::uint16_t likely) {
  const auto sealed = sealed_of(udp_payload);
  if (!sealed) return IcrcVerdict::Wrong;
  const std::uint32_t difference = icrc(guess_of(datagram), sealed->packet) ^ sealed->icrc;
  const bool hidden = is_hidden(datagram);
  if (hidden && likely != 0 && difference == changes_.of(likely, sealed->packet.size()))
    return IcrcVerdict::Solved;
  return verdict_of(difference, hidden, sealed->packet.size());
}

}  // namespace softhca::wire
