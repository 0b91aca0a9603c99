#include "link/udp_link.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include "os/bound_sockets.h"
#include "trace/counters.h"
#include "wire/cm_message.h"
#include "wire/icrc.h"
#include "wire/packet.h"

namespace softhca::link {
namespace {

using trace::Counter;

const wire::Gid kV4 = wire::Gid::of_ipv4({127, 0, 0, 1});
const wire::Gid kV6 = *wire::Gid::parse("::1");

// A port that nobody has now.
local::Domain free_domain() {
  auto socket = os::UdpSocket::open({.address = {kV4.bytes}}, os::UdpUse::Shared);
  return {.interface_index = 1, .port = socket ? socket->port() : std::uint16_t{0}};
}

// What a process has: a block, counters and a link.
class Party {
 public:
  Party(const local::Domain& domain, std::uint64_t seed, bool steering = true)
      : block_(std::move(*local::QpnBlock::allocate(domain, seed))),
        link(block_, tracer_, steering) {}

  std::uint32_t qpn(std::uint32_t n) const { return block_.first_qpn() + n; }
  std::uint32_t block() const { return block_.number(); }
  std::uint64_t count(Counter counter) const { return tracer_.counters().get(counter); }

  // Everything that has arrived. Loopback delivers before the sender's call returns.
  std::vector<std::vector<std::byte>> drain() {
    std::vector<std::vector<std::byte>> all;
    std::array<Frame, 8> out;
    for (;;) {
      link.expect_any();
      const std::size_t n = link.receive(out, now);
      if (n == 0) return all;
      for (std::size_t i = 0; i < n; ++i) {
        all.emplace_back(out[i].bytes.begin(), out[i].bytes.end());
        last = out[i].datagram;
      }
    }
  }

  wire::Datagram last;
  Time now{};

 private:
  std::array<std::uint64_t, trace::kCounterCount> cells_{};
  trace::Tracer tracer_{trace::Counters(cells_), nullptr};
  local::QpnBlock block_;

 public:
  UdpLink link;
};

// A process of another user with a link of its own. It answers questions: 'd' drain, which passes
// on what is for others, 'm' mail to the block of its parent.
class Stranger {
 public:
  struct Answer {
    std::uint32_t block{};
    std::uint32_t drained{};
    bool open{};
    bool mailed{};
  };
  // REQUIRES: the parent has no socket yet, which the child would keep.
  Stranger(const local::Domain& domain, uid_t uid, std::uint64_t seed) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      if (setresuid(uid, uid, uid) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0)
        live(ends[1], domain, seed);
      _exit(0);
    }
    close(ends[1]);
    fd_ = ends[0];
    answer_ = hear();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() { end(); }

  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
    close(fd_);
  }
  std::uint32_t block() const { return answer_.block; }
  bool open() const { return answer_.open; }
  std::uint32_t drain() const { return ask('d', 0, kV4).drained; }
  bool mail(std::uint32_t to_block, const wire::Gid& destination) const {
    return ask('m', to_block, destination).mailed;
  }

 private:
  struct Question {
    char what{};
    std::uint32_t block{};
    wire::Gid gid;
  };
  Answer hear() const {
    Answer answer;
    EXPECT_EQ(read(fd_, &answer, sizeof answer), ssize_t{sizeof answer});
    return answer;
  }
  Answer ask(char what, std::uint32_t block, const wire::Gid& gid) const {
    const Question question{what, block, gid};
    EXPECT_EQ(write(fd_, &question, sizeof question), ssize_t{sizeof question});
    return hear();
  }
  static void live(int fd, const local::Domain& domain, std::uint64_t seed);

  pid_t pid_ = 0;
  int fd_ = -1;
  Answer answer_;
};

// Room for a BTH; the destination QPN is where it belongs.
std::array<std::byte, 24> packet_for(std::uint32_t qpn, std::uint8_t mark = 0) {
  std::array<std::byte, 24> bytes{};
  store_be(bytes, 4, qpn);
  bytes[19] = std::byte{mark};
  return bytes;
}

