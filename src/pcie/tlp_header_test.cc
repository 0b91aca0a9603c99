#include "pcie/tlp_header.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "base/prng.h"
#include "base/range.h"

namespace softhca::pcie {
namespace {

constexpr RequesterId kDevice{0x0100};

std::vector<std::string> texts(const Access& access) {
  std::uint8_t tag = 5;
  std::vector<std::string> lines;
  for (const TlpHeader& header : list_headers(access, {}, kDevice, tag))
    lines.push_back(tlp_text(header));
  return lines;
}

TEST(TlpHeader, ReadsAsOneLine) {
  const std::vector<std::string> read = {
      "MRd  01:00.0 tag 0x05 addr 0x7000001010 128 DW be f/f",
      "CplD 00:00.0 -> 01:00.0 tag 0x05 60 DW, 512 bytes left, lower address 0x10",
      "CplD 00:00.0 -> 01:00.0 tag 0x05 64 DW, 272 bytes left, lower address 0x00",
      "CplD 00:00.0 -> 01:00.0 tag 0x05 4 DW, 16 bytes left, lower address 0x00",
      "MRd  01:00.0 tag 0x06 addr 0x7000001210 1 DW be e/0",
      "CplD 00:00.0 -> 01:00.0 tag 0x06 1 DW, 3 bytes left, lower address 0x11"};
  std::vector<std::string> both = texts({{0x70'0000'1010}, 512, Direction::Read});
  std::uint8_t tag = 6;
  for (const TlpHeader& h : list_headers({{0x70'0000'1211}, 3, Direction::Read}, {}, kDevice, tag))
    both.push_back(tlp_text(h));
  EXPECT_EQ(both, read);
  EXPECT_EQ(tag, 7);
  EXPECT_EQ(texts({{0x0ffe}, 7, Direction::Write}),
            (std::vector<std::string>{"MWr  01:00.0 addr 0xffc 1 DW be c/0",
                                      "MWr  01:00.0 addr 0x1000 2 DW be f/1"}));
}

TEST(TlpHeader, SaysThatNobodyServesARead) {
  const TlpHeader header = unsupported_header({TlpKind::MemoryRead, {0x1234}, 64}, kDevice, 9);
  EXPECT_EQ(header.status, CompletionStatus::UnsupportedRequest);
  EXPECT_EQ(header.length_dw, 0u);
  EXPECT_EQ(tlp_text(header),
            "Cpl  00:00.0 -> 01:00.0 tag 0x09 unsupported request, 64 bytes left");
}

TEST(TlpHeader, IsLongerForAddressesBeyond4GiB) {
  const auto dws = [](std::uint64_t at) {
    return request_header({TlpKind::MemoryRead, {at}, 4}, kDevice, 0).header_dw();
  };
  EXPECT_EQ(dws(0xffff'fffc), 3u);
  EXPECT_EQ(dws(0x1'0000'0000), 4u);
}

// What is true of every request: which bytes it means follows from its fields alone.
void check_request(const TlpHeader& h, BusAddr at, std::uint64_t bytes) {
  ASSERT_EQ(h.address.value % 4, 0u);
  ASSERT_GE(h.length_dw, 1u);
  ASSERT_LE(h.length_dw, 1024u);
  const auto skipped = static_cast<unsigned>(std::countr_zero(h.first_enable));
  ASSERT_EQ(h.address.value + skipped, at.value);
  const unsigned last = h.length_dw == 1 ? h.first_enable : h.last_enable;
  ASSERT_EQ(h.last_enable == 0, h.length_dw == 1);
  const auto unused = static_cast<unsigned>(std::countl_zero(static_cast<std::uint8_t>(last))) - 4;
  ASSERT_EQ(h.length_dw * 4u - skipped - unused, bytes);
  // Enabled bytes have no holes.
  ASSERT_TRUE(h.length_dw != 1 || std::has_single_bit((h.first_enable >> skipped) + 1u));
  ASSERT_TRUE(h.length_dw == 1 || std::has_single_bit(h.last_enable + 1u));
}

void check_access(const Access& access, const LinkLimits& limits, std::uint8_t tag) {
  const std::vector<Tlp> tlps = list_tlps(access, limits);
  const std::uint8_t first_tag = tag;
  const std::vector<TlpHeader> headers = list_headers(access, limits, kDevice, tag);
  ASSERT_EQ(headers.size(), tlps.size());
  std::uint64_t covered = 0;
  std::uint64_t carried = 0;
  std::uint32_t left = 0;  // of the read that is being answered
  std::uint8_t reads = 0;
  for (std::size_t i = 0; i < tlps.size(); ++i) {
    const TlpHeader& h = headers[i];
    ASSERT_EQ(h.requester, kDevice);
    ASSERT_EQ(h.kind, tlps[i].kind);
    if (h.kind != TlpKind::Completion) {
      ASSERT_EQ(left, 0u);
      check_request(h, tlps[i].at, tlps[i].bytes);
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_LE(h.length_dw * 4u, (h.kind == TlpKind::MemoryRead ? limits.mrrs : limits.mps) + 4);
      covered += tlps[i].bytes;
      if (h.kind == TlpKind::MemoryRead) {
        ASSERT_EQ(h.tag, static_cast<std::uint8_t>(first_tag + reads++));
        left = tlps[i].bytes;
      }
      continue;
    }
    ASSERT_EQ(h.tag, static_cast<std::uint8_t>(first_tag + reads - 1));
    ASSERT_EQ(h.byte_count, left) << "what is missing, this piece included";
    ASSERT_EQ(h.lower_address, tlps[i].at.value & 0x7f);
    ASSERT_EQ(h.length_dw, (h.lower_address % 4u + tlps[i].bytes + 3) / 4);
    left -= tlps[i].bytes;
    carried += tlps[i].bytes;
  }
  ASSERT_EQ(left, 0u);
  ASSERT_EQ(covered, access.bytes);
  ASSERT_EQ(carried, access.direction == Direction::Read ? access.bytes : 0);
  ASSERT_EQ(tag, static_cast<std::uint8_t>(first_tag + reads));
}

TEST(TlpHeader, AgreesWithTheBytesThatItStandsForAtEveryAlignment) {
  Prng prng(12);
  std::size_t seen = 0;
  for (int round = 0; seen < 400'000; ++round) {
    LinkLimits limits;
    limits.mps = 128u << prng.below(6);
    limits.mrrs = 128u << prng.below(6);
    limits.rcb = 64u << prng.below(2);
    const Access access{{prng.next() >> (8 + prng.below(40))},
                        1 + prng.below(prng.chance(1, 2) ? 40 : 9'000),
                        prng.chance(1, 2) ? Direction::Read : Direction::Write};
    seen += count_tlps(access, limits).total();
    check_access(access, limits, static_cast<std::uint8_t>(prng.next()));
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST(TlpHeader, ComesBackFromARecordingAsItWas) {
  std::vector<std::uint64_t> cells(trace::kCounterCount);
  trace::Journal journal(1 << 12);
  trace::Tracer tracer(trace::Counters(cells), &journal);
  Prng prng(13);
  std::vector<TlpHeader> expected;
  std::uint8_t tag = 250;
  for (int i = 0; i < 50; ++i) {
    const Access access{{prng.next() >> 20},
                        1 + prng.below(5'000),
                        prng.chance(1, 2) ? Direction::Read : Direction::Write};
    std::uint8_t again = tag;
    const auto headers = list_headers(access, {}, kDevice, again);
    expected.insert(expected.end(), headers.begin(), headers.end());
    emit_tlps(tracer, access, {}, kDevice, tag, Time{i});
  }
  emit_refused(tracer, {{0x1ffe}, 300, Direction::Read}, {}, kDevice, tag, {});
  const Tlp refused{TlpKind::MemoryRead, {0x1ffe}, 2};
  const auto last = static_cast<std::uint8_t>(tag - 1);
  expected.push_back(request_header(refused, kDevice, last));
  expected.push_back(unsupported_header(refused, kDevice, last));
  emit_refused(tracer, {{0x1000}, 300, Direction::Write}, {}, kDevice, tag, {});
  expected.push_back(request_header({TlpKind::MemoryWrite, {0x1000}, 256}, kDevice, 0));

  std::vector<TlpHeader> found;
  for (const trace::Event& event : journal.events()) found.push_back(*tlp_of_event(event));
  EXPECT_EQ(found, expected);
}

TEST(TlpHeader, IsNotMadeFromNonsense) {
  trace::Event event;
  EXPECT_FALSE(tlp_of_event(event).has_value());
  event.kind = trace::EventKind::Tlp;
  event.fields = {0, 0x1000, 5000, 0, 0};
  EXPECT_FALSE(tlp_of_event(event).has_value()) << "longer than any";
  event.fields = {9, 0x1000, 4, 0, 0};
  EXPECT_FALSE(tlp_of_event(event).has_value());
  event.fields = {0, 0x1000, 0, 0, 0};
  EXPECT_FALSE(tlp_of_event(event).has_value());
}

}  // namespace
}  // namespace softhca::pcie
