// Raw packet queue pairs of one device, and the interface that its frames leave and arrive by.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "sim/world.h"

namespace softhca::sim {
namespace {

using link::FrameUse;
using trace::Counter;
using trace::Reason;
using trace::ReasonId;
using transport::QpState;

using Frame = std::vector<std::byte>;

// Of addresses that begin with 02:, the last byte; odd first bytes are groups.
constexpr std::uint8_t kOwn = 1, kPeer = 9;

class FakePort final : public link::FramePort {
 public:
  Result<void, Reason> open_for(FrameUse wanted) override {
    use = is_refused ? FrameUse::None : wanted;
    if (is_refused) return Reason{.id = ReasonId::FramesStayInside};
    return {};
  }
  Sent send(std::span<const ConstBytes> frames) override {
    EXPECT_NE(use, FrameUse::None);
    const std::size_t taken = std::min(frames.size(), room);
    for (const ConstBytes one : frames.first(taken)) sent.emplace_back(one.begin(), one.end());
    room -= taken;
    return {.taken = taken, .lost = 0};
  }
  std::size_t receive(std::span<ConstBytes> out) override {
    EXPECT_GT(use, FrameUse::Sending);
    lent.clear();
    while (lent.size() < out.size() && !arriving.empty()) {
      lent.push_back(std::move(arriving.front()));
      arriving.pop_front();
    }
    std::ranges::copy(lent, out.begin());
    return lent.size();
  }
  wire::MacAddress address() const override { return {2, 0, 0, 0, 0, kOwn}; }
  bool brings_back() const override { return is_loopback; }

  FrameUse use = FrameUse::None;
  bool is_refused = false;
  bool is_loopback = false;
  std::size_t room = SIZE_MAX;
  std::deque<Frame> arriving;
  std::vector<Frame> lent;
  std::vector<Frame> sent;
};

Frame frame_to(std::uint8_t last, std::uint8_t first = 2, std::size_t bytes = 64) {
  Frame frame(bytes, static_cast<std::byte>(last));
  std::fill_n(frame.begin(), 12, std::byte{0});
  frame[0] = static_cast<std::byte>(first);
  frame[5] = static_cast<std::byte>(last);
  frame[12] = std::byte{0x88};
  frame[13] = std::byte{0xb5};  // IEEE 802: for local experiments
  return frame;
}

Frame udp_to(const wire::Gid& gid, std::uint16_t port) {
  Frame frame = frame_to(kOwn);
  std::fill_n(frame.begin() + 12, 30, std::byte{0});
  frame[12] = std::byte{0x08};
  frame[14] = std::byte{0x45};
  frame[23] = std::byte{17};
  std::ranges::copy(std::as_bytes(std::span(gid.bytes).last(4)), frame.begin() + 30);
  store_be(frame, 36, port);
  return frame;
}

nic::FlowRule rule_for(std::uint8_t last, std::uint8_t first = 2) {
  nic::FlowRule rule;
  rule.value.destination[0] = first;
  rule.value.destination[5] = last;
  std::ranges::fill(rule.mask.destination, std::uint8_t{0xff});
  return rule;
}
nic::FlowRule rule_of(nic::FlowKind kind) {
  nic::FlowRule rule;
  rule.kind = kind;
  return rule;
}

struct OneDevice {
  OneDevice() : world(settings()) {}
  WorldSettings settings() {
    WorldSettings wanted;
    wanted.hosts = 1;
    wanted.host.frames = &port;
    return wanted;
  }
  driver::Engine& engine() { return world.host(0).engine(); }
  std::uint64_t count(Counter counter) { return world.host(0).counter(counter); }
  void progress() {
    while (engine().progress(world.now())) {
    }
  }
  void arrive(const Frame& frame) {
    port.arriving.push_back(frame);
    progress();
  }

  FakePort port;
  World world;
};

// A raw packet queue pair in RTS with receives, and memory: a page for what it receives, and then
// what it sends, one behind the other.
struct RawPair {
  static constexpr std::uint32_t kRoom = 256;
  static constexpr std::uint64_t kBytes = 4 * kPage4K;