void Stranger::live(int fd, const local::Domain& domain, std::uint64_t seed) {
  Party party(domain, seed);
  Answer answer{.block = party.block(), .drained = 0, .open = false, .mailed = false};
  answer.open = static_cast<bool>(party.link.open(kV4));
  while (write(fd, &answer, sizeof answer) == sizeof answer) {
    Question question;
    if (read(fd, &question, sizeof question) != sizeof question) return;
    party.now = party.now + seconds(1);
    if (question.what == 'd') answer.drained = static_cast<std::uint32_t>(party.drain().size());
    if (question.what == 'm') {
      const auto bytes = packet_for(question.block << local::kQpnBlockShift | 1);
      answer.mailed =
          party.link.forward(question.block, {.datagram = {.source = kV4,
                                                           .destination = question.gid,
                                                           .destination_port = domain.port},
                                              .bytes = bytes});
    }
  }
}

class UdpLinkTest : public ::testing::Test {
 protected:
  std::unique_ptr<Party> party(bool steering = true) {
    auto made = std::make_unique<Party>(domain_, ++seed_, steering);
    const auto opened = made->link.open(kV4);
    EXPECT_TRUE(opened) << opened.error().text;
    return made;
  }
  Frame frame(Party& from, ConstBytes bytes, const wire::Gid& gid = kV4) {
    return {.datagram = {.source = gid,
                         .destination = gid,
                         .source_port = from.link.source_port_for(gid, {from.qpn(0)}),
                         .destination_port = domain_.port},
            .bytes = bytes};
  }
  void expect_round_trip(const wire::Gid& gid);

  local::Domain domain_ = free_domain();
  std::uint64_t seed_ = 0;
};

void UdpLinkTest::expect_round_trip(const wire::Gid& gid) {
  Party a(domain_, 1);
  Party b(domain_, 2);
  ASSERT_TRUE(a.link.open(gid));
  ASSERT_TRUE(b.link.open(gid));
  const auto bytes = packet_for(b.qpn(7), 0x55);
  Frame sent = frame(a, bytes, gid);
  sent.datagram.traffic_class = 0x6a;
  sent.datagram.hop_limit = 3;
  ASSERT_EQ(a.link.send({&sent, 1}, Time{}), 1u);
  const auto arrived = b.drain();
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(arrived[0], bytes));
  EXPECT_EQ(b.last.source, gid);
  EXPECT_EQ(b.last.destination, gid);
  EXPECT_EQ(b.last.source_port, sent.datagram.source_port);
  EXPECT_EQ(b.last.destination_port, domain_.port);
  EXPECT_EQ(b.last.traffic_class, 0x6a);
  EXPECT_EQ(b.last.identification.has_value(), !gid.is_ipv4());
  EXPECT_TRUE(a.drain().empty());
}

TEST_F(UdpLinkTest, CarriesFramesOverIpv4AndHidesTheIdentification) { expect_round_trip(kV4); }

TEST_F(UdpLinkTest, CarriesFramesOverIpv6) {
  if (!os::UdpSocket::open({.address = {kV6.bytes}}, os::UdpUse::SendOnly))
    GTEST_SKIP() << "no ::1 here";
  expect_round_trip(kV6);
}

TEST_F(UdpLinkTest, HoldsNoPortBeforeAnAddressIsOpened) {
  Party a(domain_, 1);
  std::array<Frame, 1> out;
  EXPECT_EQ(a.link.receive(out, Time{}), 0u);
  EXPECT_EQ(a.link.fds().size(), 1u);
  EXPECT_TRUE(os::bound_udp_sockets({kV4.bytes}, domain_.port)->empty());
  ASSERT_TRUE(a.link.open(kV4));
  ASSERT_TRUE(a.link.open(kV4));
  EXPECT_EQ(a.link.fds().size(), 2u);
  EXPECT_EQ(os::bound_udp_sockets({kV4.bytes}, domain_.port)->size(), 1u);
}

TEST_F(UdpLinkTest, SaysWhyAnAddressCannotBeOpened) {
  Party a(domain_, 1);
  const auto opened = a.link.open(wire::Gid::of_ipv4({198, 51, 100, 7}));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().reason, trace::ReasonId::NoInterface);
  EXPECT_TRUE(a.link.fds().size() == 1 && !a.link.is_open(kV4));
}

TEST_F(UdpLinkTest, SpreadsQueuePairsOverAFewSourcePorts) {
  auto a = party();
  auto b = party();
  std::set<std::uint16_t> ports;
  for (std::uint32_t n = 0; n < 500; ++n) {
    const std::uint16_t port = a->link.source_port_for(kV4, {a->qpn(n)});
    EXPECT_GE(port, 0xc000);
    EXPECT_EQ(port, a->link.source_port_for(kV4, {a->qpn(n)}));
    ports.insert(port);
    EXPECT_NE(port, b->link.source_port_for(kV4, {b->qpn(n)}));
  }
  EXPECT_EQ(ports.size(), 16u);
}

