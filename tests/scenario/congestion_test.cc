// Congestion: marks are answered, answers are obeyed, and a queue stays short.
#include "forge.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using trace::Counter;
using trace::QpCounter;
using transport::QpType;
using transport::Status;
using transport::WorkOpcode;
using Ecn = transport::CongestionSettings::Ecn;

constexpr std::uint8_t kAck = 0x11;
constexpr std::uint8_t kDatagram = 0x64;
constexpr std::uint8_t kDscp = 0x68;
constexpr std::uint8_t kMarked = kDscp | 3;

WorldSettings with(Ecn ecn) {
  WorldSettings settings;
  settings.record = true;
  settings.host.congestion.ecn = ecn;
  return settings;
}
ConnectionSettings of_type(QpType type) {
  ConnectionSettings settings;
  settings.type = type;
  return settings;
}

struct CongestionTalk {
  explicit CongestionTalk(Ecn ecn = Ecn::Notify, QpType type = QpType::Rc)
      : pair(of_type(type), with(ecn)), forge(pair.world) {}

  Connection::End& a() { return pair.connection.a; }
  Connection::End& b() { return pair.connection.b; }
  // An ACK of nothing, as if from `a`.
  void send_marked(std::uint8_t traffic_class = kMarked) {
    forge.send(Forge::headers(kAck, b()), Forge::between(a(), b(), traffic_class));
  }
  void send_marked_datagram(std::uint32_t qkey = kWorldQkey) {
    std::array into{pair.b.sge(0, 1024)};
    pair.post_receive(b(), 1, into);
    wire::Headers h = Forge::headers(kDatagram, b());
    h.qkey = qkey;
    h.source_qpn = a().qp->qpn();
    forge.send(h, Forge::between(a(), b(), kMarked));
  }
  std::uint64_t count(std::size_t host, Counter which) {
    return pair.world.host(host).counter(which);
  }
  void write(const Connection::End& from, std::uint32_t bytes, WorkOpcode opcode) {
    const bool is_a = &from == &pair.connection.a;
    std::array sges{(is_a ? pair.a : pair.b).sge(0, bytes)};
    const Buffer& target = is_a ? pair.b : pair.a;
    pair.post(from, remote_request(opcode, sges, target.start.value, target.key));
  }
  // How long a transfer takes.
  Duration time_of(std::uint32_t bytes, WorkOpcode opcode) {
    const Time start = pair.world.now();
    write(pair.connection.a, bytes, opcode);
    std::vector<driver::Completion> done(1);
    EXPECT_TRUE(pair.world.run_until([&] { return a().cq->poll(done) == 1; }, seconds(10)));
    EXPECT_EQ(done[0].status, Status::Success);
    return pair.world.now() - start;
  }

  Pair pair;
  Forge forge;
};

// IBTA A17.9: a CNP to the queue pair that sent the marked packet, with the packet's partition.
TEST(Congestion, AMarkedPacketIsAnsweredToItsSender) {
  for (const QpType type : {QpType::Rc, QpType::Uc}) {
    CongestionTalk t(Ecn::Notify, type);
    if (type == QpType::Rc) {
      t.send_marked();
    } else {
      t.forge.send(Forge::headers(0x2a, t.b()), Forge::between(t.a(), t.b(), kMarked));
    }
    EXPECT_EQ(t.count(1, Counter::EcnMarked), 1u);
    EXPECT_EQ(t.count(1, Counter::CnpsSent), 1u);
    EXPECT_EQ(t.count(0, Counter::CnpsIgnored), 1u) << "heard, and not obeyed";
    EXPECT_EQ(t.count(0, Counter::PacketsDropped) + t.count(0, Counter::PacketsMalformed), 0u);
    std::size_t seen = 0;
    for (const trace::Event& event : t.pair.world.journal()->events()) {
      if (event.kind != trace::EventKind::PacketSent || event.fields[0] != 0x81) continue;
      ++seen;
      EXPECT_EQ(event.host, 1u);
      EXPECT_EQ(event.fields[1], 0u) << "its PSN";
      EXPECT_EQ(event.fields[2], 16u) << "reserved bytes";
      EXPECT_EQ(event.fields[4], t.a().qp->qpn().value);
    }
    EXPECT_EQ(seen, 1u);
  }
}

// RFC 3168, 5: only CE is a mark.
TEST(Congestion, WhatMayBeMarkedIsNotMarked) {
  CongestionTalk t;
  for (const std::uint8_t ecn : {std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{2}})
    t.send_marked(wire::with_ecn(kDscp, ecn));
  EXPECT_EQ(t.count(1, Counter::EcnMarked), 0u);
  EXPECT_EQ(t.count(1, Counter::CnpsSent), 0u);
}

