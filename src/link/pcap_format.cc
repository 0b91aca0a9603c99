#include "link/pcap_format.h"

#include <algorithm>

namespace softhca::link {

namespace {

constexpr std::uint32_t kMagicNanoseconds = 0xa1b2'3c4d;
constexpr std::uint16_t kVersionMajor = 2;
constexpr std::uint16_t kVersionMinor = 4;
constexpr std::uint32_t kSnapLength = 1 << 18;
constexpr std::uint32_t kLinkTypeEthernet = 1;
constexpr std::size_t kRecordHeadBytes = 16;
constexpr std::size_t kEthernetHeaderBytes = 14;
constexpr std::uint16_t kEtherTypeIpv4 = 0x0800;
constexpr std::uint16_t kEtherTypeIpv6 = 0x86dd;
constexpr std::uint8_t kProtocolUdp = 17;
constexpr std::size_t kUdpChecksumAt = 6;

void store_mac(Bytes out, const wire::Gid& gid) {
  constexpr std::uint8_t kLocallyAdministered = 0x02;
  store_be(out, 0, kLocallyAdministered);
  store_be(out, 1, gid.is_ipv4() ? std::uint8_t{4} : std::uint8_t{6});
  std::ranges::copy(bytes_of(gid.bytes).last(4), out.subspan(2, 4).begin());
}

// 16-bit words, the last one filled up with a zero byte.
std::uint64_t sum_of(ConstBytes bytes) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) sum += load_be<std::uint16_t>(bytes, at);
  if (bytes.size() % 2 != 0) sum += std::to_integer<std::uint64_t>(bytes.back()) << 8;
  return sum;
}

// As the kernel writes it behind us; `udp` starts at the UDP header, whose own checksum is zero.
std::uint16_t udp_checksum(const wire::Datagram& datagram, ConstBytes udp) {
  const std::size_t address_bytes = datagram.is_ipv4() ? 4 : 16;
  std::uint64_t sum = sum_of(bytes_of(datagram.source.bytes).last(address_bytes)) +
                      sum_of(bytes_of(datagram.destination.bytes).last(address_bytes)) +
                      kProtocolUdp + udp.size() + sum_of(udp);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  const auto checksum = static_cast<std::uint16_t>(~sum);
  return checksum == 0 ? 0xffff : checksum;
}

}  // namespace

std::array<std::byte, kPcapHeadBytes> pcap_head() {
  std::array<std::byte, kPcapHeadBytes> head{};
  store_le(head, 0, kMagicNanoseconds);
  store_le(head, 4, kVersionMajor);
  store_le(head, 6, kVersionMinor);
  store_le(head, 16, kSnapLength);
  store_le(head, 20, kLinkTypeEthernet);
  return head;
}

void append_pcap_record(std::vector<std::byte>& to, const Frame& frame, std::int64_t stamp_ns) {
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  const wire::Datagram& datagram = frame.datagram;
  const std::size_t ip_udp =
      (datagram.is_ipv4() ? wire::kIpv4Bytes : wire::kIpv6Bytes) + wire::kUdpBytes;
  const std::size_t length = kEthernetHeaderBytes + ip_udp + frame.bytes.size();
  const std::size_t before = to.size();
  to.resize(before + kRecordHeadBytes + length);
  const Bytes record = Bytes(to).subspan(before);
  store_le(record, 0, static_cast<std::uint32_t>(stamp_ns / kNsPerSecond));
  store_le(record, 4, static_cast<std::uint32_t>(stamp_ns % kNsPerSecond));
  store_le(record, 8, static_cast<std::uint32_t>(length));
  store_le(record, 12, static_cast<std::uint32_t>(length));

  const Bytes ethernet = record.subspan(kRecordHeadBytes);
  store_mac(ethernet, datagram.destination);
  store_mac(ethernet.subspan(6), datagram.source);
  store_be(ethernet, 12, datagram.is_ipv4() ? kEtherTypeIpv4 : kEtherTypeIpv6);

  const Bytes ip = ethernet.subspan(kEthernetHeaderBytes);
  emit_ip_udp(datagram, frame.bytes.size(), ip);
  std::ranges::copy(frame.bytes, ip.subspan(ip_udp).begin());
  const Bytes udp = ip.subspan(ip_udp - wire::kUdpBytes);
  store_be(udp, kUdpChecksumAt, udp_checksum(datagram, udp));
}

}  // namespace softhca::link