TEST_F(UdpLinkTest, SendsARunOfFramesInOrderThroughSeveralPorts) {
  auto a = party();
  auto b = party();
  std::vector<std::array<std::byte, 24>> packets;
  for (std::uint8_t i = 0; i < 100; ++i) packets.push_back(packet_for(b->qpn(1), i));
  std::vector<Frame> frames;
  for (std::uint32_t i = 0; i < 100; ++i) {
    frames.push_back(frame(*a, packets[i]));
    frames.back().datagram.source_port = a->link.source_port_for(kV4, {a->qpn(i / 40)});
  }
  ASSERT_EQ(a->link.send(frames, Time{}), 100u);
  const auto arrived = b->drain();
  ASSERT_EQ(arrived.size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(arrived[i][19], packets[i][19]);
}

// Equal ones leave as one burst, and the kernel numbers them: each arrives with a right ICRC.
TEST_F(UdpLinkTest, KeepsTheIcrcRightInBursts) {
  auto a = party();
  auto b = party();
  std::vector<std::vector<std::byte>> packets;
  std::vector<Frame> frames;
  for (std::size_t i = 0; i < 90; ++i) {
    packets.emplace_back(i % 7 == 6 ? 24u + i : 1000u + i % 2, static_cast<std::byte>(i));
    store_be(packets.back(), 4, b->qpn(5));
  }
  for (auto& packet : packets) {
    frames.push_back(frame(*a, packet));
    const Bytes covered = Bytes(packet).first(packet.size() - wire::kIcrcBytes);
    store_le(packet, covered.size(), wire::icrc(frames.back().datagram, covered));
  }
  ASSERT_EQ(a->link.send(frames, Time{}), frames.size());
  const auto arrived = b->drain();
  ASSERT_EQ(arrived.size(), packets.size());
  int renumbered = 0;
  for (std::size_t i = 0; i < arrived.size(); ++i) {
    EXPECT_EQ(arrived[i].size(), packets[i].size());
    EXPECT_EQ(arrived[i][8], packets[i][8]);
    wire::Datagram datagram = frames[i].datagram;
    datagram.identification.reset();
    const auto verdict = wire::check_icrc(datagram, arrived[i]);
    EXPECT_NE(verdict, wire::IcrcVerdict::Wrong) << i;
    renumbered += verdict == wire::IcrcVerdict::Solved;
  }
  EXPECT_GT(renumbered, 0);
}

TEST_F(UdpLinkTest, TakesAndCountsWhatCannotBeSent) {
  auto a = party();
  const std::vector<std::byte> too_long(70'000);
  const auto fine = packet_for(a->qpn(0));
  std::array<Frame, 3> frames{frame(*a, too_long), frame(*a, fine), frame(*a, fine)};
  frames[2].datagram.source = wire::Gid::of_ipv4({198, 51, 100, 7});
  EXPECT_EQ(a->link.send(frames, Time{}), 3u);
  EXPECT_EQ(a->count(Counter::SendErrors), 2u);
  EXPECT_EQ(a->drain().size(), 1u);
}

TEST_F(UdpLinkTest, ForwardsWhatIsForAnotherProcess) {
  std::array<std::unique_ptr<Party>, 3> parties{party(false), party(false), party(false)};
  constexpr std::size_t kRounds = 40;
  for (std::uint32_t round = 0; round < kRounds; ++round)
    for (const auto& to : parties) {
      const auto bytes = packet_for(to->qpn(round), static_cast<std::uint8_t>(round));
      Frame one = frame(*parties[0], bytes);
      one.datagram.source_port = parties[0]->link.source_port_for(kV4, {round});
      one.datagram.traffic_class = 0x20;
      ASSERT_EQ(parties[0]->link.send({&one, 1}, Time{}), 1u);
    }
  std::array<std::size_t, 3> got{};
  for (int pass = 0; pass < 2; ++pass)  // the second one is for mail
    for (std::size_t i = 0; i < parties.size(); ++i)
      for (const auto& bytes : parties[i]->drain()) {
        EXPECT_EQ(local::block_of(load_be<std::uint32_t>(bytes, 4)), parties[i]->block());
        EXPECT_EQ(parties[i]->last.destination, kV4);
        EXPECT_EQ(parties[i]->last.traffic_class, 0x20);
        EXPECT_FALSE(parties[i]->last.identification);
        ++got[i];
      }
  std::uint64_t out = 0;
  std::uint64_t in = 0;
  for (std::size_t i = 0; i < parties.size(); ++i) {
    EXPECT_EQ(got[i], kRounds);
    out += parties[i]->count(Counter::PacketsForwardedOut);
    in += parties[i]->count(Counter::PacketsForwardedIn);
  }
  EXPECT_GT(out, 0u);
  EXPECT_EQ(out, in);
}

TEST_F(UdpLinkTest, ForwardsNothingWhenSteered) {
  auto a = party();
  auto b = party();
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto bytes = packet_for((i % 2 == 0 ? *a : *b).qpn(i));
    const Frame one = frame(*a, bytes);
    ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  }
  EXPECT_EQ(a->drain().size(), 50u);
  EXPECT_EQ(b->drain().size(), 50u);
  EXPECT_EQ(a->count(Counter::PacketsForwardedOut) + b->count(Counter::PacketsForwardedOut), 0u);
}

TEST_F(UdpLinkTest, KeepsWhatNobodyHasAndWhatIsForEverybody) {
  auto a = party();
  const std::uint32_t nobody = a->block() == 5 ? 6 : 5;
  for (const std::uint32_t qpn : {nobody << 12 | 3, 1u, 0xff'ffffu}) {
    const auto bytes = packet_for(qpn);
    const Frame one = frame(*a, bytes);
    ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  }
  const std::array<std::byte, 3> stub{};
  const Frame one = frame(*a, stub);
  ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  EXPECT_EQ(a->drain().size(), 4u);
}

// What is for queue pair 1 is whose the router says; who gets it as mail is not asked again.
TEST_F(UdpLinkTest, PassesManagementPacketsToTheirOwner) {
  using Found = local::ServiceNames::Found;
  using Listener = local::ServiceNames::Listener;
  auto a = party();
  auto b = party();
  constexpr std::uint32_t kRounds = 60;  // the kernel chooses the receiver by the source port
  const auto send_rounds = [&] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto bytes = packet_for(wire::kManagementQpn.value, static_cast<std::uint8_t>(round));
      Frame one = frame(*a, bytes);
      one.datagram.source_port = a->link.source_port_for(kV4, {round});
      ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
    }
  };
  const auto to_b = [&](const Frame&) { return Listener{Found::Block, b->block()}; };
  a->link.set_management_router(to_b);
  b->link.set_management_router(to_b);
  send_rounds();
  EXPECT_EQ(a->drain().size(), 0u);
  EXPECT_EQ(b->drain().size(), kRounds);
  EXPECT_GT(a->count(Counter::PacketsForwardedOut), 0u);

  for (const auto& party : {a.get(), b.get()})
    party->link.set_management_router([](const Frame&) { return Listener{Found::Nobody, 0}; });
  send_rounds();
  const std::size_t here = a->drain().size();
  EXPECT_EQ(here + b->drain().size(), kRounds);

  for (const auto& party : {a.get(), b.get()})
    party->link.set_management_router([](const Frame&) { return Listener{Found::Unknown, 0}; });
  send_rounds();
  EXPECT_EQ(a->drain().size() + b->drain().size(), 0u);
  EXPECT_EQ(a->count(Counter::PacketsDropped) + b->count(Counter::PacketsDropped), kRounds);
}

