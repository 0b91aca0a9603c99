#include "wire/icrc.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/prng.h"

namespace softhca::wire {
namespace {

using Buffer = std::vector<std::byte>;

Datagram masked_ipv4(std::optional<std::uint16_t> identification) {
  return {.source = Gid::of_ipv4({192, 168, 77, 2}),
          .destination = Gid::of_ipv4({192, 168, 77, 3}),
          .source_port = 0xc121,
          .identification = identification};
}
Datagram masked_ipv6() {
  return {.source = *Gid::parse("fd77::2"),
          .destination = *Gid::parse("fd77::3"),
          .source_port = 0xc121};
}

Buffer random_bytes(Prng& prng, std::size_t size) {
  Buffer bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(prng.next());
  return bytes;
}

// `packet` and its ICRC, as it would arrive.
Buffer sealed(const Datagram& datagram, Buffer packet) {
  const std::uint32_t crc = icrc(datagram, packet);
  packet.resize(packet.size() + kIcrcBytes);
  store_le(Bytes(packet), packet.size() - kIcrcBytes, crc);
  return packet;
}

// The definition, a bit at a time over one contiguous string: an independent second opinion.
std::uint32_t slow_icrc(const Datagram& d, ConstBytes packet) {
  Buffer covered(8 + kMaxIpUdpBytes);
  const std::size_t headers = emit_ip_udp(d, packet.size() + kIcrcBytes, Bytes(covered).subspan(8));
  covered.resize(8 + headers);
  covered.insert(covered.end(), packet.begin(), packet.end());
  const auto ones = [&](std::size_t at, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) covered.at(at + i) = std::byte{0xff};
  };
  ones(0, 8);
  if (d.is_ipv4()) {
    ones(8 + 1, 1), ones(8 + 8, 1), ones(8 + 10, 2);
  } else {
    covered[8] |= std::byte{0x0f};
    ones(8 + 1, 3), ones(8 + 7, 1);
  }
  ones(8 + headers - 2, 2);
  ones(8 + headers + 4, 1);
  std::uint32_t crc = 0xffff'ffff;
  for (const std::byte b : covered) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb8'8320 : 0);
  }
  return ~crc;
}