// DCQCN, 3.1: one in each interval, whatever the number of marks.
TEST(Congestion, OneNotificationInEachInterval) {
  CongestionTalk t;
  for (int i = 0; i < 20; ++i) t.send_marked();  // within 40 us
  EXPECT_EQ(t.count(1, Counter::EcnMarked), 20u);
  EXPECT_EQ(t.count(1, Counter::CnpsSent), 1u);
  t.pair.settle(microseconds(50));
  for (int i = 0; i < 20; ++i) t.send_marked();
  EXPECT_EQ(t.count(1, Counter::EcnMarked), 40u);
  EXPECT_EQ(t.count(1, Counter::CnpsSent), 2u);
}

TEST(Congestion, EachQueuePairHasAnIntervalOfItsOwn) {
  CongestionTalk t;
  const Connection other = connect(t.pair.world, t.pair.world.host(0), t.pair.world.host(1));
  t.send_marked();
  t.forge.send(Forge::headers(kAck, other.b), Forge::between(other.a, other.b, kMarked));
  EXPECT_EQ(t.count(1, Counter::CnpsSent), 2u);
}

// IBTA A17.9: nor is it sent again, nor answered.
TEST(Congestion, ANotificationIsNeverAnswered) {
  for (const Ecn ecn : {Ecn::Notify, Ecn::Control}) {
    CongestionTalk t(ecn);
    t.forge.send_notification(t.a(), t.b(), kMarked);
    t.pair.settle();
    EXPECT_EQ(t.count(1, Counter::EcnMarked), 1u);
    EXPECT_EQ(t.count(1, Counter::PacketsSent), 0u);
    EXPECT_EQ(t.count(1, ecn == Ecn::Control ? Counter::CnpsHandled : Counter::CnpsIgnored), 1u);
  }
}

TEST(Congestion, OffMeansCountedOnly) {
  CongestionTalk t(Ecn::Off);
  t.send_marked();
  t.forge.send_notification(t.a(), t.b());
  EXPECT_EQ(t.count(1, Counter::EcnMarked), 1u);
  EXPECT_EQ(t.count(1, Counter::CnpsSent), 0u);
  EXPECT_EQ(t.count(1, Counter::CnpsIgnored), 1u);
}

// What is not for the queue pair is not answered: another address, a bad ICRC, a wrong Q_Key.
TEST(Congestion, OnlyAPacketThatIsReceivedIsAnswered) {
  CongestionTalk t;
  wire::Datagram stranger = Forge::between(t.a(), t.b(), kMarked);
  stranger.source = wire::Gid::of_ipv4({10, 9, 9, 9});
  t.forge.send(Forge::headers(kAck, t.b()), stranger);
  wire::Headers elsewhere = Forge::headers(kAck, t.b());
  elsewhere.bth.pkey = 0x1234;
  t.forge.send(elsewhere, Forge::between(t.a(), t.b(), kMarked));
  EXPECT_EQ(t.count(1, Counter::EcnMarked), 0u);
  EXPECT_EQ(t.count(1, Counter::PacketsSent), 0u);

  CongestionTalk datagrams(Ecn::Notify, QpType::Ud);
  datagrams.send_marked_datagram(kWorldQkey + 1);
  EXPECT_EQ(datagrams.count(1, Counter::QkeyMismatches), 1u);
  EXPECT_EQ(datagrams.count(1, Counter::PacketsSent), 0u);
}

// IBTA A17.9: of a datagram, to the queue pair and the address that it came from.
TEST(Congestion, AMarkedDatagramIsAnsweredToItsSender) {
  CongestionTalk t(Ecn::Notify, QpType::Ud);
  t.send_marked_datagram();
  EXPECT_EQ(t.count(1, Counter::CnpsSent), 1u);
  EXPECT_EQ(t.count(0, Counter::CnpsIgnored), 1u);
}

// Anybody could have sent it, and the other peers have done nothing.
TEST(Congestion, AQueuePairOfDatagramsDoesNotSlowDown) {
  CongestionTalk t(Ecn::Control, QpType::Ud);
  t.forge.send_notification(t.b(), t.a());
  EXPECT_EQ(t.count(0, Counter::CnpsIgnored), 1u);
  EXPECT_EQ(t.count(0, Counter::CnpsHandled), 0u);
}