TEST_F(UdpLinkTest, RepairsTheSteeringWhenOthersPacketsKeepArriving) {
  auto a = party();
  auto b = party();
  auto c = party();
  // c moves to a's place unseen: a's socket goes without leaving, as after kill -9.
  a->link.abandon();
  for (std::uint32_t i = 0; i < 200; ++i) {
    const auto bytes = packet_for((i % 2 == 0 ? *b : *c).qpn(i));
    Frame one = frame(*b, bytes);
    ASSERT_EQ(b->link.send({&one, 1}, Time{}), 1u);
    b->drain();
    c->drain();
  }
  const std::uint64_t before =
      b->count(Counter::PacketsForwardedOut) + c->count(Counter::PacketsForwardedOut);
  const auto bytes = packet_for(c->qpn(1));
  const Frame one = frame(*b, bytes);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(b->link.send({&one, 1}, Time{}), 1u);
  EXPECT_EQ(c->drain().size(), 50u);
  EXPECT_EQ(b->count(Counter::PacketsForwardedOut) + c->count(Counter::PacketsForwardedOut),
            before);
}

// The kernel may give the packets of one whom a death has moved to a member that is stopped.
TEST_F(UdpLinkTest, RepairsTheSteeringWhenNothingArrivesAnyMore) {
  auto stopped = party();
  auto victim = party();
  auto survivor = party();
  survivor->drain();
  victim->link.abandon();
  std::array<Frame, 8> out;
  survivor->link.receive(out, Time{} + seconds(1));
  for (std::uint32_t i = 0; i < 100; ++i) {
    const auto bytes = packet_for(survivor->qpn(i));
    Frame one = frame(*stopped, bytes);
    one.datagram.source_port = stopped->link.source_port_for(kV4, {i});
    ASSERT_EQ(stopped->link.send({&one, 1}, Time{}), 1u);
  }
  EXPECT_EQ(survivor->drain().size(), 100u);
}

