#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/range.h"
#include "nic/device.h"

namespace softhca::nic {
namespace {

using transport::QpState;
using transport::WorkOpcode;

// A bus whose addresses are places in a stretch of bytes.
class Stretch final : public pcie::DmaPort {
 public:
  pcie::Outcome resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) override {
    if (!Range<BusSpace>{{0}, memory.size()}.contains(access.at, access.bytes))
      return {.reason = {.id = trace::ReasonId::IommuNotMapped}, .ready_at = now};
    EXPECT_TRUE(spans.append({{access.at.value}, access.bytes}));
    return {.done_bytes = access.bytes, .ready_at = now};
  }
  pcie::Outcome read(std::span<const pcie::Span> from, Bytes to, Time now) override {
    std::memcpy(to.data(), memory.data() + from[0].start.value, to.size());
    return {.done_bytes = to.size(), .ready_at = now};
  }
  pcie::Outcome write(std::span<const pcie::Span>, ConstBytes from, Time now) override {
    return {.done_bytes = from.size(), .ready_at = now};
  }
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
};

// A peer that executes as many requests of each call as it is told to.
struct Around final : SameHost, Neighbour {
  struct Call {
    WorkOpcode kind{};
    std::vector<DirectRequest> requests;
    std::uint64_t local_bytes{};
    wire::Psn next;
  };
  Found find(const Connection&) override {
    ++finds;
    if (!is_here) return {.neighbour = nullptr, .why_not = trace::ReasonId::DirectOtherUser};
    return {.neighbour = std::shared_ptr<Neighbour>(this, [](Neighbour*) {}), .why_not = {}};
  }
  void wait_until_left() override {}
  void lock_atomics() override {}
  void unlock_atomics() override {}
  std::size_t execute(const Connection&, wire::Psn next, WorkOpcode kind,
                      std::span<const DirectRequest> requests, std::span<const pcie::Span> local,
                      Time) override {
    Call call{kind, {requests.begin(), requests.end()}, 0, next};
    for (const pcie::Span& span : local) call.local_bytes += span.bytes;
    calls.push_back(call);
    return std::min(requests.size(), at_most);
  }
  std::optional<NextReceive> next_receive(const Connection&, wire::Psn) override {
    return NextReceive{.number = receive_done, .generation = 3};
  }
  Delivered deliver(const Connection&, wire::Psn next, const Delivery& what,
                    std::span<const pcie::Span> local, PostedReceives&,
                    const std::function<bool()>& tell, Time) override {
    if (receive_posted == what.receive.number) return Delivered::NoReceive;
    if (answer != Delivered::Yes) return answer;
    Placed placed{.part = what, .bytes = 0, .next = next, .is_last = static_cast<bool>(tell)};
    for (const pcie::Span& span : local) placed.bytes += span.bytes;
    placed_parts.push_back(placed);
    return tell && !tell() ? Delivered::No : Delivered::Yes;
  }
  struct Placed {
    Delivery part;
    std::uint64_t bytes{};
    wire::Psn next;
    bool is_last{};
  };
  std::uint32_t receive_done = 0;
  std::uint32_t receive_posted = 0;
  Delivered answer = Delivered::Yes;
  std::vector<Placed> placed_parts;
  bool is_here = true;
  std::size_t at_most = SIZE_MAX;
  int finds = 0;
  std::vector<Call> calls;
};

// Keeps the notices that it is given, as long as it has room.
class Notices final : public link::Link {
 public:
  std::size_t send(std::span<const link::Frame> frames, Time) override {
    for (const link::Frame& frame : frames) {
      EXPECT_FALSE(frame.has_icrc);
      const auto notice = PlacedNotice::of(frame.bytes);
      EXPECT_TRUE(notice);
      if (notice) sent.push_back(*notice);
    }
    return frames.size();
  }
  std::size_t receive(std::span<link::Frame>, Time) override { return 0; }
  std::vector<local::RingPlace> waiting() override { return {{3, 64}}; }
  bool has_received(std::span<const local::RingPlace> places) override {
    EXPECT_EQ(places.size(), 1u);
    return all_came;
  }
  Time next_arrival() const override { return Time::never(); }
  link::Way way_to(const wire::Datagram&, wire::Qpn, Time) override {
    return {.is_memory = true, .why_not = {}};
  }
  bool has_memory_room(const wire::Datagram&, wire::Qpn, Time) override { return has_room; }
  bool has_room = true;
  bool all_came = true;  // what lay there when it was asked
  std::vector<PlacedNotice> sent;
};

struct Initiator {
  static constexpr std::uint32_t kSlots = 64, kStride = 128;
  static constexpr std::uint64_t kBuffer = 0x10000, kBufferBytes = 0xf0000;
  static constexpr std::uint64_t kReceiveRing = 0x8000;
  static constexpr std::uint32_t kReceiveSlots = 8, kReceiveStride = 64;
  static constexpr std::uint32_t kSrqn = 0x100;
  static constexpr Time kNow{1'000'000};

