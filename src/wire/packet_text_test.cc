#include "wire/packet_text.h"

#include <gtest/gtest.h>

namespace softhca::wire {
namespace {

Headers headers_of(Service service, Operation operation) {
  Headers h;
  h.bth = {.opcode = opcode_of(service, operation),
           .pkey = kDefaultPkey,
           .dest_qpn = {0x14},
           .psn = {0xabc000}};
  return h;
}

TEST(PacketText, ShowsAWrite) {
  Headers h = headers_of(Service::Rc, Operation::WriteOnly);
  h.bth.ack_request = true;
  h.remote_address = 0x33456000;
  h.rkey = {0x506};
  h.dma_length = 64;
  EXPECT_EQ(packet_text(h, 64),
            "RC_WRITE_ONLY qp 0x000014 psn 0xabc000 A va 0x33456000 rkey 0x506 len 64 data 64");
}

TEST(PacketText, ShowsEveryKindOfAnswer) {
  Headers h = headers_of(Service::Rc, Operation::Acknowledge);
  h.msn = {3};
  h.aeth_value = kCreditsInvalid;
  EXPECT_EQ(packet_text(h, 0), "RC_ACK qp 0x000014 psn 0xabc000 credit 31 msn 3");
  h.aeth_kind = AethKind::RnrNak;
  h.aeth_value = 12;
  EXPECT_EQ(packet_text(h, 0), "RC_ACK qp 0x000014 psn 0xabc000 RNR NAK timer 12 msn 3");
  h.aeth_kind = AethKind::Nak;
  h.aeth_value = 2;
  EXPECT_EQ(packet_text(h, 0), "RC_ACK qp 0x000014 psn 0xabc000 NAK 2 (remote access) msn 3");
  h.aeth_value = 30;
  EXPECT_EQ(packet_text(h, 0), "RC_ACK qp 0x000014 psn 0xabc000 NAK 30 (reserved) msn 3");
  h.aeth_kind = static_cast<AethKind>(2);
  EXPECT_EQ(packet_text(h, 0), "RC_ACK qp 0x000014 psn 0xabc000 reserved syndrome 30 msn 3");
}

TEST(PacketText, ShowsTheFieldsOfEveryExtensionHeader) {
  Headers h = headers_of(Service::Rc, Operation::CompareSwap);
  h.remote_address = 0x1000;
  h.rkey = {0x506};
  h.swap_or_add = 0x11;
  h.compare = 5;
  EXPECT_EQ(packet_text(h, 0),
            "RC_CMP_SWAP qp 0x000014 psn 0xabc000 va 0x1000 rkey 0x506 swap/add 0x11 cmp 0x5");
  h = headers_of(Service::Rc, Operation::AtomicAcknowledge);
  h.original = 0x1122334455667788;
  EXPECT_EQ(packet_text(h, 0),
            "RC_ATOMIC_ACK qp 0x000014 psn 0xabc000 credit 0 msn 0 orig 0x1122334455667788");
  h = headers_of(Service::Rc, Operation::SendOnlyInvalidate);
  h.invalidate_key = {0x80001e0};
  EXPECT_EQ(packet_text(h, 64), "RC_SEND_ONLY_INV qp 0x000014 psn 0xabc000 inv 0x80001e0 data 64");
  h = headers_of(Service::Rc, Operation::Flush);
  h.flush = 1;
  EXPECT_EQ(packet_text(h, 0), "RC_FLUSH qp 0x000014 psn 0xabc000 feth 0x1 va 0x0 rkey 0x0 len 0");
  h = headers_of(Service::Xrc, Operation::SendOnlyImm);
  h.xrc_srqn = 0x77;
  h.immediate = 0x04030201;
  EXPECT_EQ(packet_text(h, 1),
            "XRC_SEND_ONLY_IMM qp 0x000014 psn 0xabc000 srq 0x000077 imm 0x4030201 data 1");
}

TEST(PacketText, ShowsFlagsOnlyWhereTheyDiffer) {
  Headers h = headers_of(Service::Ud, Operation::SendOnly);
  h.bth.pkey = 0x8001;
  h.bth.solicited = h.bth.fecn = h.bth.becn = true;
  h.bth.pad = 3;
  h.qkey = 0x11111111;
  h.source_qpn = {0x1e};
  EXPECT_EQ(packet_text(h, 101),
            "UD_SEND_ONLY qp 0x000014 psn 0xabc000 pkey 0x8001 SE FECN BECN qkey 0x11111111 "
            "src_qp 0x00001e data 101 pad 3");
}

TEST(PacketText, ShowsTheNumberOfAnUnknownOpcode) {
  Headers h;
  h.bth = {.opcode = 0x15, .pkey = kDefaultPkey, .dest_qpn = {0x16}, .psn = {0x500000}};
  EXPECT_EQ(packet_text(h, 16), "opcode 0x15 qp 0x000016 psn 0x500000 data 16");
}

}  // namespace
}  // namespace softhca::wire
