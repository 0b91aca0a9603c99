// Connections through whole devices: what programs of two hosts hear, and what queue pair 1 takes.
#include "driver/connections.h"

#include "cm/test_talk.h"
#include "forge.h"

namespace softhca::sim {
namespace {

using cm::EventKind;
using trace::Counter;
using trace::ReasonId;

// A program's end: keeps what it hears.
struct Listener final : cm::ConnectionSink {
  std::vector<cm::Event> events;
  cm::ConnectionSink* next = nullptr;  // who gets the next request

  cm::ConnectionSink* on_event(const cm::Event& event) override {
    events.push_back(event);
    return next;
  }
  bool heard_only(EventKind kind) const {
    return events.size() == 1 && events.front().kind == kind;
  }
};

constexpr std::uint8_t kUdSendOnly = 0x64;

struct Hosts {
  Hosts() : world({}) {}
  explicit Hosts(const WorldSettings& settings) : world(settings) {}

  driver::Connections& of(std::size_t i) { return world.host(i).engine().connections(); }
  cm::ConnectRequest request(wire::ServiceId service = cm::kPort) {
    cm::ConnectRequest wanted;
    wanted.service = service;
    wanted.path.local = world.host(0).gid();
    wanted.path.remote = world.host(1).gid();
    wanted.addresses = {7, wanted.path.local, wanted.path.remote};
    wanted.qpn = {0x42};
    return wanted;
  }
  wire::CommId connect() {
    const auto id = of(0).connect(request(), asking, world.now());
    EXPECT_TRUE(id);
    return id ? *id : wire::CommId{};
  }
  void listen(const wire::Gid& address = {}) {
    listener.next = &accepting;
    EXPECT_TRUE(of(1).listen({.service = cm::kPort, .address = address}, listener));
  }
  void settle() { world.pass(milliseconds(1)); }
  // Until who asks for a service that nobody listens to has been refused.
  void wait() { world.pass(milliseconds(300)); }
  // Host 1 accepts what it was asked for; the asking program has its Reply.
  wire::CommId accept() {
    settle();
    EXPECT_TRUE(listener.heard_only(EventKind::ConnectRequest));
    if (listener.events.empty()) return {};
    const wire::CommId id = listener.events[0].id;
    EXPECT_TRUE(of(1).accept(id, {.qpn = {0x43}}, world.now()));
    settle();
    EXPECT_TRUE(asking.heard_only(EventKind::Reply));
    return id;
  }