  explicit RawPair(OneDevice& on) : device(on), host(on.world.host(0)), engine(on.engine()) {
    pd = *engine.alloc_pd();
    memory = host.allocate(kBytes);
    key = engine
              .register_memory(pd, memory, kBytes, {memory.value}, driver::AccessFlags::of_bits(1),
                               now())
              ->key;
    cq = *engine.create_cq(128, nullptr, now());
    qp = *engine.create_qp({.pd = pd,
                            .type = transport::QpType::RawPacket,
                            .send_cq = cq,
                            .receive_cq = cq,
                            .capacity = {128, 16, 1, 1, 0}},
                           now());
    move(QpState::Init, transport::QpAttribute::Port);
    move(QpState::Rtr);
    move(QpState::Rts);
    const std::array into{driver::Sge{memory.value, kRoom, key.value}};
    for (std::uint64_t i = 0; i < 16; ++i)
      EXPECT_TRUE(engine.post_receive(*qp, {i, into}, false, now()));
  }
  Time now() const { return device.world.now(); }
  void move(QpState to, transport::QpAttributeMask mask = {}) {
    transport::QpAttributes attributes;
    attributes.state = to;
    attributes.port = 1;
    mask = mask | transport::QpAttribute::State;
    EXPECT_TRUE(engine.modify_qp(*qp, attributes, mask, now()));
  }
  nic::Steering::Id steer(const nic::FlowRule& rule) { return *engine.create_flow(*qp, rule); }
  void send(const Frame& frame) {
    const VirtAddr at{memory.value + kPage4K + sent_bytes};
    sent_bytes += frame.size();
    host.store(at, frame);
    const std::array from{
        driver::Sge{at.value, static_cast<std::uint32_t>(frame.size()), key.value}};
    driver::SendRequest request;
    request.opcode = transport::WorkOpcode::Send;
    request.flags |= driver::SendFlag::Signaled;
    request.sges = from;
    EXPECT_TRUE(engine.post_send(*qp, request, false, now()));
  }
  // Completions since the last time; of receives, or of sends.
  std::vector<driver::Completion> done(bool receives = true) {
    device.progress();
    std::vector<driver::Completion> all(64), wanted;
    all.resize(cq->poll(all));
    for (const auto& one : all)
      if ((one.opcode == driver::CompletionOpcode::Receive) == receives) wanted.push_back(one);
    return wanted;
  }
  std::size_t received() { return done().size(); }
  Frame last_frame(std::size_t bytes) { return host.load(memory, bytes); }

  OneDevice& device;
  Host& host;
  driver::Engine& engine;
  std::uint32_t pd{};
  VirtAddr memory;
  std::uint64_t sent_bytes = 0;
  wire::Key key;
  driver::CompletionQueue* cq{};
  driver::QueuePair* qp{};
};

TEST(RawPackets, TheInterfaceIsOpenAsFarAsThereIsAUse) {
  OneDevice device;
  EXPECT_EQ(device.port.use, FrameUse::None);
  RawPair a(device);
  EXPECT_EQ(device.port.use, FrameUse::Sending);
  const auto own = a.steer(rule_for(kOwn));
  EXPECT_EQ(device.port.use, FrameUse::Own);
  const auto group = a.steer(rule_for(5, 1));
  EXPECT_EQ(device.port.use, FrameUse::Multicasts);
  const auto groups = a.steer(rule_of(nic::FlowKind::MulticastDefault));
  const auto other = a.steer(rule_for(7));
  EXPECT_EQ(device.port.use, FrameUse::Everything);
  device.engine().destroy_flow(other);
  EXPECT_EQ(device.port.use, FrameUse::Multicasts);
  const auto sniffer = a.steer(rule_of(nic::FlowKind::Sniffer));
  EXPECT_EQ(device.port.use, FrameUse::Everything);
  for (const auto flow : {own, group, groups, sniffer}) device.engine().destroy_flow(flow);
  EXPECT_EQ(device.port.use, FrameUse::Sending);
  a.move(QpState::Reset);
  EXPECT_EQ(device.port.use, FrameUse::None);
}

TEST(RawPackets, AFrameForWhomNobodyHereHasARuleGoesOut) {
  OneDevice device;
  RawPair a(device), b(device);
  b.steer(rule_for(7));
  b.steer(rule_of(nic::FlowKind::AllDefault));
  RawPair sniffer(device);
  sniffer.steer(rule_of(nic::FlowKind::Sniffer));
  a.send(frame_to(kPeer));
  EXPECT_EQ(device.port.sent, std::vector<Frame>{frame_to(kPeer)});
  EXPECT_EQ(b.received(), 0u);
  EXPECT_EQ(sniffer.received(), 1u) << "it sees what leaves too";
  a.send(frame_to(7));
  a.send(frame_to(kOwn));
  EXPECT_EQ(device.port.sent.size(), 1u) << "a switch keeps what is for this side";
  EXPECT_EQ(b.received(), 2u);
  EXPECT_EQ(sniffer.received(), 2u);
  EXPECT_EQ(device.count(Counter::RawFramesSent), 3u);
  EXPECT_EQ(device.count(Counter::RawFramesOut), 1u);
}

TEST(RawPackets, AFrameForAGroupGoesOutAndToThoseHere) {
  OneDevice device;
  RawPair a(device), b(device);
  b.steer(rule_for(5, 1));
  a.send(frame_to(5, 1));
  EXPECT_EQ(device.port.sent.size(), 1u);
  EXPECT_EQ(b.received(), 1u);
}

// Otherwise they would come twice.
TEST(RawPackets, WhatTheInterfaceBringsBackIsNotSwitchedHere) {
  OneDevice device;
  device.port.is_loopback = true;
  RawPair a(device), b(device);
  b.steer(rule_of(nic::FlowKind::MulticastDefault));
  b.steer(rule_of(nic::FlowKind::Sniffer));
  for (const Frame& frame : {frame_to(5, 1), frame_to(kOwn), frame_to(kPeer)}) a.send(frame);
  EXPECT_EQ(b.received(), 0u);
  ASSERT_EQ(device.port.sent.size(), 3u);
  for (const Frame& frame : device.port.sent) device.arrive(frame);
  EXPECT_EQ(b.received(), 3u);
}

TEST(RawPackets, FramesThatArriveGoToWhomARuleSteersThem) {
  OneDevice device;
  RawPair a(device), b(device);
  a.steer(rule_for(kOwn));
  b.steer(rule_for(7));
  device.arrive(frame_to(7, 2, 100));
  device.arrive(frame_to(8));
  const auto got = b.done();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].byte_count, 100u);
  EXPECT_EQ(b.last_frame(100), frame_to(7, 2, 100));
  EXPECT_EQ(a.received(), 0u);
  EXPECT_EQ(device.count(Counter::RawFramesIn), 2u);
  EXPECT_TRUE(device.port.sent.empty());
}