  // With a shared queue that matches tags, if it is named, or receives of its own.
  explicit Initiator(std::uint32_t srqn = 0) : srqn(srqn) {
    if (srqn != 0)
      shared.create({.srqn = srqn, .pd = 1, .xrcd = 0, .cqn = 1, .tags = 4, .ring = kReceives});
    key = *keys.insert(
        {.pd = 1, .access = 7, .start = 0, .bytes = kBufferBytes, .bus = {kBuffer}, .pages = {}});
    transport::QpAttributes a;
    a.path_mtu_bytes = 1024;
    a.dest_qpn = {9};
    a.rq_psn = {50};
    a.sq_psn = {70};
    a.timeout = 14;
    a.retry_count = 7;
    a.rnr_retry = 7;
    a.max_reads = a.max_dest_reads = 4;
    a.access_flags = 15;
    wire::Datagram path;
    path.destination.bytes[15] = 1;
    qp.to_rtr(a, path);
    qp.to_rts(a);
  }
  // Puts a request into the ring; ring() tells of it.
  void put(WorkOpcode opcode, std::uint32_t bytes, bool fence = false) {
    const Bytes slot = Bytes(port.memory).subspan((posted & (kSlots - 1)) * kStride, kStride);
    const auto bit = [](WqeFlag flag) { return static_cast<unsigned>(flag); };
    store_le(slot, 0,
             SendWqe{.cookie = posted,
                     .remote_address = 0x4000,
                     .rkey = 0x77,
                     .index = posted,
                     .opcode = static_cast<std::uint8_t>(opcode),
                     .flags = static_cast<std::uint8_t>(bit(WqeFlag::Signaled) |
                                                        (fence ? bit(WqeFlag::Fence) : 0)),
                     .segments = 1});
    store_le(slot, sizeof(SendWqe), Segment{0, bytes, key.value});
    ++posted;
  }
  void ring(Time now = kNow) { qp.on_send_doorbell(posted, now); }
  void post(WorkOpcode opcode, std::uint32_t bytes, Time now = kNow) {
    put(opcode, bytes);
    ring(now);
  }
  void post_receive(std::uint32_t bytes) {
    const Bytes slot = Bytes(port.memory).subspan(kReceiveRing + received * kReceiveStride);
    store_le(slot, 0, ReceiveWqe{.cookie = received, .index = received, .segments = 1});
    store_le(slot, sizeof(ReceiveWqe), Segment{0, bytes, key.value});
    qp.on_receive_doorbell(++received, kNow);
  }
  // A packet from the peer.
  void take(wire::Operation operation, std::uint32_t psn, ConstBytes payload) {
    wire::Packet packet;
    packet.info = wire::find_opcode(wire::opcode_of(wire::Service::Rc, operation));
    packet.headers.bth.psn = {psn};
    packet.payload = payload;
    qp.on_packet(packet, {}, kNow);
  }
  std::size_t packets(Time now = kNow) {
    std::size_t count = 0;
    while (const auto out = qp.poll_packet(now, Turn::Requests)) {
      last = out->emission.headers.bth.psn;
      ++count;
    }
    return count;
  }
  std::vector<std::uint64_t> completions() {
    std::vector<std::uint64_t> cookies;
    while (const auto done = qp.poll_completion(kNow)) {
      EXPECT_EQ(done->cqe.status, 0);
      cookies.push_back(done->cqe.cookie);
    }
    return cookies;
  }
  // The peer acknowledges all that was sent.
  void acknowledge(Time now = kNow) {
    wire::Packet ack;
    ack.info = wire::find_opcode(wire::opcode_of(wire::Service::Rc, wire::Operation::Acknowledge));
    ack.headers.bth.psn = last;
    ack.headers.aeth_kind = wire::AethKind::Ack;
    qp.on_packet(ack, {}, now);
  }