TEST_F(UdpLinkTest, ALeaverPassesOnWhatLiesInItsSocket) {
  auto a = party(false);
  auto b = party(false);
  constexpr std::uint32_t kPackets = 200;  // about half of them land at the leaver
  for (std::uint32_t i = 0; i < kPackets; ++i) {
    const auto bytes = packet_for(b->qpn(i));
    Frame one = frame(*b, bytes);
    one.datagram.source_port = b->link.source_port_for(kV4, {i});
    ASSERT_EQ(b->link.send({&one, 1}, Time{}), 1u);
  }
  a.reset();
  EXPECT_EQ(b->drain().size(), kPackets);
  EXPECT_GT(b->count(Counter::PacketsForwardedIn), 0u);
}

TEST_F(UdpLinkTest, ALeaverTellsTheOneThatItMoves) {
  auto a = party();
  auto b = party();
  auto c = party();
  a.reset();
  c->drain();  // the word of the leaver
  for (std::uint32_t i = 0; i < 50; ++i) {
    const auto bytes = packet_for(c->qpn(i));
    const Frame one = frame(*b, bytes);
    ASSERT_EQ(b->link.send({&one, 1}, Time{}), 1u);
  }
  EXPECT_EQ(c->drain().size(), 50u);
  EXPECT_TRUE(b->drain().empty());
  EXPECT_EQ(c->count(Counter::PacketsForwardedIn), 0u);
}

TEST_F(UdpLinkTest, LooksAtIdleAddressesNowAndThenAndWhenTold) {
  auto a = party();
  a->drain();
  a->link.set_active(kV4, false);
  const auto bytes = packet_for(a->qpn(1));
  const Frame one = frame(*a, bytes);
  std::array<Frame, 4> out;
  ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  a->link.expect_any();
  EXPECT_EQ(a->link.receive(out, Time{}), 1u);
  ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  std::size_t calls = 1;
  while (calls < 1000 && a->link.receive(out, Time{}) == 0) ++calls;
  EXPECT_LE(calls, 64u);
}

TEST_F(UdpLinkTest, GoesOnLookingEverywhereWhileThereIsMoreThanFits) {
  auto a = party();
  auto b = party();
  a->drain();
  b->drain();
  const auto bytes = packet_for(a->qpn(1));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(b->link.forward(a->block(), frame(*b, bytes)));
  std::array<Frame, 1> out;
  a->link.expect_any();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a->link.receive(out, Time{}), 1u);
}

constexpr const char* kOnlyRoot = "only root can become somebody else";
constexpr uid_t kHolder = 65534;
constexpr uid_t kThird = 65533;