  World world;
  Listener listener;
  Listener asking;
  Listener accepting;
};

TEST(Connections, ProgramsHearWhatBecomesOfThem) {
  Hosts t;
  t.listen();
  const wire::CommId asked = t.connect();
  const wire::CommId accepted = t.accept();
  EXPECT_EQ(t.listener.events[0].terms.remote_qpn, wire::Qpn{0x42});
  EXPECT_EQ(t.asking.events[0].terms.remote_qpn, wire::Qpn{0x43});
  EXPECT_TRUE(t.of(0).establish(asked, {}, t.world.now()));
  t.settle();
  EXPECT_TRUE(t.accepting.heard_only(EventKind::Established));

  EXPECT_TRUE(t.of(1).disconnect(accepted, {}, t.world.now()));
  t.settle();
  ASSERT_EQ(t.asking.events.size(), 2u);
  EXPECT_EQ(t.asking.events[1].kind, EventKind::Disconnected);
  t.of(0).destroy(asked, t.world.now());
  t.of(1).destroy(accepted, t.world.now());
  t.world.pass(seconds(60));
  EXPECT_EQ(t.of(0).agent().conversations() + t.of(1).agent().conversations(), 0u);
  EXPECT_EQ(t.of(0).next_deadline(), Time::never());
}

// IBTA 12.9.8 (COMM_EST): a packet of the connection says what the RTU would have.
TEST(Connections, TheFirstPacketConfirmsWhatWasAccepted) {
  Hosts t;
  t.listen();
  t.connect();
  t.accept();
  t.of(1).on_traffic({0x44}, t.world.now());
  EXPECT_TRUE(t.accepting.events.empty());
  t.of(1).on_traffic({0x43}, t.world.now());
  EXPECT_TRUE(t.accepting.heard_only(EventKind::Established));
  t.of(1).on_traffic({0x43}, t.world.now());
  EXPECT_TRUE(t.accepting.heard_only(EventKind::Established));
}

// Whether or not its programs use connections: nobody waits for what will not come.
TEST(Connections, AHostWithoutAListenerRefuses) {
  Hosts t;
  t.connect();
  t.wait();
  ASSERT_TRUE(t.asking.heard_only(EventKind::Rejected));
  EXPECT_EQ(t.asking.events[0].reason.id, ReasonId::NoListener);
  EXPECT_EQ(t.world.host(1).counter(Counter::CmRequestsRefused), 1u);
}

// perftest and qperf begin to listen when their clients know the port already.
TEST(Connections, AListenerThatComesALittleLaterIsHeard) {
  Hosts t;
  t.connect();
  t.settle();
  EXPECT_TRUE(t.asking.events.empty());
  t.listen();
  t.wait();
  EXPECT_TRUE(t.listener.heard_only(EventKind::ConnectRequest));
}

// What strangers can make us keep has a limit: beyond it the refusal comes at once.
TEST(Connections, OnlySoManyRequestsAreHeldBack) {
  Hosts t;
  for (int i = 0; i < 70; ++i) t.connect();
  t.settle();
  EXPECT_EQ(t.asking.events.size(), 6u);
  t.wait();
  EXPECT_EQ(t.asking.events.size(), 70u);
}

TEST(Connections, AListenerOfAnotherAddressHearsNothing) {
  Hosts t;
  t.listen(wire::Gid::of_ipv4({10, 99, 0, 1}));
  t.connect();
  t.wait();
  EXPECT_TRUE(t.listener.events.empty());
  EXPECT_TRUE(t.asking.heard_only(EventKind::Rejected));
}

TEST(Connections, ARequestThatTheListenerDoesNotWantIsRejected) {
  Hosts t;
  t.listen();
  t.listener.next = nullptr;
  t.connect();
  t.settle();
  ASSERT_TRUE(t.asking.heard_only(EventKind::Rejected));
  EXPECT_EQ(t.asking.events[0].reason.id, ReasonId::RejectedByProgram);
  t.world.pass(seconds(60));  // until then its answer can be asked for again
  EXPECT_EQ(t.of(1).agent().conversations(), 0u);
}

TEST(Connections, AClosedListenerBringsNothingMore) {
  Hosts t;
  t.listener.next = &t.accepting;
  const auto id = t.of(1).listen({.service = cm::kPort}, t.listener);
  ASSERT_TRUE(id);
  const auto second = t.of(1).listen({.service = cm::kPort}, t.listener);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().id, ReasonId::ServiceTaken);
  EXPECT_TRUE(t.of(1).agent().listens(cm::kPort, t.world.host(1).gid()));
  t.of(1).close(*id);
  EXPECT_FALSE(t.of(1).agent().listens(cm::kPort, t.world.host(1).gid()));
  t.connect();
  t.wait();
  EXPECT_TRUE(t.listener.events.empty());
  EXPECT_TRUE(t.asking.heard_only(EventKind::Rejected));
}

// A sink that is gone is never called: who destroys an id hears nothing, whatever comes.
TEST(Connections, AnIdThatWasDestroyedIsSilent) {
  Hosts t;
  t.listen();
  const wire::CommId asked = t.connect();
  const wire::CommId accepted = t.accept();
  t.of(0).destroy(asked, t.world.now());
  t.settle();
  EXPECT_TRUE(t.asking.heard_only(EventKind::Reply));
  // The other one hears that the peer has gone before the connection stood.
  ASSERT_EQ(t.accepting.events.size(), 1u);
  EXPECT_EQ(t.accepting.events[0].id, accepted);
  EXPECT_NE(t.accepting.events[0].kind, EventKind::Established);
}

// A peer on the same host, whose process a test watches, or finds gone.
struct Neighbours {
  Neighbours() {
    settings.hosts = 1;
    settings.host.watch_process = [this](std::uint32_t block) {
      watched.push_back(block);
      return is_there;
    };
    settings.host.ended_processes = [this] { return std::exchange(ended, {}); };
  }

  std::vector<std::uint32_t> watched;
  std::vector<std::uint32_t> ended;
  bool is_there = true;
  WorldSettings settings;
};
struct OneHost {
  explicit OneHost(Neighbours& neighbours) : world(neighbours.settings) {
    listener.next = &accepting;
    EXPECT_TRUE(connections().listen({.service = cm::kPort}, listener));
    cm::ConnectRequest wanted;
    wanted.service = cm::kPort;
    wanted.path.local = wanted.path.remote = world.host(0).gid();
    wanted.addresses = {7, wanted.path.local, wanted.path.remote};
    wanted.qpn = {0x42};
    const auto id = connections().connect(wanted, asking, world.now());
    EXPECT_TRUE(id);
    asked = id ? *id : wire::CommId{};
    world.pass(milliseconds(1));
  }
  void establish() {
    ASSERT_TRUE(listener.heard_only(EventKind::ConnectRequest));
    accepted = listener.events[0].id;
    EXPECT_TRUE(connections().accept(accepted, {.qpn = {0x43}}, world.now()));
    world.pass(milliseconds(1));
    EXPECT_TRUE(connections().establish(asked, {}, world.now()));
    world.pass(milliseconds(1));
    EXPECT_TRUE(accepting.heard_only(EventKind::Established));
  }
  driver::Connections& connections() { return world.host(0).engine().connections(); }