// A NIC takes its own RoCEv2 packets out first.
TEST(RawPackets, TheDevicesOwnPacketsAreForSniffersOnly) {
  OneDevice device;
  const wire::Gid own = device.world.host(0).gid();
  ASSERT_TRUE(own.is_ipv4());
  RawPair a(device), b(device), sniffer(device);
  a.steer(rule_for(kOwn));
  b.steer(rule_of(nic::FlowKind::AllDefault));
  sniffer.steer(rule_of(nic::FlowKind::Sniffer));
  device.arrive(udp_to(own, wire::kUdpPort));
  EXPECT_EQ(a.received() + b.received(), 0u);
  EXPECT_EQ(sniffer.received(), 1u);
  device.arrive(udp_to(own, 4790));
  device.arrive(udp_to(wire::Gid::of_ipv4({198, 51, 100, 1}), wire::kUdpPort));
  EXPECT_EQ(a.received(), 2u);
  EXPECT_EQ(sniffer.received(), 2u);
}

TEST(RawPackets, WhatTheInterfaceDoesNotTakeNowLeavesLater) {
  OneDevice device;
  RawPair a(device);
  device.port.room = 40;
  std::vector<Frame> frames;
  for (std::uint8_t i = 0; i < 100; ++i) {
    frames.push_back(frame_to(static_cast<std::uint8_t>(100 + i)));
    a.send(frames.back());
  }
  EXPECT_EQ(device.port.sent.size(), 40u);
  EXPECT_LT(a.done(false).size(), 100u);
  EXPECT_LE(device.engine().next_deadline(), device.world.now());
  for (int i = 0; i < 4; ++i) {
    device.port.room = 16;
    device.engine().progress(device.world.now());
  }
  EXPECT_TRUE(device.port.sent == frames);
}

TEST(RawPackets, WithoutPermissionFramesStayInside) {
  OneDevice device;
  device.port.is_refused = true;
  std::vector<ReasonId> told;
  device.engine().set_reason_listener([&](trace::Telling, std::string_view, const Reason& reason,
                                          std::string_view) { told.push_back(reason.id); });
  RawPair a(device), b(device);
  b.steer(rule_for(7));
  b.steer(rule_of(nic::FlowKind::AllDefault));
  for (const std::uint8_t last : {std::uint8_t{7}, kPeer}) a.send(frame_to(last));
  EXPECT_EQ(b.received(), 2u);
  EXPECT_TRUE(device.port.sent.empty());
  EXPECT_EQ(told, std::vector<ReasonId>{ReasonId::FramesStayInside}) << "once";
}

TEST(RawPackets, AFrameHasAHeader) {
  OneDevice device;
  RawPair a(device);
  a.send(frame_to(kPeer, 2, 14));
  EXPECT_EQ(device.port.sent.size(), 1u);
  Frame cut = frame_to(kPeer, 2, 14);
  cut.pop_back();
  a.send(cut);
  const auto done = a.done(false);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[1].status, transport::Status::LocalLength);
  EXPECT_EQ(done[1].reason, ReasonId::FrameTooShort);
  EXPECT_EQ(device.port.sent.size(), 1u);
}

}  // namespace
}  // namespace softhca::sim
