#include "wire/opcode.h"

#include <gtest/gtest.h>

#include <string>

namespace softhca::wire {
namespace {

TEST(Opcode, HasARowForEveryOpcodeOfEveryService) {
  int rows[8] = {};
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    const OpcodeInfo* info = find_opcode(static_cast<std::uint8_t>(opcode));
    if (info == nullptr) continue;
    ++rows[opcode >> 5];
    EXPECT_EQ(info->opcode, opcode);
    EXPECT_EQ(opcode_of(info->service, info->operation), opcode);
  }
  EXPECT_EQ(rows[static_cast<int>(Service::Rc)], 25);
  EXPECT_EQ(rows[static_cast<int>(Service::Uc)], 12);
  EXPECT_EQ(rows[static_cast<int>(Service::Rd)], 0);  // not a service of this device
  EXPECT_EQ(rows[static_cast<int>(Service::Ud)], 2);
  EXPECT_EQ(rows[static_cast<int>(Service::Cnp)], 1);
  EXPECT_EQ(rows[static_cast<int>(Service::Xrc)], 23);
}

TEST(Opcode, KnowsTheNumbersAndHeaderLengthsOfTheSpecification) {
  struct Case {
    std::uint8_t opcode;
    const char* name;
    std::size_t header_bytes;  // 12 of BTH, and 16 RETH, 28 AtomicETH, 8 DETH, 4 most others
  };
  for (const Case& c : {Case{0x00, "RC_SEND_FIRST", 12},
                        Case{0x03, "RC_SEND_LAST_IMM", 16},
                        Case{0x06, "RC_WRITE_FIRST", 28},
                        Case{0x0b, "RC_WRITE_ONLY_IMM", 32},
                        Case{0x0c, "RC_READ_REQUEST", 28},
                        Case{0x0d, "RC_READ_RESP_FIRST", 16},
                        Case{0x0e, "RC_READ_RESP_MIDDLE", 12},
                        Case{0x10, "RC_READ_RESP_ONLY", 16},
                        Case{0x11, "RC_ACK", 16},
                        Case{0x12, "RC_ATOMIC_ACK", 24},
                        Case{0x13, "RC_CMP_SWAP", 40},
                        Case{0x14, "RC_FETCH_ADD", 40},
                        Case{0x16, "RC_SEND_LAST_INV", 16},
                        Case{0x17, "RC_SEND_ONLY_INV", 16},
                        Case{0x1c, "RC_FLUSH", 32},
                        Case{0x1d, "RC_ATOMIC_WRITE", 28},
                        Case{0x24, "UC_SEND_ONLY", 12},
                        Case{0x2b, "UC_WRITE_ONLY_IMM", 32},
                        Case{0x64, "UD_SEND_ONLY", 20},
                        Case{0x65, "UD_SEND_ONLY_IMM", 24},
                        Case{0x81, "CNP", 12},
                        Case{0xa0, "XRC_SEND_FIRST", 16},
                        Case{0xab, "XRC_WRITE_ONLY_IMM", 36},
                        Case{0xac, "XRC_READ_REQUEST", 32},
                        Case{0xad, "XRC_READ_RESP_FIRST", 16},
                        Case{0xb1, "XRC_ACK", 16},
                        Case{0xb3, "XRC_CMP_SWAP", 44},
                        Case{0xb7, "XRC_SEND_ONLY_INV", 20}}) {
    const OpcodeInfo* info = find_opcode(c.opcode);
    ASSERT_NE(info, nullptr) << c.name;
    EXPECT_EQ(info->name, c.name);
    EXPECT_EQ(info->header_bytes(), c.header_bytes) << c.name;
  }
  for (const int opcode : {0x15, 0x18, 0x1f, 0x2c, 0x44, 0x60, 0x66, 0x80, 0x82, 0xb5, 0xc0, 0xff})
    EXPECT_EQ(find_opcode(static_cast<std::uint8_t>(opcode)), nullptr) << opcode;
}

TEST(Opcode, SaysInItsNameWhatItsColumnsSay) {
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    const OpcodeInfo* info = find_opcode(static_cast<std::uint8_t>(opcode));
    if (info == nullptr || info->kind == Kind::Congestion) continue;
    const std::string name(info->name);
    const auto says = [&](const char* word) { return name.find(word) != name.npos; };
    EXPECT_EQ(says("_FIRST"), info->place == Place::First) << name;
    EXPECT_EQ(says("_MIDDLE"), info->place == Place::Middle) << name;
    EXPECT_EQ(says("_LAST"), info->place == Place::Last) << name;
    EXPECT_EQ(says("_IMM"), info->has(Header::Imm)) << name;
    EXPECT_EQ(says("_INV"), info->has(Header::Ieth)) << name;
    EXPECT_EQ(says("UD_"), info->has(Header::Deth)) << name;
    EXPECT_EQ(says("XRC_") && info->is_request(), info->has(Header::Xrceth)) << name;
    EXPECT_EQ(says("SEND_"), info->kind == Kind::Send) << name;
    EXPECT_EQ(says("READ_RESP"), info->kind == Kind::ReadResponse) << name;
    EXPECT_EQ(info->is_request(), !says("ACK") && !says("RESP")) << name;
    EXPECT_EQ(info->has_payload, !says("ACK") && !says("READ_REQUEST") && !says("FLUSH") &&
                                     !says("FETCH_ADD") && !says("CMP_SWAP"))
        << name;
  }
}

TEST(Opcode, GivesTheOperationForAPlaceInAMessage) {
  for (const bool immediate : {false, true}) {
    for (const Place place : {Place::First, Place::Middle, Place::Last, Place::Only}) {
      const auto* send = find_opcode(opcode_of(Service::Rc, send_operation(place, immediate)));
      const auto* write = find_opcode(opcode_of(Service::Rc, write_operation(place, immediate)));
      const auto* read = find_opcode(opcode_of(Service::Rc, read_response_operation(place)));
      ASSERT_TRUE(send != nullptr && write != nullptr && read != nullptr);
      EXPECT_EQ(send->kind, Kind::Send);
      EXPECT_EQ(write->kind, Kind::Write);
      EXPECT_EQ(read->kind, Kind::ReadResponse);
      // Immediate data travels with the end of a message only.
      const bool carried = immediate && send->ends();
      EXPECT_EQ(send->has(Header::Imm), carried);
      EXPECT_EQ(write->has(Header::Imm), carried);
      EXPECT_FALSE(send->has(Header::Ieth));
      for (const OpcodeInfo* info : {send, write, read}) EXPECT_EQ(info->place, place);
    }
  }
}

}  // namespace
}  // namespace softhca::wire
