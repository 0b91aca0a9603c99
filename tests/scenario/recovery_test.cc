// What happens when the cable loses, and when the peer is gone.
#include "driver/particulars.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

driver::SendRequest write_to(const Buffer& to, std::span<const driver::Sge> sges) {
  return {.wr_id = 1,
          .opcode = WorkOpcode::Write,
          .flags = {},
          .sges = sges,
          .immediate = 0,
          .remote_address = to.start.value,
          .rkey = to.key};
}

// From now on nothing comes through.
void cut_cable(World& world) {
  link::SimCosts cut;
  cut.loss = 1000;
  world.network().set_costs(cut);
}

// C13: a loss-free network sees no retransmission and no time-out.
TEST(Recovery, NothingIsSentTwiceWhenNothingIsLost) {
  WorldSettings settings;
  settings.network.delay = microseconds(5);
  ConnectionSettings connection;
  connection.timeout = 14;
  Pair pair(connection, settings);
  std::array sges{pair.a.sge(0, 8000)};
  for (int i = 0; i < 50; ++i) pair.post(pair.connection.a, write_to(pair.b, sges));
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).size(), 50u);
  EXPECT_EQ(pair.world.host(0).counter(trace::Counter::Retransmits), 0u);
  EXPECT_EQ(pair.world.host(0).counter(trace::Counter::Timeouts), 0u);
}

// C88, C9-139: a dead peer is given retry_cnt + 1 time-outs, and no more than 4 times that.
TEST(Recovery, ADeadPeerIsGivenUpWithinTheBound) {
  for (const std::uint8_t retries : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{7}}) {
    ConnectionSettings connection;
    connection.timeout = 10;
    connection.retry_count = retries;
    Pair pair(connection);
    cut_cable(pair.world);
    std::array sges{pair.a.sge(0, 64)};
    const Time start = pair.world.now();
    pair.post(pair.connection.a, write_to(pair.b, sges));
    std::vector<driver::Completion> done(1);
    pair.world.run_until([&] { return pair.connection.a.cq->poll(done) == 1; }, seconds(10));
    EXPECT_EQ(done[0].status, Status::RetriesExceeded);
    EXPECT_EQ(done[0].reason, trace::ReasonId::RetriesSpent);
    const Duration bound = transport::ack_timeout(10) * (retries + 1);
    EXPECT_GE(pair.world.now() - start, bound);
    EXPECT_LE(pair.world.now() - start, bound * 4);
    EXPECT_EQ(pair.connection.a.qp->state(), QpState::Error);
  }
}

// What a reason listener heard as warnings.
struct Warnings {
  explicit Warnings(Host& host) {
    host.engine().set_reason_listener([this](trace::Telling how, std::string_view about,
                                             const trace::Reason& reason,
                                             std::string_view particulars) {
      if (how == trace::Telling::Warning)
        told.push_back(std::string(about) + ":" + trace::reason_text(reason, particulars));
    });
  }
  bool has(const std::string& part) const {
    return std::ranges::any_of(
        told, [&](const std::string& one) { return one.find(part) != std::string::npos; });
  }
  std::vector<std::string> told;
};

TEST(Recovery, TheFirstTimeoutOfAConnectionSaysWhatWasHeardOfThePeer) {
  ConnectionSettings connection;
  connection.timeout = 10;
  connection.retry_count = 7;
  Pair pair(connection);
  Warnings warnings(pair.world.host(0));
  cut_cable(pair.world);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a, write_to(pair.b, sges));
  pair.world.pass(milliseconds(20));
  ASSERT_EQ(warnings.told.size(), 1u) << "not for each timeout";
  EXPECT_TRUE(warnings.has(driver::name_of(pair.connection.a.qp->qpn())));
  EXPECT_TRUE(warnings.has("peer_silent (reason 189, transport)")) << warnings.told[0];
  EXPECT_TRUE(warnings.has("Nothing was ever heard of it")) << warnings.told[0];
  EXPECT_TRUE(warnings.has("the interface's 9000")) << warnings.told[0];
  pair.world.network().set_costs({});
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).size(), 1u);
  EXPECT_EQ(warnings.told.size(), 1u);
}

TEST(Recovery, ATimeoutAfterThePeerWasHeardSaysHowLongAgo) {
  ConnectionSettings connection;
  connection.timeout = 10;
  Pair pair(connection);
  Warnings warnings(pair.world.host(0));
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a, write_to(pair.b, sges));
  pair.world.pass(milliseconds(1));
  ASSERT_EQ(pair.completions(pair.connection.a).size(), 1u);
  cut_cable(pair.world);
  pair.post(pair.connection.a, write_to(pair.b, sges));
  pair.settle();
  ASSERT_EQ(warnings.told.size(), 1u);
  EXPECT_TRUE(warnings.has("It was last heard ")) << warnings.told[0];
}

