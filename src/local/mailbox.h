// Mail: a packet that one process of this host passes to another, because it is for its QPNs.
//
// A fixed head, then the UDP payload. Mail could claim any source; so it is believed from this
// user, and from the one who has the port of the destination address (local/lodging.h).
//
// See also  local/qpn_block.h (who has one), local/port_group.h (when it is needed)
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/bytes.h"
#include "local/qpn_block.h"
#include "os/datagram_arena.h"
#include "os/host_mailbox.h"
#include "os/ip_address.h"

namespace softhca::local {

struct MailHead {
  os::IpAddress source;
  os::IpAddress destination;
  std::uint16_t source_port{};
  std::uint16_t destination_port{};
  std::uint8_t traffic_class{};
  friend bool operator==(const MailHead&, const MailHead&) = default;
};

inline constexpr std::size_t kMailHeadBytes = 44;

struct Mail {
  MailHead head;
  ConstBytes udp_payload;
};

std::array<std::byte, kMailHeadBytes> emit_mail_head(const MailHead& head);
// Nothing if it is not mail of this version.
std::optional<Mail> parse_mail(ConstBytes bytes);

// Sends it to the process that has the block. Mail without a payload asks it to steer anew
// (PortGroup::repair) for the destination; from another user it means nothing.
os::HostMailbox::Sent post_mail(QpnBlock& from, std::uint32_t to_block, const MailHead& head,
                                ConstBytes udp_payload);

// Whether this user has the block, so that what is posted there is believed.
bool is_of_this_user(QpnBlock& from, std::uint32_t to_block);

// Says whether another user's mail for an address of this host is believed.
using Belief = std::function<bool(std::uint32_t uid, const os::IpAddress& destination)>;
bool believe_nobody(std::uint32_t uid, const os::IpAddress& destination);

// Nothing if its sender is not believed, it is truncated or no mail.
std::optional<Mail> accept_mail(const os::Arrival& arrival,
                                const Belief& believes = believe_nobody);

}  // namespace softhca::local