TEST(Congestion, OnlyThePeerCanSlowAConnection) {
  CongestionTalk t(Ecn::Control);
  wire::Datagram stranger = Forge::between(t.b(), t.a());
  stranger.source = wire::Gid::of_ipv4({10, 9, 9, 9});
  t.forge.send(Forge::notification(t.a()), stranger, wire::kCnpPayloadBytes);
  EXPECT_EQ(t.count(0, Counter::CnpsHandled), 0u);
  EXPECT_EQ(t.count(0, Counter::PacketsDropped), 1u);
}

// What connections send may be marked if they obey; else if the program says so.
TEST(Congestion, OnlyWhoObeysAsksForMarks) {
  for (const Ecn ecn : {Ecn::Notify, Ecn::Control}) {
    CongestionTalk t(ecn);
    t.pair.world.network().set_costs(
        {.port = {.ps_per_byte = 800, .marks_from = 1, .marks_all_at = 2}});
    t.time_of(8000, WorkOpcode::Write);
    const auto& seen = t.pair.world.network().statistics();
    EXPECT_EQ(seen.marked > 0, ecn == Ecn::Control);
    EXPECT_EQ(t.count(1, Counter::EcnMarked), seen.marked);
    EXPECT_EQ(t.count(0, Counter::CnpsHandled) > 0, ecn == Ecn::Control);
  }
}

TEST(Congestion, TheTrafficClassOfTheAddressIsOnTheWire) {
  ConnectionSettings settings;
  settings.traffic_class = kDscp | 1;  // ECT(1)
  Pair pair(settings);
  pair.world.network().set_costs(
      {.port = {.ps_per_byte = 800, .marks_from = 1, .marks_all_at = 2}});
  std::array sges{pair.a.sge(0, 8000)};
  pair.post(pair.connection.a,
            remote_request(WorkOpcode::Write, sges, pair.b.start.value, pair.b.key));
  pair.settle(seconds(1));
  EXPECT_GT(pair.world.host(1).counter(Counter::EcnMarked), 0u);
  EXPECT_GT(pair.world.host(0).counter(Counter::CnpsIgnored), 0u);
}

// 8000 bytes at the least rate of 10 Mb/s are 6.4 ms; READ responses too.
TEST(Congestion, WhatIsSentSlowlyIsNotSentAgain) {
  for (const WorkOpcode opcode : {WorkOpcode::Write, WorkOpcode::Read}) {
    CongestionTalk t(Ecn::Control);
    const Duration fast = t.time_of(8000, opcode);
    const bool is_read = opcode == WorkOpcode::Read;
    const Connection::End& slow = is_read ? t.b() : t.a();
    const Connection::End& other = is_read ? t.a() : t.b();
    for (int i = 0; i < 40; ++i) t.forge.send_notification(other, slow);
    const Duration paced = t.time_of(8000, opcode);
    EXPECT_LT(fast, microseconds(10));
    EXPECT_GT(paced, microseconds(100));
    EXPECT_LT(paced, milliseconds(10));
    EXPECT_EQ(t.count(0, Counter::Retransmits) + t.count(1, Counter::Retransmits), 0u);
    EXPECT_EQ(t.count(0, Counter::Timeouts), 0u);
    EXPECT_TRUE(t.pair.is_filled(t.pair.b, 0, 8000, std::byte{0x11}));
  }
}

// A flood of forged notifications makes it slow, never silent: no timeout, everything arrives.
TEST(Congestion, AFloodOfNotificationsSlowsToTheLeastRate) {
  CongestionTalk t(Ecn::Control);
  const Time start = t.pair.world.now();
  t.write(t.a(), 8000, WorkOpcode::Write);
  std::vector<driver::Completion> done(1);
  while (t.a().cq->poll(done) == 0 && t.pair.world.now() < start + milliseconds(100))
    t.forge.send_notification(t.b(), t.a());
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_LT(t.pair.world.now() - start, milliseconds(8));
  EXPECT_EQ(t.count(0, Counter::Timeouts), 0u);
}

// Senders that write to one host for as long as they are driven.
struct Incast {
  static constexpr std::size_t kSenders = 4;
  static constexpr std::uint32_t kBytes = 64 * 1024;
  static constexpr std::int64_t kPortPsPerByte = 800;  // 10 Gb/s
  static constexpr std::int64_t kShortQueue = 200'000;