TEST(Recovery, AQueuePairThatIsGoneIsToldFromAPeerThatIs) {
  ConnectionSettings settings;
  settings.timeout = 10;
  Pair pair(settings);
  Warnings warnings(pair.world.host(0));
  const Connection other = connect(pair.world, pair.world.host(0), pair.world.host(1), settings);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a, write_to(pair.b, sges));
  pair.world.pass(milliseconds(1));
  const Buffer mine = pair.make_buffer(other.a, kAllRights);
  std::array its_sges{mine.sge(0, 64)};
  ASSERT_TRUE(pair.world.host(1).engine().destroy_qp(*other.b.qp, pair.world.now()));
  pair.post(other.a, write_to(pair.b, its_sges));
  pair.settle();
  EXPECT_TRUE(warnings.has("others heard its address"));
  EXPECT_EQ(warnings.told.size(), 1u);
  EXPECT_GE(pair.world.host(1).counter(trace::Counter::UnknownQpn), 1u);
}

// Without a retry left it fails, and says that.
TEST(Recovery, ATimeoutThatEndsTheConnectionIsNoWarning) {
  ConnectionSettings connection;
  connection.timeout = 10;
  connection.retry_count = 0;
  Pair pair(connection);
  Warnings warnings(pair.world.host(0));
  cut_cable(pair.world);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a, write_to(pair.b, sges));
  pair.settle();
  EXPECT_EQ(pair.connection.a.qp->state(), QpState::Error);
  EXPECT_TRUE(warnings.told.empty());
}

// C26: packets that outlive their queue pair meet nobody.
TEST(Recovery, PacketsForADestroyedQueuePairAreDropped) {
  WorldSettings settings;
  settings.network.delay = milliseconds(1);
  Pair pair({}, settings);
  std::array sges{pair.a.sge(0, 64)};
  pair.post(pair.connection.a, write_to(pair.b, sges));
  ASSERT_TRUE(pair.world.host(1).engine().destroy_qp(*pair.connection.b.qp, pair.world.now()));
  pair.world.pass(milliseconds(2));
  EXPECT_GE(pair.world.host(1).counter(trace::Counter::PacketsDropped), 1u);
  EXPECT_TRUE(pair.is_filled(pair.b, 0, kBufferBytes, std::byte{0x11}));
}

// C23: a fenced request waits for the data of READs before it, not only for their acknowledgement.
TEST(Recovery, AFencedWriteSendsWhatTheReadBeforeItBrought) {
  WorldSettings settings;
  settings.network.delay = microseconds(50);
  Pair pair({}, settings);
  pair.world.host(1).fill(pair.b.start, 4096, std::byte{0x99});
  std::array into{pair.a.sge(0, 4096)};
  driver::SendRequest read = write_to(pair.b, into);
  read.opcode = WorkOpcode::Read;
  pair.post(pair.connection.a, read);
  driver::SendRequest write = write_to(pair.b, into);
  write.remote_address += 4096;
  write.flags |= driver::SendFlag::Fence;
  pair.post(pair.connection.a, write);
  pair.settle();
  EXPECT_EQ(pair.completions(pair.connection.a).size(), 2u);
  EXPECT_TRUE(pair.is_filled(pair.b, 4096, 4096, std::byte{0x99}));
}

// C21: the remote region goes in the middle of a long READ.
TEST(Recovery, ARegionThatGoesInTheMiddleOfAReadEndsIt) {
  WorldSettings settings;
  settings.network.delay = microseconds(100);
  ConnectionSettings connection;
  connection.mtu = 256;
  connection.max_reads = 1;
  Pair pair(connection, settings);
  std::array into{pair.a.sge(0, kBufferBytes)};
  driver::SendRequest read = write_to(pair.b, into);
  read.opcode = WorkOpcode::Read;
  // Two of them, one at a time: the second asks for what is there no more.
  pair.post(pair.connection.a, read);
  read.wr_id = 2;
  pair.post(pair.connection.a, read);
  pair.world.pass(microseconds(250));
  ASSERT_TRUE(pair.world.host(1).engine().deregister_memory(pair.b.key, pair.world.now()));
  pair.settle();
  const auto done = pair.completions(pair.connection.a);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[1].status == Status::RemoteAccess || done[0].status == Status::RemoteAccess, true);
  EXPECT_EQ(pair.connection.a.qp->state(), QpState::Error);
}

TEST(Recovery, ALongMessageCrossesWithTimesThatCost) {
  WorldSettings settings;
  settings.host = cited_host_costs();
  settings.network = cited_network_costs();
  ConnectionSettings connection;
  connection.mtu = 4096;
  Pair pair(connection, settings);
  pair.world.host(0).fill(pair.a.start, kBufferBytes, std::byte{0x55});
  std::array sges{pair.a.sge(0, kBufferBytes)};
  const Time start = pair.world.now();
  pair.post(pair.connection.a, write_to(pair.b, sges));
  std::vector<driver::Completion> done(1);
  ASSERT_TRUE(
      pair.world.run_until([&] { return pair.connection.a.cq->poll(done) == 1; }, milliseconds(1)));
  EXPECT_TRUE(pair.is_filled(pair.b, 0, kBufferBytes, std::byte{0x55}));
  // Two cables and at least three bus round trips one after the other.
  EXPECT_GT(pair.world.now() - start, nanoseconds(2 * 500 + 3 * 557));
  EXPECT_LT(pair.world.now() - start, microseconds(20));
}

}  // namespace
}  // namespace softhca::sim
