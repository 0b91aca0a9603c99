#include "local/mailbox.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"
#include "os/host_name.h"

namespace softhca::local {
namespace {

Domain mailbox_domain() {
  return {.interface_index = 78, .port = static_cast<std::uint16_t>(20000 + getpid() % 20000)};
}

MailHead some_head() {
  return {.source = os::IpAddress::of_ipv4({192, 0, 2, 1}),
          .destination = os::IpAddress::of_ipv4({192, 0, 2, 2}),
          .source_port = 0xc123,
          .destination_port = 4791,
          .traffic_class = 0x6a};
}

std::vector<std::byte> some_payload(std::size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 7);
  return payload;
}

TEST(Mailbox, ReadsBackTheHeadThatWasWritten) {
  const auto bytes = emit_mail_head(some_head());
  const auto mail = parse_mail(bytes);
  ASSERT_TRUE(mail);
  EXPECT_EQ(mail->head, some_head());
  EXPECT_TRUE(mail->udp_payload.empty());
}

TEST(Mailbox, RefusesWhatIsTooShortOrOfAnotherVersion) {
  auto bytes = emit_mail_head(some_head());
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(parse_mail(ConstBytes(bytes).first(n))) << n;
  bytes[3] ^= std::byte{1};
  EXPECT_FALSE(parse_mail(bytes));
}

TEST(Mailbox, DeliversToTheHolderOfTheBlock) {
  auto sender = QpnBlock::allocate(mailbox_domain(), 1);
  auto receiver = QpnBlock::allocate(mailbox_domain(), 2);
  ASSERT_TRUE(sender);
  ASSERT_TRUE(receiver);
  const auto payload = some_payload(4160);
  EXPECT_EQ(post_mail(*sender, receiver->number(), some_head(), payload),
            os::HostMailbox::Sent::Yes);

  os::DatagramArena arena(4, 8192);
  ASSERT_EQ(receiver->mailbox().receive(arena, 0, 4), 1u);
  const auto mail = accept_mail(arena.arrival(0));
  ASSERT_TRUE(mail);
  EXPECT_EQ(mail->head, some_head());
  EXPECT_TRUE(std::ranges::equal(mail->udp_payload, payload));
}

TEST(Mailbox, SaysWhenNobodyHasTheBlock) {
  auto sender = QpnBlock::allocate(mailbox_domain(), 1);
  ASSERT_TRUE(sender);
  const std::uint32_t nobody = sender->number() == 9 ? 10 : 9;
  EXPECT_EQ(post_mail(*sender, nobody, some_head(), {}), os::HostMailbox::Sent::Nobody);
}

TEST(Mailbox, RefusesMailFromAnotherUser) {
  const auto bytes = emit_mail_head(some_head());
  os::Arrival arrival{.bytes = bytes, .source = {}, .uid = os::own_uid()};
  EXPECT_TRUE(accept_mail(arrival));
  arrival.uid = os::own_uid() + 1;
  EXPECT_FALSE(accept_mail(arrival));
  arrival.uid.reset();
  EXPECT_FALSE(accept_mail(arrival));
  arrival.uid = os::own_uid();
  arrival.truncated = true;
  EXPECT_FALSE(accept_mail(arrival));
}

TEST(Mailbox, BelievesAnotherUserForAnAddressButNeverAboutSteering) {
  const auto head = emit_mail_head(some_head());
  std::vector<std::byte> whole(head.begin(), head.end());
  whole.resize(whole.size() + 20);
  const std::uint32_t holder = os::own_uid() + 1;
  const Belief believes = [&](std::uint32_t uid, const os::IpAddress& destination) {
    return uid == holder && destination == some_head().destination;
  };
  os::Arrival arrival{.bytes = whole, .source = {}, .uid = holder};
  const auto mail = accept_mail(arrival, believes);
  ASSERT_TRUE(mail);
  EXPECT_EQ(mail->head, some_head());
  arrival.bytes = head;  // no payload
  EXPECT_FALSE(accept_mail(arrival, believes));
  arrival.bytes = whole;
  arrival.uid = holder + 1;
  EXPECT_FALSE(accept_mail(arrival, believes));
  arrival.uid = holder;
  auto elsewhere = some_head();
  std::swap(elsewhere.source, elsewhere.destination);
  std::ranges::copy(emit_mail_head(elsewhere), whole.begin());
  EXPECT_FALSE(accept_mail(arrival, believes));
}

TEST(Mailbox, SurvivesArbitraryBytes) {
  Prng prng(7);
  const auto head = emit_mail_head(some_head());
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(prng.below(100));
    for (std::byte& b : bytes) b = static_cast<std::byte>(prng.next());
    if (bytes.size() >= 4 && prng.chance(1, 2))
      std::ranges::copy(std::span(head).first(4), bytes.begin());
    const auto mail = parse_mail(bytes);
    if (mail) {
      EXPECT_EQ(mail->udp_payload.size(), bytes.size() - kMailHeadBytes);
    }
  }
}

}  // namespace
}  // namespace softhca::local
