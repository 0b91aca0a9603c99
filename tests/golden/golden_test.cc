// What Linux rxe sent, against src/wire. README.md here says where the packets are from.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "samples.h"
#include "wire/icrc.h"
#include "wire/packet.h"

namespace softhca::wire {
namespace {

// What packets.txt says of a file.
struct Listing {
  std::vector<std::string> lines;  // without the number in front
  int count = -1;
  int bad_icrc = -1;
};

std::map<std::string, Listing> read_listings() {
  std::map<std::string, Listing> listings;
  std::ifstream in(kFolder + "packets.txt");
  std::string line;
  Listing* current = nullptr;
  while (std::getline(in, line)) {
    if (line.starts_with("== ")) {
      current = &listings[line.substr(3)];
    } else if (current == nullptr) {
      ADD_FAILURE() << "line before the first file: " << line;
    } else if (line.find("RoCEv2 packets,") != line.npos) {
      EXPECT_EQ(
          std::sscanf(line.c_str(), "%d RoCEv2 packets, %d", &current->count, &current->bad_icrc),
          2);
    } else {
      current->lines.push_back(line.substr(5));
    }
  }
  return listings;
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    listings_ = read_listings();
    ASSERT_EQ(listings_.size(), 22u);
    for (const auto& entry : listings_) append_samples(entry.first, samples_);
  }

  const std::string& line_of(const Sample& sample) {
    return listings_.at(sample.file).lines.at(sample.number - 1);
  }
  bool is_bad_on_purpose(const Sample& sample) { return line_of(sample).ends_with(" BAD-ICRC"); }