  static constexpr QueuePlace kReceives{{kReceiveRing}, kReceiveSlots, kReceiveStride, 2};
  std::uint32_t srqn;
  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  std::vector<KeyRecord> records = std::vector<KeyRecord>(4);
  KeyTable keys{Tables{.keys = records, .translations = {}, .qps = {}}};
  Stretch port;
  HostMemory memory{port, keys, tracer};
  std::vector<SrqRecord> srq_records = std::vector<SrqRecord>(1);
  SharedReceiveQueues shared{srq_records, 0x100, 0, memory, tracer};
  trace::QpCounters counters;
  transport::CongestionSettings congestion;
  Around around;
  Notices notices;
  QueuePair qp{{.qpn = {5},
                .pd = 1,
                .type = transport::QpType::Rc,
                .srqn = srqn,
                .send_cqn = 1,
                .receive_cqn = 1,
                .send = {{0}, kSlots, kStride, 2},
                .receive = srqn == 0 ? kReceives : QueuePlace{}},
               memory,
               shared,
               tracer,
               counters,
               congestion,
               nullptr,
               &around,
               &notices};
  wire::Key key;
  std::uint32_t posted = 0;
  std::uint32_t received = 0;  // receives that were posted
  wire::Psn last;
};

using Cookies = std::vector<std::uint64_t>;

TEST(DirectRequests, CompleteInTheCallThatPostsThemWithoutAPacket) {
  for (const WorkOpcode opcode : {WorkOpcode::Write, WorkOpcode::Read, WorkOpcode::FetchAdd}) {
    Initiator end;
    end.post(opcode, 8);
    EXPECT_EQ(end.completions(), Cookies{0});
    EXPECT_EQ(end.packets(), 0u);
    ASSERT_EQ(end.around.calls.size(), 1u);
    EXPECT_EQ(end.around.calls[0].kind, opcode);
    EXPECT_EQ(end.around.calls[0].requests[0].rkey.value, 0x77u);
    EXPECT_EQ(end.around.calls[0].next.value, 70u) << "no PSN was used";
    EXPECT_EQ(end.counters.get(trace::QpCounter::DirectRequests), 1u);
  }
}

TEST(DirectRequests, OfOneListGoTogether) {
  Initiator end;
  for (int i = 0; i < 5; ++i) end.put(WorkOpcode::Write, 16);
  end.ring();
  ASSERT_EQ(end.around.calls.size(), 1u);
  EXPECT_EQ(end.around.calls[0].requests.size(), 5u);
  EXPECT_EQ(end.around.calls[0].local_bytes, 80u);
  EXPECT_EQ(end.completions(), (Cookies{0, 1, 2, 3, 4}));
}

TEST(DirectRequests, KeepTheirOrderAmongKinds) {
  Initiator end;
  for (const WorkOpcode opcode : {WorkOpcode::Write, WorkOpcode::Read, WorkOpcode::Write})
    end.put(opcode, 16);
  end.ring();
  ASSERT_EQ(end.around.calls.size(), 3u);
  EXPECT_EQ(end.around.calls[1].kind, WorkOpcode::Read);
  EXPECT_EQ(end.completions(), (Cookies{0, 1, 2}));
}

TEST(DirectRequests, OfSomeSizeGoPieceByPiece) {
  Initiator end;
  end.post(WorkOpcode::Read, 0x80000);
  std::uint64_t bytes = 0;
  for (const Around::Call& call : end.around.calls) {
    EXPECT_EQ(call.requests[0].address, 0x4000 + bytes);
    EXPECT_EQ(call.requests[0].bytes, call.local_bytes);
    bytes += call.local_bytes;
  }
  EXPECT_GT(end.around.calls.size(), 1u);
  EXPECT_EQ(bytes, 0x80000u);
  EXPECT_EQ(end.completions(), Cookies{0});
}

TEST(DirectRequests, WithoutBytesArePackets) {
  Initiator end;
  end.post(WorkOpcode::Write, 0);
  EXPECT_TRUE(end.around.calls.empty());
  EXPECT_EQ(end.packets(), 1u);
}

// What is small keeps the pace of those before it that are always packets; what is large waits.
TEST(DirectRequests, BehindPacketsGoByPacketsOrWait) {
  Initiator small;
  small.put(WorkOpcode::SendInvalidate, 8);
  small.put(WorkOpcode::Write, 8);
  small.ring();
  EXPECT_EQ(small.packets(), 2u);
  EXPECT_TRUE(small.around.calls.empty());

  Initiator large;
  large.put(WorkOpcode::SendInvalidate, 8);
  large.put(WorkOpcode::Write, 0x10000);
  large.put(WorkOpcode::SendInvalidate, 8);
  large.ring();
  EXPECT_EQ(large.packets(), 1u);
  EXPECT_TRUE(large.around.calls.empty());
  large.acknowledge();
  EXPECT_EQ(large.around.calls.size(), 1u);
  EXPECT_EQ(large.around.calls[0].next.value, 71u);
  EXPECT_EQ(large.completions(), (Cookies{0, 1}));
  EXPECT_EQ(large.packets(), 1u) << "the one behind it";
}

TEST(DirectRequests, ThatAreNotPlainlyAllowedGoByPacketsInTheirTurn) {
  Initiator end;
  end.around.at_most = 1;
  for (int i = 0; i < 3; ++i) end.put(WorkOpcode::Write, 8);
  end.ring();
  EXPECT_EQ(end.completions(), Cookies{0});
  EXPECT_EQ(end.packets(), 2u);
  end.acknowledge();
  EXPECT_EQ(end.completions(), (Cookies{1, 2}));
}

// A peer that refuses is not asked for each request; later it is, and longer refusals ask less.
TEST(DirectRequests, ArePacketsForAWhileAfterARefusal) {
  Initiator end;
  end.around.at_most = 0;
  end.post(WorkOpcode::Write, 8);
  end.post(WorkOpcode::Write, 8);
  EXPECT_EQ(end.around.calls.size(), 1u);
  EXPECT_EQ(end.packets(), 2u);
  const Time later = Initiator::kNow + milliseconds(2);
  end.around.at_most = SIZE_MAX;
  end.post(WorkOpcode::Write, 8, later);
  EXPECT_EQ(end.around.calls.size(), 1u) << "what is before it has to be acknowledged";
  EXPECT_EQ(end.packets(later), 0u);
  end.acknowledge(later);
  EXPECT_EQ(end.around.calls.size(), 2u);
  EXPECT_EQ(end.completions(), (Cookies{0, 1, 2}));
}

TEST(DirectRequests, ArePacketsWhereThePeerIsElsewhere) {
  Initiator end;
  end.around.is_here = false;
  end.post(WorkOpcode::Write, 8);
  end.post(WorkOpcode::Write, 8);
  EXPECT_EQ(end.packets(), 2u);
  EXPECT_EQ(end.around.finds, 1) << "it is not looked for each time";
  EXPECT_EQ(end.qp.path_word(), static_cast<std::uint32_t>(trace::ReasonId::DirectOtherUser));
}

// IBTA 10.3.1.5: in SQD nothing begins.
TEST(DirectRequests, DoNotBeginWhileTheSendQueueDrains) {
  Initiator end;
  end.qp.set_state(QpState::Sqd);
  end.post(WorkOpcode::Write, 8);
  EXPECT_TRUE(end.around.calls.empty());
  EXPECT_EQ(end.packets(), 0u);
  end.qp.set_state(QpState::Rts);
  EXPECT_EQ(end.packets(), 1u);
}

TEST(DirectRequests, ThatWaitAreFlushedInTheirTurn) {
  Initiator end;
  end.put(WorkOpcode::Send, 8);
  end.put(WorkOpcode::Write, 0x10000);
  end.put(WorkOpcode::Send, 8);
  end.ring();
  end.qp.enter_error(transport::Status::Flushed, {.id = trace::ReasonId::Flushed}, Initiator::kNow);
  Cookies cookies;
  while (const auto done = end.qp.poll_completion(Initiator::kNow)) {
    EXPECT_EQ(done->cqe.status, static_cast<std::uint8_t>(transport::Status::Flushed));
    cookies.push_back(done->cqe.cookie);
  }
  EXPECT_EQ(cookies, (Cookies{0, 1, 2}));
  EXPECT_TRUE(end.around.calls.empty());
}

TEST(PlacedMessages, CompleteInTheCallThatPostsThemAndThePeerIsTold) {
  Initiator end;
  end.around.receive_done = 6;
  end.around.receive_posted = 9;
  end.post(WorkOpcode::Send, 100);
  end.post(WorkOpcode::SendImm, 8);
  EXPECT_EQ(end.completions(), (Cookies{0, 1}));
  EXPECT_EQ(end.packets(), 0u);
  ASSERT_EQ(end.notices.sent.size(), 2u);
  EXPECT_EQ(end.notices.sent[0].qpn().value, 9u);
  EXPECT_EQ(end.notices.sent[0].receive, 6u);
  EXPECT_EQ(end.notices.sent[0].generation, 3u);
  EXPECT_EQ(end.notices.sent[0].bytes, 100u);
  EXPECT_FALSE(end.notices.sent[0].has(PlacedNotice::kWithImmediate));
  EXPECT_EQ(end.notices.sent[1].receive, 7u);
  EXPECT_TRUE(end.notices.sent[1].has(PlacedNotice::kWithImmediate));
  ASSERT_EQ(end.around.placed_parts.size(), 2u);
  EXPECT_EQ(end.around.placed_parts[1].next.value, 70u) << "no PSN was used";
}

TEST(PlacedMessages, OfSomeSizeGoPieceByPieceAndThePeerIsToldWithTheLast) {
  Initiator end;
  end.around.receive_posted = 1;
  end.post(WorkOpcode::Send, 0x80000);
  std::uint64_t bytes = 0;
  for (const Around::Placed& placed : end.around.placed_parts) {
    EXPECT_EQ(placed.part.offset, bytes);
    EXPECT_EQ(placed.part.message_bytes, 0x80000u);
    bytes += placed.bytes;
    EXPECT_EQ(placed.is_last, bytes == 0x80000);
  }
  EXPECT_GT(end.around.placed_parts.size(), 1u);
  EXPECT_EQ(bytes, 0x80000u);
  EXPECT_EQ(end.notices.sent.size(), 1u);
}

TEST(PlacedMessages, AreWritesWithImmediatesToo) {
  Initiator end;
  end.around.receive_posted = 1;
  end.post(WorkOpcode::WriteImm, 8);
  EXPECT_EQ(end.completions(), Cookies{0});
  ASSERT_EQ(end.around.placed_parts.size(), 1u);
  EXPECT_TRUE(end.around.placed_parts[0].part.is_write);
  EXPECT_EQ(end.around.placed_parts[0].part.rkey.value, 0x77u);
  EXPECT_EQ(end.around.placed_parts[0].part.address, 0x4000u);
  ASSERT_EQ(end.notices.sent.size(), 1u);
  EXPECT_TRUE(end.notices.sent[0].has(PlacedNotice::kWrite));
  EXPECT_TRUE(end.notices.sent[0].has(PlacedNotice::kWithImmediate));
}

TEST(PlacedMessages, MayHaveNoBytes) {
  Initiator end;
  end.around.receive_posted = 1;
  end.post(WorkOpcode::Send, 0);
  EXPECT_EQ(end.completions(), Cookies{0});
  ASSERT_EQ(end.notices.sent.size(), 1u);
  EXPECT_EQ(end.notices.sent[0].bytes, 0u);
}

// The responder says that it has none, and the packets are sent again. Those behind wait for that
// one, and are placed again.
TEST(PlacedMessages, ArePacketsWhereNoReceiveIsPosted) {
  Initiator end;
  end.around.receive_posted = 1;
  end.post(WorkOpcode::Send, 8);
  end.post(WorkOpcode::Send, 8);
  end.post(WorkOpcode::Send, 8);
  EXPECT_EQ(end.packets(), 1u);
  EXPECT_EQ(end.notices.sent.size(), 1u);
  end.around.receive_posted = 3;
  end.around.receive_done = 2;
  end.acknowledge();
  EXPECT_EQ(end.completions(), (Cookies{0, 1, 2}));
  ASSERT_EQ(end.notices.sent.size(), 2u);
  EXPECT_EQ(end.notices.sent[1].receive, 2u) << "one was taken by a packet";
}

TEST(PlacedMessages, ArePacketsWhereThePeerCannotBeTold) {
  Initiator end;
  end.around.receive_posted = 9;
  end.notices.has_room = false;
  end.post(WorkOpcode::Send, 8);
  end.post(WorkOpcode::Send, 8);
  EXPECT_EQ(end.packets(), 1u) << "the second one waits";
  EXPECT_TRUE(end.around.placed_parts.empty());
  end.notices.has_room = true;
  end.around.receive_done = 1;
  end.acknowledge();
  EXPECT_EQ(end.notices.sent.size(), 1u);
  EXPECT_EQ(end.completions(), (Cookies{0, 1}));
}

TEST(PlacedMessages, AreNotTriedAgainWhereThePeerSharesItsReceives) {
  Initiator end;
  end.around.receive_posted = 9;
  end.around.answer = Delivered::Never;
  end.post(WorkOpcode::Send, 8);
  EXPECT_EQ(end.packets(), 1u);
  end.acknowledge();
  EXPECT_EQ(end.completions(), Cookies{0});
  end.around.answer = Delivered::Yes;
  end.post(WorkOpcode::Send, 8, Initiator::kNow + seconds(1));
  EXPECT_EQ(end.packets(Initiator::kNow + seconds(1)), 1u);
  EXPECT_TRUE(end.notices.sent.empty());
}

// What comes behind a message is not seen before it.
TEST(PlacedMessages, AreHeardOfBeforeWhatIsBehindThem) {
  Initiator end;
  end.around.receive_posted = 9;
  end.post(WorkOpcode::Send, 8);
  end.post(WorkOpcode::Write, 8);
  EXPECT_EQ(end.packets(), 1u);
  EXPECT_TRUE(end.around.calls.empty());
  end.acknowledge();
  end.around.receive_done = 1;
  end.post(WorkOpcode::Send, 8);
  end.around.receive_done = 2;
  end.post(WorkOpcode::Write, 8);
  EXPECT_EQ(end.around.calls.size(), 1u);
  EXPECT_EQ(end.completions(), (Cookies{0, 1, 2, 3}));
}

// A device that was told where a message lies fetches it, and says so by a message of its own.
TEST(PlacedMessages, OfTheDeviceItselfTakeAReceiveToo) {
  Initiator end(Initiator::kSrqn);
  end.around.receive_posted = 9;
  end.post(WorkOpcode::Send, 8);
  EXPECT_EQ(end.completions(), Cookies{0});
  ASSERT_TRUE(end.shared.find(Initiator::kSrqn)
                  ->tags()
                  ->add({.handle = 0,
                         .cookie = 40,
                         .tag = 7,
                         .mask = ~std::uint64_t{0},
                         .segments = {{0, 64, end.key.value}},
                         .counts = true},
                        0));
  std::vector<std::byte> announced(TagHeader::kBytes + RendezvousHeader::kBytes);
  announced[0] = static_cast<std::byte>(TagOperation::Rendezvous);
  announced[15] = std::byte{7};
  announced[31] = std::byte{64};
  end.take(wire::Operation::SendOnly, 50, announced);
  EXPECT_EQ(end.completions(), Cookies{40}) << "matched";
  EXPECT_EQ(end.packets(), 1u) << "what fetches it";
  end.take(wire::Operation::ReadResponseOnly, 70, std::vector<std::byte>(64));
  EXPECT_EQ(end.completions(), Cookies{40}) << "fetched";
  EXPECT_EQ(end.packets(), 1u) << "what says so";
  end.acknowledge();
  EXPECT_EQ(end.completions(), Cookies{});
  end.around.receive_done = 2;
  end.post(WorkOpcode::Send, 8);
  ASSERT_EQ(end.notices.sent.size(), 2u);
  EXPECT_EQ(end.notices.sent[1].receive, 2u) << "one was taken by a packet";
}

// The program would look behind its buffer.
TEST(PlacedMessages, ThatAreSaidToBeLongerThanTheirReceiveFail) {
  Initiator end;
  end.post_receive(64);
  end.post_receive(64);
  EXPECT_TRUE(end.qp.on_placed({.bytes = 64, .receive = 0}, Initiator::kNow));
  EXPECT_EQ(end.qp.poll_completion(Initiator::kNow)->cqe.byte_count, 64u);
  EXPECT_TRUE(end.qp.on_placed({.bytes = 65, .receive = 1}, Initiator::kNow));
  const auto done = end.qp.poll_completion(Initiator::kNow);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->cqe.status, static_cast<std::uint8_t>(transport::Status::LocalLength));
  EXPECT_EQ(done->cqe.byte_count, 0u);
}

