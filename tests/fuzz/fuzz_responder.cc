// Packets from the peer: any headers, any order, right ICRC. The device neither crashes nor writes
// outside the registered buffer, and every packet that it sends makes sense.
#include <algorithm>

#include "flat_device.h"
#include "wire/icrc.h"

namespace {

using namespace softhca;

// A packet out of fuzzed bytes: a length, then BTH and the rest. The fields that decide whether it
// is looked at at all are put right for most of them.
std::vector<std::byte> packet_from(std::span<const std::byte>& input,
                                   const wire::Datagram& datagram, const fuzz::FlatDevice& flat) {
  const std::size_t wanted =
      std::to_integer<std::size_t>(input[0]) + (std::to_integer<std::size_t>(input[1]) & 1) * 256;
  const bool raw = (std::to_integer<unsigned>(input[1]) & 0x80) != 0;
  const std::uint32_t number = std::to_integer<std::uint32_t>(input[1] >> 1) % 3;
  const bool by_window = (std::to_integer<unsigned>(input[1]) & 0x40) != 0;
  input = input.subspan(2);
  std::vector<std::byte> packet(
      input.begin(), input.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, input.size())));
  input = input.subspan(packet.size());
  packet.resize(std::max(packet.size(), wire::kBthBytes));
  if (!raw) {
    constexpr wire::Service kServices[] = {wire::Service::Rc, wire::Service::Uc, wire::Service::Ud};
    packet[0] &= std::byte{0x1f};
    packet[0] |= std::byte(wire::opcode_of(kServices[number], wire::Operation::SendFirst));
    packet[1] &= std::byte{0xf0};
    packet[2] = packet[3] = std::byte{0xff};
    store_be<std::uint32_t>(packet, 4, fuzz::FlatDevice::qpn_of(number).value);
    packet[9] = packet[10] = std::byte{0};  // PSNs near the expected one
    packet[11] &= std::byte{0x0f};
    const wire::OpcodeInfo* info = wire::find_opcode(std::to_integer<std::uint8_t>(packet[0]));
    const bool names_memory =
        info != nullptr && (info->has(wire::Header::Reth) || info->has(wire::Header::AtomicEth));
    if (names_memory && packet.size() >= info->header_bytes()) {
      const auto offset = load_be<std::uint16_t>(packet, 12);
      store_be<std::uint64_t>(packet, 12, fuzz::FlatDevice::kBuffer + offset);
      store_be<std::uint32_t>(packet, 20, by_window ? flat.window.value : flat.key.value);
      if (info->has(wire::Header::Reth))
        store_be<std::uint32_t>(packet, 24, load_be<std::uint32_t>(packet, 24) & 0x7fff);
    }
    if (info != nullptr && packet.size() >= info->header_bytes()) {
      if (info->kind == wire::Kind::AtomicWrite) store_be<std::uint32_t>(packet, 24, 8);
      if (info->has(wire::Header::Ieth)) store_be<std::uint32_t>(packet, 12, flat.window.value);
      if (info->has(wire::Header::Deth)) store_be<std::uint32_t>(packet, 12, flat.kQkey);
    }
  }
  const std::uint32_t icrc = wire::icrc(datagram, packet);
  packet.resize(packet.size() + wire::kIcrcBytes);
  store_le(packet, packet.size() - wire::kIcrcBytes, icrc);
  return packet;
}

// Requests of its own, so that answers have something to answer.
void post_requests(fuzz::FlatDevice& flat) {
  for (std::uint32_t i = 0; i < flat.kSlots; ++i) {
    nic::SendWqe wqe;
    wqe.index = i;
    wqe.opcode = static_cast<std::uint8_t>(i % 7);
    wqe.flags = static_cast<std::uint8_t>(nic::WqeFlag::Signaled);
    wqe.segments = 1;
    wqe.remote_address = 0x1000;
    const bool is_atomic = i % 7 > 4;
    const nic::Segment segment{flat.kBuffer + i * 1024, is_atomic ? 8u : 700u, flat.key.value};
    store_le(Bytes(flat.memory.memory), flat.kSend + i * flat.kStride, wqe);
    store_le(Bytes(flat.memory.memory), flat.kSend + i * flat.kStride + sizeof wqe, segment);
    store_le(Bytes(flat.memory.memory), flat.kReceive + i * flat.kReceiveStride,
             nic::ReceiveWqe{i, i, 1});
    store_le(Bytes(flat.memory.memory),
             flat.kReceive + i * flat.kReceiveStride + sizeof(nic::ReceiveWqe), segment);
  }
  for (std::uint32_t number = 0; number < std::size(flat.kTypes); ++number) {
    const Bytes from = Bytes(flat.memory.memory).subspan(flat.kReceive, flat.kRings);
    std::ranges::copy(from.first(flat.kSlots * flat.kReceiveStride),
                      flat.memory.memory.begin() +
                          static_cast<std::ptrdiff_t>(flat.kReceive + number * flat.kRings));
    flat.ring(nic::Doorbell::Receive, flat.kSlots, number);
  }
  flat.ring(nic::Doorbell::Send, flat.kSlots);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::FlatDevice flat;
  post_requests(flat);
  wire::Datagram from_peer = flat.path;
  std::swap(from_peer.source, from_peer.destination);
  std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  std::vector<std::vector<std::byte>> packets;
  while (input.size() > 2 && packets.size() < 64)
    packets.push_back(packet_from(input, from_peer, flat));
  for (const auto& packet : packets) flat.link.frames.push_back({from_peer, packet});
  flat.run(40);
  fuzz::require(flat.tracer.counters().get(trace::Counter::CqesWritten) <= 4 * flat.kSlots);
  flat.require_guards();
  return 0;
}