  std::map<std::string, Listing> listings_;
  std::vector<Sample> samples_;
};

// The line of packets.txt for a packet, from our own reading of it.
std::string extension_line(Header header, const Headers& h) {
  switch (header) {
    case Header::None:
    case Header::Xrceth:
      break;  // rxe has no XRC
    case Header::Aeth:
      switch (h.aeth_kind) {
        case AethKind::Ack:
          return fmt::format(" credit {} msn {}", h.aeth_value, h.msn.value);
        case AethKind::RnrNak:
          return fmt::format(" RNR NAK timer {} msn {}", h.aeth_value, h.msn.value);
        case AethKind::Nak:
          return fmt::format(" NAK {} msn {}", h.aeth_value, h.msn.value);
      }
      break;
    case Header::Reth:
      return fmt::format(" va {:x} rkey {:08x} len {}", h.remote_address, h.rkey.value,
                         h.dma_length);
    case Header::AtomicEth:
      return fmt::format(" va {:x} rkey {:08x} swap/add {:x} cmp {:x}", h.remote_address,
                         h.rkey.value, h.swap_or_add, h.compare);
    case Header::AtomicAckEth:
      return fmt::format(" orig {:x}", h.original);
    case Header::Deth:
      return fmt::format(" qkey {:08x} src_qp {:06x}", h.qkey, h.source_qpn.value);
    case Header::Imm:
      return fmt::format(" imm {:08x}", h.immediate);
    case Header::Feth:
      return fmt::format(" feth {:08x}", h.flush);
    case Header::Ieth:
      return fmt::format(" inv {:08x}", h.invalidate_key.value);
  }
  return " ?";
}

std::string line_from(const Sample& sample, const Packet& packet) {
  const Headers& h = packet.headers;
  std::string line =
      fmt::format("{}>{} {:<20} qp {:06x} psn {:06x}", address_text(sample.datagram.source),
                  address_text(sample.datagram.destination), packet.info->name,
                  h.bth.dest_qpn.value, h.bth.psn.value);
  if (h.bth.ack_request) line += " A";
  if (h.bth.solicited) line += " SE";
  // packets.txt shows the RETH ahead of the FETH, whatever their order on the wire.
  constexpr Header kOrder[] = {Header::Aeth, Header::Reth, Header::AtomicEth, Header::AtomicAckEth,
                               Header::Deth, Header::Imm,  Header::Feth,      Header::Ieth};
  for (const Header header : kOrder)
    if (packet.info->has(header)) line += extension_line(header, h);
  line += fmt::format(" data {}", packet.payload.size());
  if (h.bth.pad != 0) line += fmt::format(" pad {}", h.bth.pad);
  return line;
}

TEST_F(Golden, HasAsManyPacketsAsTheListSays) {
  std::map<std::string, int> counts;
  for (const Sample& sample : samples_) ++counts[sample.file];
  int total = 0;
  for (const auto& [file, listing] : listings_) {
    EXPECT_EQ(counts[file], listing.count) << file;
    EXPECT_EQ(static_cast<int>(listing.lines.size()), listing.count) << file;
    EXPECT_EQ(listing.bad_icrc, file.starts_with("crafted-") ? 2 : 0) << file;
    total += listing.count;
  }
  EXPECT_EQ(total, static_cast<int>(samples_.size()));
  EXPECT_EQ(total, 429);
}

TEST_F(Golden, ReadsEveryPacketAsAnotherDecoderDid) {
  int bad_version = 0;
  int unknown_opcode = 0;
  std::vector<std::uint16_t> odd_pkeys;
  for (const Sample& sample : samples_) {
    SCOPED_TRACE(sample.where());
    const auto packet = parse(sample.udp_payload());
    if (!packet) {
      // Refused are the crafted packets with transport version 1 and with opcode 0x15, no others.
      EXPECT_TRUE(sample.file.starts_with("crafted-"));
      if (packet.error() == ParseError::BadVersion) ++bad_version;
      if (packet.error() == ParseError::UnknownOpcode) {
        ++unknown_opcode;
        EXPECT_NE(line_of(sample).find("RC_0x15"), std::string::npos);
      }
      continue;
    }
    const std::string suffix = is_bad_on_purpose(sample) ? " BAD-ICRC" : "";
    EXPECT_EQ(line_from(sample, *packet) + suffix, line_of(sample));
    if (packet->headers.bth.pkey != kDefaultPkey) odd_pkeys.push_back(packet->headers.bth.pkey);
    EXPECT_EQ(packet->headers.bth.pad, pad_for(packet->payload.size()));
  }
  EXPECT_EQ(bad_version, 2);
  EXPECT_EQ(unknown_opcode, 2);
  EXPECT_EQ(odd_pkeys, (std::vector<std::uint16_t>{0x1234, 0x7fff, 0x1234, 0x7fff}));
}

TEST_F(Golden, EmitsTheSameBytesAgain) {
  int reserved_set = 0;
  for (const Sample& sample : samples_) {
    SCOPED_TRACE(sample.where());
    const auto packet = parse(sample.udp_payload());
    if (!packet) continue;
    std::vector<std::byte> again(sample.ip_packet.size(), std::byte{0xff});
    const std::size_t front = emit_ip_udp(sample.datagram, sample.udp_payload().size(), again);
    ASSERT_EQ(front, sample.headers_bytes);
    // rxe leaves the UDP checksum 0, as we do; the crafted packets came through a plain UDP socket,
    // which fills it in.
    if (sample.file.starts_with("crafted-"))
      std::copy_n(sample.ip_packet.begin() + static_cast<long>(front) - 2, 2,
                  again.begin() + static_cast<long>(front) - 2);

    const Bytes rest = Bytes(again).subspan(front);
    std::size_t at = emit(packet->headers, rest);
    std::ranges::copy(packet->payload, rest.subspan(at).begin());
    at += packet->payload.size();
    std::ranges::fill(rest.subspan(at, packet->headers.bth.pad), std::byte{0});
    at += packet->headers.bth.pad;
    ASSERT_EQ(at + kIcrcBytes, rest.size());
    const std::uint32_t crc = icrc(sample.datagram, rest.first(at));
    store_le(rest, at, is_bad_on_purpose(sample) ? packet->icrc : crc);
    EXPECT_EQ(crc == packet->icrc, !is_bad_on_purpose(sample));

    // Compared to the bit, pad bytes too. One packet of each crafted file has the six reserved bits
    // beside FECN and BECN set; they are not kept, and the ICRC does not cover them.
    const bool reserved = (sample.udp_payload()[4] & std::byte{0x3f}) != std::byte{0};
    if (reserved) {
      ++reserved_set;
      rest[4] |= std::byte{0x3f};
    }
    EXPECT_TRUE(again == sample.ip_packet);
  }
  EXPECT_EQ(reserved_set, 2);
}

TEST_F(Golden, FindsEveryIcrcRightButThoseThatAreWrongOnPurpose) {
  std::map<std::string, int> wrong;
  for (const Sample& sample : samples_) {
    SCOPED_TRACE(sample.where());
    const IcrcVerdict verdict = check_icrc(sample.datagram, sample.udp_payload());
    EXPECT_EQ(verdict, is_bad_on_purpose(sample) ? IcrcVerdict::Wrong : IcrcVerdict::Right);
    if (verdict == IcrcVerdict::Wrong) ++wrong[sample.file];
  }
  EXPECT_EQ(wrong, (std::map<std::string, int>{{"crafted-6.1.pcap", 2}, {"crafted-6.12.pcap", 2}}));
}

TEST_F(Golden, SolvesTheIdentificationThatASocketHides) {
  int solved = 0;
  for (const Sample& sample : samples_) {
    SCOPED_TRACE(sample.where());
    Datagram hidden = sample.datagram;
    hidden.identification.reset();
    // Only an IPv4 packet has one, and 0 is what is tried first.
    const bool has_one = hidden.is_ipv4() && sample.datagram.identification != 0;
    const IcrcVerdict right = has_one ? IcrcVerdict::Solved : IcrcVerdict::Right;
    const IcrcVerdict verdict = check_icrc(hidden, sample.udp_payload());
    EXPECT_EQ(verdict, is_bad_on_purpose(sample) ? IcrcVerdict::Wrong : right);
    if (verdict == IcrcVerdict::Solved) ++solved;
  }
  EXPECT_GT(solved, 100);
}

}  // namespace
}  // namespace softhca::wire