  World world;
  Listener listener, asking, accepting;
  wire::CommId asked{}, accepted{};
};

TEST(Connections, EndWithTheirPeersProcess) {
  Neighbours neighbours;
  OneHost t(neighbours);
  t.establish();
  ASSERT_FALSE(neighbours.watched.empty());
  neighbours.ended = {neighbours.watched[0]};
  t.connections().look_for_ended(t.world.now());
  t.world.pass(milliseconds(40));
  EXPECT_TRUE(t.accepting.heard_only(EventKind::Established));
  t.world.pass(milliseconds(20));
  ASSERT_EQ(t.accepting.events.size(), 2u);
  EXPECT_EQ(t.accepting.events[1].kind, EventKind::Disconnected);
  EXPECT_EQ(t.accepting.events[1].reason.id, ReasonId::PeerEnded);
}

// What it said before is still on its way, by another process perhaps.
TEST(Connections, HearTheLastWordsOfAProcessFirst) {
  Neighbours neighbours;
  OneHost t(neighbours);
  t.establish();
  neighbours.ended = {neighbours.watched[0]};
  t.connections().look_for_ended(t.world.now());
  EXPECT_TRUE(t.connections().disconnect(t.asked, {}, t.world.now()));
  t.world.pass(milliseconds(200));
  ASSERT_GE(t.accepting.events.size(), 2u);
  EXPECT_EQ(t.accepting.events[1].kind, EventKind::Disconnected);
  EXPECT_EQ(t.accepting.events[1].reason.id, ReasonId::None);
}

TEST(Connections, AreNotWaitedForByOneWhoAskedAndWasGone) {
  Neighbours neighbours;
  neighbours.is_there = false;
  OneHost t(neighbours);
  EXPECT_TRUE(t.listener.heard_only(EventKind::ConnectRequest));
  t.world.pass(milliseconds(60));
  ASSERT_TRUE(t.accepting.heard_only(EventKind::Unreachable));
  EXPECT_EQ(t.accepting.events[0].reason.id, ReasonId::PeerEnded);
}

TEST(Connections, WhoWatchesHearsOfADeviceThatHasGone) {
  Hosts t;
  Listener watcher, another;
  t.of(0).watch_removal(watcher);
  t.of(0).watch_removal(another);
  driver::PortAttributes port = t.world.host(0).engine().port();
  port.state = driver::PortState::Down;
  port.down = {.id = ReasonId::PortDown};
  t.world.host(0).engine().set_port(port, {});
  EXPECT_TRUE(watcher.events.empty()) << "the cable is out, and may be back soon";
  port.down = {.id = ReasonId::NoInterface};
  t.world.host(0).engine().set_port(port, {});
  t.world.host(0).engine().set_port(port, {});
  EXPECT_TRUE(watcher.heard_only(EventKind::DeviceRemoved)) << "once";
  EXPECT_TRUE(another.heard_only(EventKind::DeviceRemoved));

  Listener of_stopped;
  t.of(1).watch_removal(of_stopped);
  t.world.host(1).engine().stop({.id = ReasonId::AssertionBroken}, t.world.now());
  EXPECT_TRUE(of_stopped.heard_only(EventKind::DeviceRemoved));
}

TEST(Connections, AProgramThatEndsTellsItsPeers) {
  Hosts t;
  t.listen();
  const wire::CommId asked = t.connect();
  t.accept();
  EXPECT_TRUE(t.of(0).establish(asked, {}, t.world.now()));
  t.settle();
  t.of(0).disconnect_all(t.world.now());
  t.settle();
  ASSERT_EQ(t.accepting.events.size(), 2u);
  EXPECT_EQ(t.accepting.events[1].kind, EventKind::Disconnected);
}

// IBTA 13.5.3.3 (Q_Key of queue pair 1), 13.4.1 (256 bytes): all else is dropped and counted.
TEST(Connections, QueuePairOneTakesManagementDatagramsOnly) {
  Hosts t;
  Forge forge(t.world);
  Connection::End to;
  to.host = &t.world.host(1);
  wire::Headers h;
  h.bth.opcode = kUdSendOnly;
  h.bth.pkey = wire::kDefaultPkey;
  h.bth.dest_qpn = wire::kManagementQpn;
  h.source_qpn = wire::kManagementQpn;
  wire::Datagram path{.source = t.world.host(0).gid(), .destination = t.world.host(1).gid()};
  const auto count = [&](Counter which) { return t.world.host(1).counter(which); };

  h.qkey = 0x1234;
  forge.send(h, path, wire::kMadBytes);
  EXPECT_EQ(count(Counter::QkeyMismatches), 1u);
  h.qkey = wire::kManagementQkey;
  forge.send(h, path, wire::kMadBytes - 4);
  EXPECT_EQ(count(Counter::PacketsMalformed), 1u);
  h.bth.opcode = 0x04;  // RC SEND-only: long enough for a datagram's headers
  forge.send(h, path, wire::kMadBytes);
  EXPECT_EQ(count(Counter::PacketsMalformed), 2u);
  EXPECT_EQ(t.of(1).agent().tally().malformed, 0u);

  h.bth.opcode = kUdSendOnly;  // whole, and no datagram of a connection manager
  forge.send(h, path, wire::kMadBytes);
  EXPECT_EQ(count(Counter::CmMalformed), 1u);
  EXPECT_EQ(count(Counter::PacketsMalformed), 2u);
}

}  // namespace
}  // namespace softhca::sim
