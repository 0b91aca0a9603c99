// Matching of tags: the rendezvous, whatever the network and the program do to it.
#include "nic/tag_list.h"
#include "pair.h"

namespace softhca::sim {
namespace {

using driver::CompletionOpcode;
using trace::ReasonId;
using transport::QpState;
using transport::Status;
using transport::WorkOpcode;

// Host 0 announces a message to host 1, whose shared queue matches tags.
struct Announced {
  static constexpr std::uint32_t kMessageBytes = 6000;
  static constexpr std::uint64_t kTag = 0x77;

  explicit Announced(std::uint32_t room = kBufferBytes) {
    pd = *peer().alloc_pd();
    cq = *peer().create_cq(32, nullptr, now());
    srq = *peer().create_srq({.pd = pd, .cq = cq, .capacity = {8, 1, 8}}, now());
    ConnectionSettings settings;
    settings.srq_b = srq;
    settings.pd_b = pd;
    ends = connect(world, world.host(0), world.host(1), settings);
    source = make_buffer(ends.a);
    header = make_buffer(ends.a);
    target = make_buffer(ends.b);
    ordinary = make_buffer(ends.b);
    world.host(0).fill(source.start, kBufferBytes, std::byte{0x5c});
    const std::array sges{ordinary.sge(0, 64)};
    EXPECT_TRUE(peer().post_receive(*srq, {55, sges}, false, now()));
    const std::array tagged{target.sge(0, room / 2), target.sge(room / 2, room - room / 2)};
    const auto added = peer().post_tags(*srq,
                                        {.operation = CompletionOpcode::TagAdded,
                                         .wr_id = 1,
                                         .receive_wr_id = 9,
                                         .tag = kTag,
                                         .mask = 0xff,
                                         .sges = tagged},
                                        now());
    EXPECT_TRUE(added);
    const std::array answer{ordinary_of_sender().sge(0, 64)};
    EXPECT_TRUE(world.host(0).engine().post_receive(*ends.a.qp, {70, answer}, false, now()));
  }

  Time now() const { return world.now(); }
  driver::Engine& peer() { return world.host(1).engine(); }
  Buffer make_buffer(const Connection::End& end) {
    const VirtAddr start = end.host->allocate(kBufferBytes);
    end.host->fill(start, kBufferBytes, std::byte{0x11});
    const auto region =
        end.host->engine().register_memory(end.pd, start, kBufferBytes, {start.value},
                                           driver::AccessFlags::of_bits(kAllRights), now());
    return {end.host, start, region->key};
  }
  Buffer ordinary_of_sender() { return answers = make_buffer(ends.a); }
  void announce(std::uint32_t rkey, std::uint32_t send_bytes = 32) {
    std::vector<std::byte> bytes(32);
    bytes[0] = std::byte{1};
    store_be(Bytes(bytes), 8, kTag);
    store_be(Bytes(bytes), 16, source.start.value);
    store_be(Bytes(bytes), 24, rkey);
    store_be(Bytes(bytes), 28, kMessageBytes);
    world.host(0).store(header.start, bytes);
    const std::array sges{header.sge(0, send_bytes)};
    driver::SendRequest request = remote_request(WorkOpcode::Send, sges, 0, {});
    request.flags |= driver::SendFlag::Signaled;
    ASSERT_TRUE(world.host(0).engine().post_send(*ends.a.qp, request, false, now()));
    world.pass(seconds(5));
  }
  static std::vector<driver::Completion> taken(driver::CompletionQueue& from) {
    std::vector<driver::Completion> all(32);
    all.resize(from.poll(all));
    return all;
  }

  World world{WorldSettings{}};
  std::uint32_t pd = 0;
  driver::CompletionQueue* cq = nullptr;
  driver::SharedReceiveQueue* srq = nullptr;
  Connection ends;
  Buffer source, header, target, ordinary, answers;
};

TEST(Tags, ARendezvousFetchesTheMessageAndTellsThePeer) {
  for (const std::uint32_t trouble : {0u, 150u}) {
    Announced s;
    s.world.network().set_costs(
        {.delay = microseconds(1), .loss = trouble, .duplication = trouble, .reordering = trouble});
    s.announce(s.source.key.value);
    const auto done = Announced::taken(*s.cq);
    ASSERT_EQ(done.size(), 2u);
    for (const driver::Completion& one : done) {
      EXPECT_EQ(one.status, Status::Success);
      EXPECT_EQ(one.opcode, CompletionOpcode::ReceiveTagged);
      EXPECT_EQ(one.wr_id, 9u);
    }
    EXPECT_TRUE(done[0].tag_matched && !done[0].tag_data_here);
    EXPECT_EQ(done[0].tag, Announced::kTag);
    EXPECT_TRUE(done[1].tag_data_here && !done[1].tag_matched);
    EXPECT_EQ(done[1].byte_count, Announced::kMessageBytes);
    const auto there = s.world.host(1).load(s.target.start, kBufferBytes);
    for (std::size_t i = 0; i < there.size(); ++i)
      ASSERT_EQ(there[i], i < Announced::kMessageBytes ? std::byte{0x5c} : std::byte{0x11}) << i;
    const auto sent = Announced::taken(*s.ends.a.cq);  // its send, and what it was told
    ASSERT_EQ(sent.size(), 2u);
    const auto told = std::ranges::find(sent, 70u, &driver::Completion::wr_id);
    ASSERT_NE(told, sent.end());
    EXPECT_EQ(told->byte_count, nic::TagHeader::kBytes);
    const auto header = nic::TagHeader::of(s.world.host(0).load(s.answers.start, 16));
    ASSERT_TRUE(header);
    EXPECT_EQ(header->operation, nic::TagOperation::Finished);
    EXPECT_EQ(header->tag, Announced::kTag);
    EXPECT_EQ(s.srq->waiting(), 1u);  // the ordinary receive was not needed
  }
}

TEST(Tags, ARendezvousThatIsRefusedFailsTheReceiveAndTheQueuePair) {
  Announced s;
  s.announce(s.source.key.value + 1);
  const auto done = Announced::taken(*s.cq);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::Success);
  EXPECT_EQ(done[1].wr_id, 9u);
  EXPECT_EQ(done[1].status, Status::RemoteAccess);
  EXPECT_EQ(s.peer().query_qp(*s.ends.b.qp).state, QpState::Error);
  const auto there = s.world.host(1).load(s.target.start, kBufferBytes);
  EXPECT_TRUE(std::ranges::all_of(there, [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST(Tags, AnAnnouncementOfMoreThanTheReceiveHoldsIsUnexpected) {
  Announced s(Announced::kMessageBytes - 1);
  s.announce(s.source.key.value);
  const auto done = Announced::taken(*s.cq);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 55u);
  EXPECT_FALSE(done[0].tag_matched);
  EXPECT_EQ(done[0].byte_count, 32u);
}

TEST(Tags, AnAnnouncementThatIsTooLongFailsTheReceiveOnceAndFetchesNothing) {
  Announced s;
  s.announce(s.source.key.value, nic::kMaxRendezvousBytes + 1);
  const auto done = Announced::taken(*s.cq);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 9u);
  EXPECT_EQ(done[0].status, Status::LocalLength);
  const auto there = s.world.host(1).load(s.target.start, kBufferBytes);
  EXPECT_TRUE(std::ranges::all_of(there, [](std::byte b) { return b == std::byte{0x11}; }));
}

}  // namespace
}  // namespace softhca::sim