TEST_F(UdpLinkTest, LodgesWithAnotherUserAndGetsItsPacketsByMail) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  const Stranger holder(domain_, kHolder, 11);
  ASSERT_TRUE(holder.open());
  auto a = party();
  auto b = party();
  EXPECT_EQ(os::bound_udp_sockets({kV4.bytes}, domain_.port)->size(), 1u);
  EXPECT_EQ(a->link.fds().size(), 2u);  // the mailbox, and the end of the holder
  const auto bytes = packet_for(b->qpn(3), 0x77);
  const Frame sent = frame(*a, bytes);
  EXPECT_GE(sent.datagram.source_port, 0xc000);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(a->link.send({&sent, 1}, Time{}), 1u);
  EXPECT_EQ(holder.drain(), 0u);  // nothing of it is for the holder
  const auto arrived = b->drain();
  ASSERT_EQ(arrived.size(), 40u);
  EXPECT_TRUE(std::ranges::equal(arrived[0], bytes));
  EXPECT_EQ(b->last.source, kV4);
  EXPECT_EQ(b->last.destination, kV4);
  EXPECT_EQ(b->last.source_port, sent.datagram.source_port);
  EXPECT_EQ(b->last.destination_port, domain_.port);
  EXPECT_EQ(b->count(Counter::PacketsForwardedIn), 40u);
  EXPECT_TRUE(a->drain().empty());

  // And from the lodger to the holder.
  const auto back = packet_for(holder.block() << local::kQpnBlockShift);
  const Frame reply = frame(*a, back);
  ASSERT_EQ(a->link.send({&reply, 1}, Time{}), 1u);
  EXPECT_EQ(holder.drain(), 1u);
}

TEST_F(UdpLinkTest, BelievesTheHolderForThisAddressAndNoOtherUser) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  const Stranger holder(domain_, kHolder, 11);
  const Stranger third(domain_, kThird, 12);
  ASSERT_TRUE(holder.open() && third.open());
  auto a = party();
  ASSERT_TRUE(holder.mail(a->block(), kV4));
  EXPECT_EQ(a->drain().size(), 1u);
  third.mail(a->block(), kV4);
  EXPECT_TRUE(a->drain().empty());
  // An address that is not open here, though it is one of this host.
  ASSERT_TRUE(holder.mail(a->block(), wire::Gid::of_ipv4({127, 0, 0, 2})));
  ASSERT_TRUE(holder.mail(a->block(), kV6));
  EXPECT_TRUE(a->drain().empty());
  EXPECT_EQ(a->count(Counter::PacketsDropped), 2u);
  EXPECT_EQ(a->count(Counter::PacketsForwardedIn), 1u);
}

TEST_F(UdpLinkTest, AMemberBelievesNoOtherUser) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  auto a = party();  // outlives the stranger, who is forked with a copy of its socket
  const Stranger lodger(domain_, kThird, 12);
  ASSERT_TRUE(lodger.open());
  lodger.mail(a->block(), kV4);
  EXPECT_TRUE(a->drain().empty());
  EXPECT_EQ(a->count(Counter::PacketsForwardedIn), 0u);
}

TEST_F(UdpLinkTest, TakesThePortWhenItsHolderIsKilled) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  Stranger holder(domain_, kHolder, 11);
  const Stranger third(domain_, kThird, 12);
  ASSERT_TRUE(holder.open() && third.open());
  auto a = party();
  a->drain();
  EXPECT_EQ(a->link.next_arrival(), Time{} + local::Lodging::kFirstPause);
  const std::uint32_t version = a->link.fds_version();
  const auto bytes = packet_for(a->qpn(1));
  const Frame one = frame(*a, bytes);

  holder.end();
  EXPECT_EQ(third.drain(), 0u);  // takes the port
  a->drain();                    // finds out who has it now
  EXPECT_GT(a->link.fds_version(), version);
  ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  third.drain();
  EXPECT_EQ(a->drain().size(), 1u);
  EXPECT_EQ(a->count(Counter::PacketsForwardedIn), 1u);
}

TEST_F(UdpLinkTest, GoesOnAloneWhenNobodyElseIsLeft) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  Stranger holder(domain_, kHolder, 11);
  ASSERT_TRUE(holder.open());
  auto a = party();
  a->drain();
  const auto bytes = packet_for(a->qpn(1));
  const Frame one = frame(*a, bytes);
  holder.end();
  // Without a look at anything but the time.
  std::array<Frame, 4> out;
  EXPECT_EQ(a->link.receive(out, Time{}), 0u);
  EXPECT_EQ(a->link.receive(out, a->link.next_arrival()), 0u);
  EXPECT_EQ(a->link.next_arrival(), Time::never());
  ASSERT_EQ(a->link.send({&one, 1}, Time{}), 1u);
  EXPECT_EQ(a->drain().size(), 1u);
  EXPECT_EQ(a->count(Counter::PacketsForwardedIn), 0u);
  EXPECT_EQ(a->link.fds().size(), 2u);
}

}  // namespace
}  // namespace softhca::link