// The other one has a receive, into which the rest of its bytes go.
TEST(PlacedMessages, AreNotTakenInTheMiddleOfAnother) {
  Initiator end;
  end.post_receive(2000);
  end.post_receive(8);
  const std::vector<std::byte> payload(1024);
  end.take(wire::Operation::SendFirst, 50, payload);
  EXPECT_FALSE(end.qp.on_placed({.bytes = 8, .receive = 1}, Initiator::kNow));
  end.take(wire::Operation::SendLast, 51, ConstBytes(payload).first(100));
  const auto done = end.qp.poll_completion(Initiator::kNow);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->cqe.status, 0u);
  EXPECT_EQ(done->cqe.cookie, 0u);
  EXPECT_EQ(done->cqe.byte_count, 1124u);
}

// A device with a queue pair whose peer may place messages.
struct Target final : pcie::InterruptTarget {
  static constexpr wire::Qpn kQpn{0x100000};
  static constexpr Time kNow{1'000'000};

  Target() {
    device.create_qp({.qpn = kQpn,
                      .pd = 1,
                      .type = transport::QpType::Rc,
                      .send_cqn = 1,
                      .receive_cqn = 1,
                      .send = {{0}, 8, 128, 2},
                      .receive = {{0x8000}, 8, 64, 2}});
  }
  void interrupt(std::uint32_t, Time) override {}
  void modify(QpState to) {
    transport::QpAttributes a;
    a.path_mtu_bytes = 1024;
    device.modify_qp(kQpn, a, to, {}, kNow);
  }
  void post_receive() {
    device.mmio_write(doorbell_offset(Doorbell::Receive, kQpn.value), 1, kNow);
  }
  std::uint32_t done() const { return qps[0].receive_done; }

  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Tracer tracer{trace::Counters(cells), nullptr};
  std::vector<KeyRecord> keys = std::vector<KeyRecord>(4);
  std::vector<QpRecord> qps = std::vector<QpRecord>(1);
  std::vector<SrqRecord> srqs = std::vector<SrqRecord>(1);
  Stretch port;
  Around around;
  Notices link;
  Device device{{.memory = port,
                 .interrupts = *this,
                 .link = link,
                 .tracer = tracer,
                 .tables = {.keys = keys, .translations = {}, .qps = qps, .srqs = srqs},
                 .neighbours = &around}};
};

