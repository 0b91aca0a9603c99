// Forge: packets that no host here has sent, put onto the cable between hosts that think so.
#pragma once
#include <algorithm>
#include <vector>

#include "sim/world.h"
#include "wire/icrc.h"

namespace softhca::sim {

class Forge {
 public:
  explicit Forge(World& world) : world_(world) {
    const wire::Gid own = wire::Gid::of_ipv4({10, 9, 9, 9});
    link_ = &world.network().attach({&own, 1});
  }

  // A packet of that opcode for a queue pair of `to`, with whatever else is usual.
  static wire::Headers headers(std::uint8_t opcode, const Connection::End& to) {
    wire::Headers h;
    h.bth.opcode = opcode;
    h.bth.pkey = wire::kDefaultPkey;
    h.bth.dest_qpn = to.hearing().qpn();
    return h;
  }
  static wire::Headers notification(const Connection::End& to) {
    wire::Headers h = headers(0x81, to);
    h.bth.becn = true;
    return h;
  }
  // What `from` would have sent to `to`.
  static wire::Datagram between(const Connection::End& from, const Connection::End& to,
                                std::uint8_t traffic_class = 0) {
    wire::Datagram datagram{.source = from.host->gid(), .destination = to.host->gid()};
    datagram.source_port = 0xc001;
    datagram.traffic_class = traffic_class;
    return datagram;
  }

  void send(const wire::Headers& headers, const wire::Datagram& datagram,
            std::size_t payload_bytes = 0) {
    std::vector<std::byte> frame(wire::kMaxHeaderBytes + payload_bytes + wire::kIcrcBytes);
    const std::size_t covered = wire::emit(headers, frame) + payload_bytes;
    store_le(Bytes(frame), covered, wire::icrc(datagram, Bytes(frame).first(covered)));
    const link::Frame one{datagram, Bytes(frame).first(covered + wire::kIcrcBytes)};
    link_->send({&one, 1}, world_.now());
    world_.pass(microseconds(2));
  }
  void send_notification(const Connection::End& from, const Connection::End& to,
                         std::uint8_t traffic_class = 0) {
    send(notification(to), between(from, to, traffic_class), wire::kCnpPayloadBytes);
  }

 private:
  World& world_;
  link::Link* link_;
};

}  // namespace softhca::sim
