// Fields of the base header that decide whether a packet is for a queue pair, or do not.
#include "forge.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using trace::Counter;

constexpr std::uint8_t kWriteOnlyImmediate = 0x0b;
constexpr std::uint8_t kUcWriteOnlyImmediate = 0x2b;
constexpr std::uint8_t kUdSendOnly = 0x64;

struct HeaderTalk {
  explicit HeaderTalk(ConnectionSettings settings = {}) : pair(settings), forge(pair.world) {
    pair.post_receive(pair.connection.b, 1, into);
    heads = Forge::headers(is_datagram(settings) ? kUdSendOnly : kWriteOnlyImmediate,
                           pair.connection.b);
    heads.bth.psn = settings.psn_a;
    heads.qkey = kWorldQkey;
    heads.source_qpn = pair.connection.a.qp->qpn();
  }
  static bool is_datagram(const ConnectionSettings& s) { return s.type == transport::QpType::Ud; }

  // Whether `b` takes the packet for its own.
  bool is_received() {
    forge.send(heads, Forge::between(pair.connection.a, pair.connection.b));
    pair.settle(milliseconds(1));
    return !pair.completions(pair.connection.b).empty();
  }
  std::uint64_t count(Counter which) { return pair.world.host(1).counter(which); }

  Pair pair;
  Forge forge;
  std::array<driver::Sge, 1> into{pair.b.sge(0, 1024)};
  wire::Headers heads;
};

ConnectionSettings service(transport::QpType type) {
  ConnectionSettings settings;
  settings.type = type;
  return settings;
}

// IBTA 9.6.1 (header validation), 10.9 (partitioning): another partition's packet is dropped in
// silence and counted; reliable, unreliable and datagrams alike.
TEST(Header, APacketOfAnotherPartitionIsDropped) {
  for (const auto type : {transport::QpType::Rc, transport::QpType::Uc, transport::QpType::Ud}) {
    HeaderTalk t(service(type));
    if (type == transport::QpType::Uc) t.heads.bth.opcode = kUcWriteOnlyImmediate;
    for (const int pkey : {0x0000, 0x8000, 0x1234, 0xfffe, 0x7ffe}) {
      t.heads.bth.pkey = static_cast<std::uint16_t>(pkey);
      EXPECT_FALSE(t.is_received()) << pkey;
    }
    EXPECT_EQ(t.count(Counter::PacketsDropped), 5u);
    EXPECT_EQ(t.count(Counter::PacketsSent), 0u) << "no NAK";
    t.heads.bth.pkey = wire::kDefaultPkey;
    EXPECT_TRUE(t.is_received());
  }
}

// IBTA 10.9: a limited member (bit 15 is 0) may talk to a full one, which every queue pair here is.
TEST(Header, ALimitedMemberOfThePartitionIsHeard) {
  for (const auto type : {transport::QpType::Rc, transport::QpType::Ud}) {
    HeaderTalk t(service(type));
    t.heads.bth.pkey = 0x7fff;
    EXPECT_TRUE(t.is_received());
  }
}

// IBTA 17.2.8: path migration is an option, and the device does not have it: the bit says nothing.
TEST(Header, TheMigrationBitChangesNothing) {
  for (const bool migrated : {false, true}) {
    HeaderTalk t;
    t.heads.bth.migrated = migrated;
    EXPECT_TRUE(t.is_received());
    EXPECT_EQ(t.count(Counter::PacketsDropped), 0u);
    EXPECT_TRUE(t.pair.events_b.async.size() <= 1u) << "no event but that it is connected";
  }
}

// IBTA 9.2, A17.9: a switch may set FECN; with RoCEv2 it marks the IP header, and FECN is ignored.
TEST(Header, FecnIsNoMark) {
  HeaderTalk t;
  t.heads.bth.fecn = t.heads.bth.becn = true;
  EXPECT_TRUE(t.is_received());
  EXPECT_EQ(t.count(Counter::EcnMarked), 0u);
  EXPECT_EQ(t.count(Counter::CnpsSent), 0u);
  EXPECT_EQ(t.count(Counter::CnpsIgnored), 0u);
}

}  // namespace
}  // namespace softhca::sim
