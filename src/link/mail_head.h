// What other processes of this host are told of a frame that is passed to them, and whose it is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "local/mailbox.h"
#include "wire/datagram.h"
#include "wire/psn.h"

namespace softhca::link {

inline local::MailHead mail_head_of(const wire::Datagram& datagram) {
  return {.source = {datagram.source.bytes},
          .destination = {datagram.destination.bytes},
          .source_port = datagram.source_port,
          .destination_port = datagram.destination_port,
          .traffic_class = datagram.traffic_class};
}

inline wire::Datagram datagram_of(const local::MailHead& head) {
  return {.source = {head.source.bytes},
          .destination = {head.destination.bytes},
          .source_port = head.source_port,
          .destination_port = head.destination_port,
          .traffic_class = head.traffic_class};
}

// REQUIRES: a whole BTH.
inline wire::Qpn destination_qpn(ConstBytes packet) {
  constexpr std::size_t kQpnWord = 4;
  return {load_be<std::uint32_t>(packet, kQpnWord) & wire::kMask24};
}

}  // namespace softhca::link
