// Any bytes as an IP packet and as a UDP payload: src/wire reads nothing outside them, and what it
// accepts it can write again.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "wire/datagram.h"
#include "wire/icrc.h"
#include "wire/packet.h"
#include "wire/packet_text.h"

namespace softhca::wire {
namespace {

void check_packet(ConstBytes udp_payload) {
  const auto packet = parse(udp_payload);
  if (!packet) return;
  const std::size_t header_bytes = packet->info->header_bytes();
  ASSERT(header_bytes + packet->payload.size() + packet->headers.bth.pad + kIcrcBytes ==
         udp_payload.size());

  std::vector<std::byte> again(udp_payload.begin(), udp_payload.end());
  std::fill_n(again.begin(), header_bytes, std::byte{0xff});
  ASSERT(emit(packet->headers, again) == header_bytes);
  const auto reparsed = parse(again);
  ASSERT(reparsed && reparsed->headers == packet->headers && reparsed->info == packet->info);
  ASSERT(std::ranges::equal(reparsed->payload, packet->payload));
  ASSERT(packet_text(packet->headers, packet->payload.size()).starts_with(packet->info->name));
}

// A packet with the ICRC that belongs to it is right, and solvable with a hidden identification.
void check_sealed(const Datagram& datagram, ConstBytes udp_payload) {
  if (udp_payload.size() < kBthBytes + kIcrcBytes) return;
  std::vector<std::byte> sealed(udp_payload.begin(), udp_payload.end());
  const std::size_t crc_at = sealed.size() - kIcrcBytes;
  store_le(Bytes(sealed), crc_at, icrc(datagram, ConstBytes(sealed).first(crc_at)));
  ASSERT(check_icrc(datagram, sealed) == IcrcVerdict::Right);
  Datagram hidden = datagram;
  hidden.identification.reset();
  ASSERT(check_icrc(hidden, sealed) != IcrcVerdict::Wrong);
}

void check_ip_packet(ConstBytes ip_packet) {
  const auto parsed = parse_ip_udp(ip_packet);
  if (!parsed) return;
  const Datagram& datagram = parsed->datagram;
  std::vector<std::byte> again(kMaxIpUdpBytes, std::byte{0xff});
  const std::size_t front = emit_ip_udp(datagram, parsed->udp_payload.size(), again);
  again.resize(front);
  again.insert(again.end(), parsed->udp_payload.begin(), parsed->udp_payload.end());
  const auto reparsed = parse_ip_udp(again);
  ASSERT(reparsed && reparsed->datagram == datagram);
  ASSERT(std::ranges::equal(reparsed->udp_payload, parsed->udp_payload));
  ASSERT(Gid::parse(address_text(datagram.source)) == datagram.source);
  ASSERT(Gid::parse(gid_text(datagram.destination)) == datagram.destination);

  check_packet(parsed->udp_payload);
  check_sealed(datagram, parsed->udp_payload);
}

void check_gid(ConstBytes bytes) {
  const auto gid = Gid::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (gid) ASSERT(Gid::parse(gid_text(*gid)) == gid);
}

}  // namespace
}  // namespace softhca::wire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace softhca::wire;
  const softhca::ConstBytes input = std::as_bytes(std::span(bytes, size));
  check_ip_packet(input);
  check_packet(input);
  check_gid(input);
  Datagram datagram{.source = Gid::of_ipv4({10, 0, 0, 1}),
                    .destination = Gid::of_ipv4({10, 0, 0, 2})};
  datagram.identification.reset();
  static_cast<void>(check_icrc(datagram, input));
  return 0;
}
