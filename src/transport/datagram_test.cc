#include "transport/datagram.h"

#include <gtest/gtest.h>

#include "transport/test_memory.h"

namespace softhca::transport {
namespace {

using trace::ReasonId;
using Arrival = Datagrams::Arrival;

constexpr std::uint32_t kDatagramMtu = 1024;
constexpr std::uint32_t kQkey = 0x1111'1111;

struct DatagramTalk {
  FakeMemory memory;
  Datagrams end{{.qpn = {0x23}, .qkey = kQkey, .mtu = kDatagramMtu}, memory};

  void post(std::uint32_t work, std::uint64_t bytes, std::uint32_t qkey = kQkey) {
    end.post({.send = {.work = work,
                       .opcode = WorkOpcode::Send,
                       .bytes = bytes,
                       .rkey = {},
                       .signaled = true},
              .dest_qpn = {0x45},
              .qkey = qkey});
  }
  Arrival arrive(std::uint32_t bytes, std::uint32_t qkey = kQkey,
                 std::uint8_t opcode = wire::opcode_of(wire::Service::Ud,
                                                       wire::Operation::SendOnly)) {
    wire::Headers h;
    h.bth.opcode = opcode;
    h.qkey = qkey;
    h.source_qpn = {0x99};
    return end.on_packet(*wire::find_opcode(opcode), h, bytes);
  }
  void expect_sent(std::uint32_t work, Status status) {
    const auto done = end.poll_send_completion();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->work, work);
    EXPECT_EQ(done->status, status);
  }
};

// The second packet of ud.pcap (tests/golden), as Linux rxe made it: no acknowledgement asked for.
TEST(Datagrams, MakesThePacketsThatRxeMakes) {
  FakeMemory memory;
  Datagrams end({.qpn = {0x1e}, .qkey = kQkey, .mtu = kDatagramMtu}, memory);
  end.start({1});
  end.post({.send = {.work = 7,
                     .opcode = WorkOpcode::SendImm,
                     .bytes = 101,
                     .rkey = {},
                     .immediate = 0xfecaad0b},
            .dest_qpn = {0x1e},
            .qkey = kQkey});
  const auto out = end.poll_packet();
  ASSERT_TRUE(out);
  wire::Headers expected;
  expected.bth.opcode = wire::opcode_of(wire::Service::Ud, wire::Operation::SendOnlyImm);
  expected.bth.pad = 3;
  expected.bth.pkey = 0xffff;
  expected.bth.dest_qpn = {0x1e};
  expected.bth.psn = {1};
  expected.qkey = kQkey;
  expected.source_qpn = {0x1e};
  expected.immediate = 0xfecaad0b;
  EXPECT_EQ(out->headers, expected);
  EXPECT_EQ(out->payload.work, 7u);
  EXPECT_EQ(out->payload.bytes, 101u);
  EXPECT_FALSE(end.poll_packet());
}

TEST(Datagrams, ARequestIsDoneWhenItsPacketIsMade) {
  DatagramTalk t;
  t.end.start({0xff'ffff});
  t.post(0, 0);
  t.post(1, kDatagramMtu);
  EXPECT_FALSE(t.end.poll_send_completion());
  EXPECT_EQ(t.end.poll_packet()->headers.bth.psn.value, 0xff'ffffu);
  t.expect_sent(0, Status::Success);
  EXPECT_EQ(t.end.poll_packet()->headers.bth.psn.value, 0u);
  t.expect_sent(1, Status::Success);
  EXPECT_FALSE(t.end.poll_send_completion());
}

// IBTA 10.2.5: the high bit of a request's Q_Key stands for the queue pair's own.
TEST(Datagrams, AControlledQkeyStandsForTheOwnOne) {
  DatagramTalk t;
  t.post(0, 1, 0x8001'0000);
  EXPECT_EQ(t.end.poll_packet()->headers.qkey, kQkey);
  t.post(1, 1, 0x7fff'ffff);
  EXPECT_EQ(t.end.poll_packet()->headers.qkey, 0x7fff'ffffu);
}

TEST(Datagrams, OneThatIsTooLongFailsAndFlushesTheRestUntilItGoesOn) {
  DatagramTalk t;
  t.post(0, 1);
  t.post(1, kDatagramMtu + 1);
  t.post(2, 1);
  EXPECT_TRUE(t.end.poll_packet());
  EXPECT_FALSE(t.end.poll_packet());
  t.expect_sent(0, Status::Success);
  const auto failed = t.end.poll_send_completion();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->status, Status::LocalLength);
  EXPECT_EQ(failed->reason.id, ReasonId::MessageTooLong);
  EXPECT_EQ(failed->reason.high, kDatagramMtu);
  t.expect_sent(2, Status::Flushed);
  t.post(3, 1);
  EXPECT_FALSE(t.end.poll_packet());
  t.expect_sent(3, Status::Flushed);
  t.end.resume();
  t.post(4, 1);
  EXPECT_TRUE(t.end.poll_packet());
  t.expect_sent(4, Status::Success);
}

TEST(Datagrams, APayloadThatCannotBeReadFailsItsRequest) {
  DatagramTalk t;
  t.post(0, 8);
  t.post(1, 8);
  EXPECT_TRUE(t.end.poll_packet());
  t.end.on_payload_fault(Status::LocalQpOperation, {.id = ReasonId::FrameGone});
  t.expect_sent(0, Status::LocalQpOperation);
  t.expect_sent(1, Status::Flushed);
  EXPECT_FALSE(t.end.poll_send_completion());
}

TEST(Datagrams, AReceiveHoldsTheNetworkHeaderAndTheMessage) {
  DatagramTalk t;
  t.memory.receives = 1;
  EXPECT_EQ(t.arrive(100), Arrival::Received);
  ASSERT_EQ(t.memory.placed.size(), 1u);
  EXPECT_EQ(t.memory.placed[0].bytes, 140u);
  const auto done = t.end.poll_receive_completion();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->receive.status, Status::Success);
  EXPECT_EQ(done->receive.bytes, 140u);
  EXPECT_EQ(done->source_qpn.value, 0x99u);
}

// C9-100 ff.: dropped without a word; no receive is taken.
TEST(Datagrams, AnotherQkeyIsDropped) {
  DatagramTalk t;
  t.memory.receives = 1;
  EXPECT_EQ(t.arrive(1, kQkey ^ 1), Arrival::WrongQkey);
  EXPECT_EQ(t.memory.receives, 1);
  t.end.set_qkey(kQkey ^ 1);
  EXPECT_EQ(t.arrive(1, kQkey ^ 1), Arrival::Received);
}

// 9.9.3, class D: the packet is lost, the receive is the next packet's.
TEST(Datagrams, AReceiveThatIsTooSmallStaysForTheNextPacket) {
  DatagramTalk t;
  t.memory.receives = 1;
  t.memory.receive_bytes = kNetworkHeaderBytes + 9;
  EXPECT_EQ(t.arrive(10), Arrival::ReceiveTooSmall);
  EXPECT_FALSE(t.end.poll_receive_completion());
  EXPECT_EQ(t.arrive(9), Arrival::Received);
  EXPECT_EQ(t.end.poll_receive_completion()->receive.work, 0u);
  EXPECT_EQ(t.arrive(9), Arrival::NoReceive);
}

TEST(Datagrams, AHeldReceiveIsFlushedOnce) {
  DatagramTalk t;
  t.memory.receives = 1;
  t.memory.receive_bytes = 0;
  EXPECT_EQ(t.arrive(0), Arrival::ReceiveTooSmall);
  t.end.fail_receives();
  t.end.fail_receives();
  EXPECT_EQ(t.end.poll_receive_completion()->receive.status, Status::Flushed);
  EXPECT_FALSE(t.end.poll_receive_completion());
}

TEST(Datagrams, WhatIsNotOfTheServiceIsDropped) {
  DatagramTalk t;
  t.memory.receives = 9;
  EXPECT_EQ(t.arrive(kDatagramMtu + 1), Arrival::Malformed);
  EXPECT_EQ(t.arrive(1, kQkey, wire::opcode_of(wire::Service::Rc, wire::Operation::SendOnly)),
            Arrival::Malformed);
  EXPECT_EQ(t.memory.receives, 9);
}

TEST(Datagrams, AReceiveWhoseMemoryIsGoneFails) {
  DatagramTalk t;
  t.memory.receives = 1;
  t.memory.place_refusal = {.id = ReasonId::FrameGone};
  EXPECT_EQ(t.arrive(1), Arrival::Failed);
  const auto done = t.end.poll_receive_completion();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->receive.status, Status::LocalProtection);
  EXPECT_EQ(done->receive.bytes, 0u);
}

}  // namespace
}  // namespace softhca::transport
