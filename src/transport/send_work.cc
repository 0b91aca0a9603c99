#include "transport/send_work.h"

#include <algorithm>

namespace softhca::transport {

using wire::Place;

namespace {

Place place_of(std::uint64_t index, bool last) {
  if (index == 0) return last ? Place::Only : Place::First;
  return last ? Place::Last : Place::Middle;
}

wire::Operation operation_of(WorkOpcode opcode, Place place) {
  const bool last = place == Place::Last || place == Place::Only;
  const bool immediate = last && (opcode == WorkOpcode::SendImm || opcode == WorkOpcode::WriteImm);
  if (opcode == WorkOpcode::AtomicWrite) return wire::Operation::AtomicWrite;
  if (opcode == WorkOpcode::SendInvalidate && last) return wire::send_invalidate_operation(place);
  return is_send(opcode) ? wire::send_operation(place, immediate)
                         : wire::write_operation(place, immediate);
}

}  // namespace

std::uint64_t packets_of(const SendWork& work, std::uint32_t mtu) {
  if (is_local(work.opcode)) return 0;
  return std::max<std::uint64_t>(1, (work.bytes + mtu - 1) / mtu);
}

Emission message_packet(wire::Service service, const SendWork& work, std::uint64_t index,
                        std::uint32_t mtu) {
  const std::uint64_t offset = index * mtu;
  const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(mtu, work.bytes - offset));
  const bool last = work.bytes <= offset + mtu;
  const Place place = place_of(index, last);

  Emission out;
  wire::Headers& h = out.headers;
  h.bth.opcode = wire::opcode_of(service, operation_of(work.opcode, place));
  h.bth.pad = wire::pad_for(bytes);
  h.bth.pkey = wire::kDefaultPkey;
  h.bth.solicited = last && work.solicited;
  if (index == 0 && !is_send(work.opcode)) {
    h.remote_address = work.remote_address;
    h.rkey = work.rkey;
    h.dma_length = static_cast<std::uint32_t>(work.bytes);
  }
  if (last && (work.opcode == WorkOpcode::SendImm || work.opcode == WorkOpcode::WriteImm))
    h.immediate = work.immediate;
  if (last && work.opcode == WorkOpcode::SendInvalidate) h.invalidate_key = work.rkey;
  if (bytes != 0)
    out.payload = {.place = PayloadRef::Place::SendWork,
                   .work = work.work,
                   .offset = offset,
                   .key = {},
                   .address = 0,
                   .bytes = bytes,
                   .left = work.bytes - offset - bytes};
  return out;
}

}  // namespace softhca::transport
