#include "local/mailbox.h"

#include <algorithm>

#include "base/cursor.h"
#include "os/host_name.h"

namespace softhca::local {

namespace {

constexpr std::uint32_t kMailMagic = 0x53'48'4d'31;  // "SHM1"; the last character is the version
constexpr std::size_t kAddressBytes = 16;
constexpr std::size_t kAtSource = 4;
constexpr std::size_t kAtDestination = kAtSource + kAddressBytes;
constexpr std::size_t kAtSourcePort = kAtDestination + kAddressBytes;
constexpr std::size_t kAtDestinationPort = kAtSourcePort + 2;
constexpr std::size_t kAtTrafficClass = kAtDestinationPort + 2;
static_assert(kAtTrafficClass + 4 == kMailHeadBytes);

os::IpAddress take_address(Cursor& cursor) {
  os::IpAddress address;
  const ConstBytes bytes = cursor.take(kAddressBytes);
  std::transform(bytes.begin(), bytes.end(), address.bytes.begin(),
                 [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
  return address;
}

}  // namespace

std::array<std::byte, kMailHeadBytes> emit_mail_head(const MailHead& head) {
  std::array<std::byte, kMailHeadBytes> bytes{};
  store_be(bytes, 0, kMailMagic);
  const auto put = [&](const os::IpAddress& address, std::size_t at) {
    const ConstBytes from = std::as_bytes(std::span(address.bytes));
    std::copy(from.begin(), from.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
  };
  put(head.source, kAtSource);
  put(head.destination, kAtDestination);
  store_be(bytes, kAtSourcePort, head.source_port);
  store_be(bytes, kAtDestinationPort, head.destination_port);
  store_be(bytes, kAtTrafficClass, head.traffic_class);
  return bytes;
}

std::optional<Mail> parse_mail(ConstBytes bytes) {
  Cursor cursor(bytes);
  Mail mail;
  if (cursor.take_be<std::uint32_t>() != kMailMagic) return std::nullopt;
  mail.head.source = take_address(cursor);
  mail.head.destination = take_address(cursor);
  mail.head.source_port = cursor.take_be<std::uint16_t>();
  mail.head.destination_port = cursor.take_be<std::uint16_t>();
  mail.head.traffic_class = cursor.take_be<std::uint8_t>();
  cursor.take(kMailHeadBytes - kAtTrafficClass - 1);
  if (cursor.failed()) return std::nullopt;
  mail.udp_payload = cursor.rest();
  return mail;
}

os::HostMailbox::Sent post_mail(QpnBlock& from, std::uint32_t to_block, const MailHead& head,
                                ConstBytes udp_payload) {
  return from.mailbox().send(mailbox_name(from.domain(), to_block), emit_mail_head(head),
                             udp_payload);
}

bool is_of_this_user(QpnBlock& from, std::uint32_t to_block) {
  return from.mailbox().is_of_this_user(mailbox_name(from.domain(), to_block));
}

bool believe_nobody(std::uint32_t, const os::IpAddress&) { return false; }

std::optional<Mail> accept_mail(const os::Arrival& arrival, const Belief& believes) {
  if (!arrival.uid || arrival.truncated) return std::nullopt;
  const auto mail = parse_mail(arrival.bytes);
  if (!mail || *arrival.uid == os::own_uid()) return mail;
  if (mail->udp_payload.empty() || !believes(*arrival.uid, mail->head.destination))
    return std::nullopt;
  return mail;
}

}  // namespace softhca::local