TEST(Icrc, IsThatOfAPacketThatLinuxSent) {
  // The first packet of tests/golden/send.pcap: RC SEND_ONLY of 64 bytes from Linux 6.1 rxe.
  Buffer packet(kBthBytes + 64);
  Headers headers;
  headers.bth = {
      .opcode = 0x04, .pkey = 0xffff, .dest_qpn = {0x11}, .ack_request = true, .psn = {0xabc000}};
  ASSERT_EQ(emit(headers, packet), kBthBytes);
  for (std::size_t i = 0; i < 64; ++i) packet[kBthBytes + i] = static_cast<std::byte>(0x21 + i);
  EXPECT_EQ(icrc(masked_ipv4(std::uint16_t{0xea1a}), packet), 0xb571'76d3u);
}

TEST(Icrc, IsWhatTheDefinitionGives) {
  Prng prng(6);
  for (int i = 0; i < 500; ++i) {
    Datagram d =
        prng.chance(1, 2) ? masked_ipv4(static_cast<std::uint16_t>(prng.next())) : masked_ipv6();
    d.source_port = static_cast<std::uint16_t>(prng.next());
    d.dont_fragment = prng.chance(1, 2);
    const Buffer packet = random_bytes(prng, kBthBytes + prng.below(600));
    ASSERT_EQ(icrc(d, packet), slow_icrc(d, packet));
  }
}

TEST(Icrc, DoesNotCoverWhatASwitchMayChange) {
  Prng prng(7);
  for (const Datagram& d : {masked_ipv4(std::uint16_t{77}), masked_ipv6()}) {
    Buffer packet = random_bytes(prng, 100);
    const std::uint32_t before = icrc(d, packet);
    Datagram routed = d;
    routed.hop_limit = 3;
    routed.traffic_class = 0x69;
    routed.flow_label = 0xabcde;
    packet[4] = std::byte{0xc0};  // FECN and BECN
    EXPECT_EQ(icrc(routed, packet), before);
  }
}

TEST(Icrc, CoversEverythingElse) {
  Prng prng(8);
  for (const Datagram& d : {masked_ipv4(std::uint16_t{77}), masked_ipv6()}) {
    const Buffer arrived = sealed(d, random_bytes(prng, 60));
    EXPECT_EQ(check_icrc(d, arrived), IcrcVerdict::Right);
    for (std::size_t bit = 0; bit < arrived.size() * 8; ++bit) {
      if (bit / 8 == 4) continue;
      Buffer flipped = arrived;
      flipped[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      EXPECT_EQ(check_icrc(d, flipped), IcrcVerdict::Wrong) << bit;
    }
    Datagram other = d;
    other.source_port ^= 1;
    EXPECT_EQ(check_icrc(other, arrived), IcrcVerdict::Wrong);
    other = d;
    other.source.bytes[15] ^= 1;
    EXPECT_EQ(check_icrc(other, arrived), IcrcVerdict::Wrong);
  }
}

TEST(Icrc, IsRightWithAHiddenIdentificationOfZero) {
  Prng prng(9);
  const Buffer arrived = sealed(masked_ipv4(std::uint16_t{0}), random_bytes(prng, 333));
  EXPECT_EQ(check_icrc(masked_ipv4(std::nullopt), arrived), IcrcVerdict::Right);
}

TEST(Icrc, IsSolvedForEveryOtherHiddenIdentification) {
  Prng prng(10);
  const Buffer packet = random_bytes(prng, 64);
  for (std::uint32_t id = 1; id < 0x1'0000; ++id) {
    const Buffer arrived = sealed(masked_ipv4(static_cast<std::uint16_t>(id)), packet);
    ASSERT_EQ(check_icrc(masked_ipv4(std::nullopt), arrived), IcrcVerdict::Solved) << id;
  }
}

TEST(Icrc, IsSolvedAtEveryPacketLength) {
  Prng prng(11);
  for (std::size_t size = kBthBytes; size <= kMaxHeaderBytes + kMaxMtu; ++size) {
    const auto id = static_cast<std::uint16_t>(1 + prng.below(0xffff));
    const Buffer arrived = sealed(masked_ipv4(id), random_bytes(prng, size));
    ASSERT_EQ(check_icrc(masked_ipv4(std::nullopt), arrived), IcrcVerdict::Solved) << size;
  }
}

TEST(Icrc, IsSolvedExactlyWhenSomeIdentificationMakesItRight) {
  // Damage of two bytes is sometimes what another identification would have done; whether it is,
  // trying all of them tells.
  Prng prng(12);
  for (int i = 0; i < 30; ++i) {
    Buffer arrived = sealed(masked_ipv4(std::uint16_t{4711}), random_bytes(prng, 20));
    if (i % 2 == 0) {
      store_le(Bytes(arrived), arrived.size() - kIcrcBytes,
               icrc(masked_ipv4(static_cast<std::uint16_t>(prng.next())),
                    ConstBytes(arrived).first(20)));
    } else {
      arrived[15 + prng.below(9)] ^= std::byte{0x41};
    }
    int right = 0;
    for (std::uint32_t id = 0; id < 0x1'0000; ++id)
      right +=
          check_icrc(masked_ipv4(static_cast<std::uint16_t>(id)), arrived) == IcrcVerdict::Right;
    const IcrcVerdict verdict = check_icrc(masked_ipv4(std::nullopt), arrived);
    ASSERT_LE(right, 1);
    ASSERT_EQ(verdict != IcrcVerdict::Wrong, right == 1);
  }
}

TEST(Icrc, StaysASixteenBitCheckWhenTheIdentificationIsHidden) {
  Prng prng(13);
  int accepted = 0;
  for (int i = 0; i < 65'536; ++i) {
    Buffer arrived = random_bytes(prng, 32);
    accepted += check_icrc(masked_ipv4(std::nullopt), arrived) != IcrcVerdict::Wrong;
  }
  EXPECT_LE(accepted, 8);  // one in 65536 is expected
}

TEST(Icrc, IsWrongForWhatIsShorterThanAPacket) {
  for (std::size_t size = 0; size < kBthBytes + kIcrcBytes; ++size) {
    EXPECT_EQ(check_icrc(masked_ipv4(std::nullopt), Buffer(size)), IcrcVerdict::Wrong);
    EXPECT_EQ(check_icrc(masked_ipv6(), Buffer(size)), IcrcVerdict::Wrong);
  }
}

// Many paths and sizes, so that what is kept is made anew often.
TEST(IcrcMemory, SaysWhatIcrcSays) {
  Prng prng(14);
  IcrcMemory memory;
  IcrcChanges changes;
  for (int i = 0; i < 3000; ++i) {
    Datagram datagram = prng.chance(1, 2) ? masked_ipv6() : masked_ipv4(std::uint16_t{0});
    datagram.source.bytes[15] = static_cast<std::uint8_t>(prng.below(3));
    datagram.destination.bytes[15] = static_cast<std::uint8_t>(prng.below(3));
    datagram.source_port = static_cast<std::uint16_t>(prng.below(3));
    datagram.destination_port = static_cast<std::uint16_t>(4790 + prng.below(2));
    if (datagram.is_ipv4()) datagram.identification = static_cast<std::uint16_t>(prng.below(3));
    Buffer arrived = sealed(datagram, random_bytes(prng, kBthBytes + 4 * prng.below(20)));
    const ConstBytes packet = ConstBytes(arrived).first(arrived.size() - kIcrcBytes);
    ASSERT_EQ(memory.icrc(datagram, packet), icrc(datagram, packet));
    const auto id = static_cast<std::uint16_t>(prng.next());
    ASSERT_EQ(changes.of(id, packet.size()), icrc_change(id, packet.size()));

    if (prng.chance(1, 2)) datagram.identification = std::nullopt;
    if (prng.chance(1, 2)) arrived[prng.below(arrived.size())] ^= std::byte{8};
    const auto likely = static_cast<std::uint16_t>(prng.below(4));
    ASSERT_EQ(memory.check(datagram, arrived, likely), check_icrc(datagram, arrived));
  }
}

TEST(IcrcMemory, AcceptsNothingShorterThanAPacket) {
  IcrcMemory memory;
  for (std::size_t size = 0; size < kBthBytes + kIcrcBytes; ++size)
    EXPECT_EQ(memory.check(masked_ipv6(), Buffer(size), 0), IcrcVerdict::Wrong);
}

TEST(Icrc, ChangesWithTheIdentificationAsItIsSaidTo) {
  Prng prng(11);
  for (int i = 0; i < 200; ++i) {
    Buffer packet(kBthBytes + prng.below(3000));
    for (std::byte& b : packet) b = static_cast<std::byte>(prng.next());
    const auto id = static_cast<std::uint16_t>(prng.next());
    const std::uint32_t right = icrc(masked_ipv4(id), packet);
    EXPECT_EQ(icrc(masked_ipv4(std::uint16_t{0}), packet) ^ icrc_change(id, packet.size()), right);
    const std::size_t covered = packet.size();
    packet.resize(covered + kIcrcBytes);
    store_le(packet, covered, right);
    EXPECT_EQ(find_identification(masked_ipv4(std::nullopt), packet), id);
  }
}

}  // namespace
}  // namespace softhca::wire