TEST(HeldReceives, AreFlushedWhenAllHasComeThatLayThere) {
  Target target;
  target.modify(QpState::Rtr);
  target.post_receive();
  target.link.all_came = false;
  target.modify(QpState::Error);
  for (int i = 0; i < 3; ++i) target.device.progress(Target::kNow);
  EXPECT_EQ(target.done(), 0u);
  EXPECT_EQ(target.device.next_deadline(), Time{0});
  target.link.all_came = true;
  target.device.progress(Target::kNow);
  EXPECT_EQ(target.done(), 1u);
  EXPECT_EQ(target.device.next_deadline(), Time::never());
}

TEST(HeldReceives, AreForgottenWithAReset) {
  Target target;
  target.link.all_came = false;
  target.modify(QpState::Rtr);
  target.modify(QpState::Error);
  target.modify(QpState::Reset);
  target.device.progress(Target::kNow);
  EXPECT_EQ(target.device.next_deadline(), Time::never());
  target.modify(QpState::Rtr);
  target.post_receive();
  target.modify(QpState::Error);
  target.device.progress(Target::kNow);
  EXPECT_EQ(target.done(), 0u);
  target.link.all_came = true;
  target.device.progress(Target::kNow);
  EXPECT_EQ(target.done(), 1u);
}

TEST(HeldReceives, OfAQueuePairThatIsGoneHoldNothingUp) {
  Target target;
  target.modify(QpState::Rtr);
  target.modify(QpState::Error);
  target.device.destroy_qp(Target::kQpn, Target::kNow);
  EXPECT_EQ(target.device.next_deadline(), Time::never());
}

}  // namespace
}  // namespace softhca::nic