  explicit Incast(Ecn ecn) : world(settings(ecn)) {
    Host& target = world.host(0);
    for (std::size_t i = 0; i < kSenders; ++i) {
      Host& host = world.host(1 + i);
      ConnectionSettings to;
      to.mtu = 4096;
      to.timeout = 14;
      Sender sender{connect(world, host, target, to), {}, {}};
      sender.from = buffer(sender.connection.a);
      sender.to = buffer(sender.connection.b);
      senders.push_back(sender);
    }
  }
  static WorldSettings settings(Ecn ecn) {
    WorldSettings settings = with(ecn);
    settings.record = false;
    settings.hosts = 1 + kSenders;
    settings.network = {.delay = microseconds(2), .ps_per_byte = 80};
    settings.network.port = {.ps_per_byte = kPortPsPerByte,
                             .marks_from = 5'000,
                             .marks_all_at = 100'000,
                             .marks_at_most = 100};
    return settings;
  }
  // From now on what is over that is lost.
  void limit_queue() {
    link::SimCosts costs = settings(Ecn::Off).network;
    costs.port.queue_bytes = 2 * kShortQueue;
    world.network().set_costs(costs);
  }
  Buffer buffer(const Connection::End& end) {
    Buffer made{end.host, end.host->allocate(kBytes), {}};
    const auto region =
        end.host->engine().register_memory(end.pd, made.start, kBytes, {made.start.value},
                                           driver::AccessFlags::of_bits(kAllRights), world.now());
    EXPECT_TRUE(region);
    made.key = region->key;
    return made;
  }
  void drive() {
    std::array<driver::Completion, 16> done;
    for (Sender& sender : std::span(senders).first(active)) {
      const std::size_t count = sender.connection.a.cq->poll(done);
      for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(done[i].status, Status::Success);
      sender.done += count;
      while (sender.posted - sender.done < 8) {
        std::array sges{sender.from.sge(0, kBytes)};
        driver::SendRequest request =
            remote_request(WorkOpcode::Write, sges, sender.to.start.value, sender.to.key);
        request.flags |= driver::SendFlag::Signaled;
        EXPECT_TRUE(sender.connection.a.host->engine().post_send(*sender.connection.a.qp, request,
                                                                 false, world.now()));
        ++sender.posted;
      }
    }
  }
  struct Seen {
    std::int64_t longest_queue{};
    double fairness{};  // Jain's index: 1 if all got the same
    double used{};      // of the port
    std::uint64_t retransmits{};
    std::uint64_t overflowed{};
  };
  Seen run(Duration time) {
    Seen seen;
    std::vector<std::uint64_t> before;
    for (const Sender& sender : senders) before.push_back(sender.done);
    const std::uint64_t overflowed = world.network().statistics().overflowed;
    world.run_until(
        [&] {
          drive();
          seen.longest_queue = std::max(
              seen.longest_queue, world.network().queued_bytes(world.host(0).gid(), world.now()));
          return false;
        },
        time);
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < senders.size(); ++i) {
      const auto got = static_cast<double>(senders[i].done - before[i]);
      sum += got;
      squares += got * got;
      seen.retransmits += senders[i].connection.a.host->counter(Counter::Retransmits);
    }
    seen.fairness = sum * sum / (static_cast<double>(senders.size()) * squares);
    seen.used = sum * kBytes * kPortPsPerByte / static_cast<double>(time.ps);
    seen.overflowed = world.network().statistics().overflowed - overflowed;
    return seen;
  }

  struct Sender {
    Connection connection;
    Buffer from, to;
    std::uint64_t posted = 0, done = 0;
  };
  World world;
  std::vector<Sender> senders;
  std::size_t active = kSenders;
};

// DCQCN, 6: all get the same though one was there before, the queue is short, and nothing is lost.
TEST(Congestion, SendersThatObeyShareAPortAndItsQueueStaysShort) {
  Incast incast(Ecn::Control);
  incast.active = 1;
  incast.run(milliseconds(10));
  incast.active = Incast::kSenders;
  incast.run(milliseconds(40));
  incast.limit_queue();
  const Incast::Seen seen = incast.run(milliseconds(60));
  EXPECT_GT(seen.fairness, 0.9);
  EXPECT_GT(seen.used, 0.8);
  EXPECT_LT(seen.longest_queue, Incast::kShortQueue);
  EXPECT_EQ(seen.overflowed, 0u);
  EXPECT_EQ(seen.retransmits, 0u);
}

// What stops them then is their windows, if the queue holds them; else losses.
TEST(Congestion, SendersThatDoNotObeyFillTheQueue) {
  Incast incast(Ecn::Notify);
  const Incast::Seen seen = incast.run(milliseconds(10));
  EXPECT_GT(seen.longest_queue, 2 * Incast::kShortQueue);
  EXPECT_EQ(seen.overflowed, 0u);
  incast.limit_queue();
  EXPECT_GT(incast.run(milliseconds(30)).overflowed, 0u);
}

}  // namespace
}  // namespace softhca::sim
