// What Linux rxe sent as a requester, given to our responders: they do what rxe's peer did, and
// where it answered, their answers are the same to the bit.
#include <algorithm>
#include <optional>

#include "samples.h"
#include "transport/responder.h"
#include "transport/test_memory.h"
#include "transport/unreliable.h"

namespace softhca::transport {
namespace {

using wire::Sample;

// Remembers where the payload in hand went.
struct Shelf final : MemoryPort {
  trace::Reason check_remote(RemoteRight right, wire::Key key, std::uint64_t address,
                             std::uint64_t bytes) override {
    return dead == key ? trace::Reason{.id = trace::ReasonId::WindowUnbound}
                       : port.check_remote(right, key, address, bytes);
  }
  trace::Reason place(const PayloadRef& to) override {
    const std::uint64_t at =
        to.place == PayloadRef::Place::Region ? to.address - region : to.offset;
    EXPECT_LE(at + payload.size(), bytes.size());
    std::ranges::copy(payload, bytes.begin() + static_cast<std::ptrdiff_t>(at));
    return {};
  }
  Result<std::uint64_t, trace::Reason> execute_atomic(const AtomicOperation& atomic) override {
    return port.execute_atomic(atomic);
  }
  trace::Reason invalidate(wire::Key key) override {
    dead = key;
    return {};
  }
  trace::Reason execute_local(std::uint32_t work) override { return port.execute_local(work); }
  trace::Reason check_shared_queue(std::uint32_t srqn) override {
    return port.check_shared_queue(srqn);
  }
  std::optional<ReceiveSlot> take_receive() override { return port.take_receive(); }

  // Every message of these files counts from 0x21 to 0x7a, over and over.
  bool holds(std::size_t count) const {
    for (std::size_t i = 0; i < count; ++i)
      if (bytes[i] != static_cast<std::byte>(0x21 + i % 90)) return false;
    return true;
  }

  FakeMemory port;
  ConstBytes payload;
  std::vector<std::byte> bytes = std::vector<std::byte>(1024);
  std::uint64_t region = 0;
  std::optional<wire::Key> dead;
};

std::vector<Sample> samples_of(const std::string& file) {
  std::vector<Sample> samples;
  wire::append_samples(file, samples);
  EXPECT_FALSE(samples.empty()) << file;
  return samples;
}

TEST(Conversation, UnreliableMessagesComeOutWhole) {
  struct Expected {
    bool is_write;
    std::uint64_t bytes;
    std::uint32_t immediate;
  };
  constexpr Expected kReceived[] = {
      {false, 64, 0}, {false, 700, 0x04030201}, {true, 64, 0x0d0c0b0a}};
  for (const char* const file : {"uc.pcap", "v6uc.pcap"}) {
    const auto samples = samples_of(file);
    Shelf shelf;
    shelf.port.receives = 4;
    std::optional<UnreliableConnection> connection;
    std::size_t received = 0;
    std::size_t writes = 0;
    for (const Sample& sample : samples) {
      SCOPED_TRACE(sample.where());
      const auto packet = wire::parse(sample.udp_payload());
      ASSERT_TRUE(packet);
      ASSERT_EQ(packet->info->service, wire::Service::Uc);
      if (!connection)
        connection.emplace(UnreliableConnection::Settings{.dest_qpn = packet->headers.bth.dest_qpn,
                                                          .expected_psn = packet->headers.bth.psn,
                                                          .mtu = 256,
                                                          .may_write = true},
                           shelf);
      shelf.payload = packet->payload;
      if (packet->info->has(wire::Header::Reth)) shelf.region = packet->headers.remote_address;
      if (packet->info->starts()) std::ranges::fill(shelf.bytes, std::byte{0});
      EXPECT_FALSE(connection->on_packet(*packet->info, packet->headers,
                                         static_cast<std::uint32_t>(packet->payload.size())));
      if (packet->info->ends() && packet->info->kind == wire::Kind::Write) {
        ++writes;
        EXPECT_TRUE(shelf.holds(64));
      }
      while (const auto done = connection->poll_receive_completion()) {
        ASSERT_LT(received, std::size(kReceived));
        const Expected& expected = kReceived[received++];
        EXPECT_EQ(done->status, Status::Success);
        EXPECT_EQ(done->is_write, expected.is_write);
        EXPECT_EQ(done->bytes, expected.bytes);

        EXPECT_EQ(done->immediate, expected.immediate);
        EXPECT_TRUE(shelf.holds(expected.bytes));
      }
    }
    EXPECT_EQ(received, std::size(kReceived)) << file;
    EXPECT_EQ(writes, 3u) << file;
  }
}

// Every request of the file from the machine at `requester` on, against a fresh responder; what we
// answer, against the file's own answers.
void replay(const std::vector<Sample>& samples, Shelf& shelf, std::uint8_t requester,
            std::vector<ReceiveCompletion>& completions) {
  trace::QpCounters counters;
  std::optional<Responder> responder;
  for (const Sample& sample : samples) {
    SCOPED_TRACE(sample.where());
    const auto packet = wire::parse(sample.udp_payload());
    ASSERT_TRUE(packet);
    const wire::Headers& h = packet->headers;
    if (sample.datagram.source.bytes[15] == requester) {
      if (!responder)
        responder.emplace(Responder::Settings{.dest_qpn = h.bth.dest_qpn,
                                              .expected_psn = h.bth.psn,
                                              .mtu = 256,
                                              .max_reads = 4,
                                              .may_read = true,
                                              .may_write = true,
                                              .may_atomic = true},
                          shelf, counters);
      shelf.payload = packet->payload;
      if (packet->info->has(wire::Header::Reth)) shelf.region = h.remote_address;
      responder->on_request(*packet->info, h, static_cast<std::uint32_t>(packet->payload.size()));
      while (const auto done = responder->poll_completion()) completions.push_back(*done);
    } else {
      ASSERT_TRUE(responder);
      const auto answer = responder->poll_packet();
      ASSERT_TRUE(answer);
      wire::Headers ours = answer->headers;
      ours.bth.dest_qpn = h.bth.dest_qpn;  // the requester's own number, which no request tells
      EXPECT_EQ(ours, h);
      EXPECT_EQ(answer->payload.bytes, packet->payload.size());
    }
  }
}

TEST(Conversation, ASendEndsAKeyAndTheNextWriteIsRefused) {
  for (const char* const file : {"send_inv.pcap", "send_inv_multi.pcap"}) {
    Shelf shelf;
    shelf.port.receives = 2;
    std::vector<ReceiveCompletion> completions;
    replay(samples_of(file), shelf, 2, completions);
    ASSERT_EQ(completions.size(), 1u) << file;
    EXPECT_EQ(completions[0].status, Status::Success);
    EXPECT_TRUE(completions[0].invalidated);
    EXPECT_EQ(completions[0].invalidated_key, shelf.dead);
  }
}

// Linux 6.12: an atomic WRITE is answered by a READ response of no bytes.
TEST(Conversation, AnAtomicWriteIsAnsweredAsRxeDoes) {
  const auto all = samples_of("crafted-6.12.pcap");
  const auto request = std::ranges::find_if(all, [](const Sample& sample) {
    const auto packet = wire::parse(sample.udp_payload());
    return packet && packet->info->kind == wire::Kind::AtomicWrite;
  });
  ASSERT_LT(request + 1, all.end());
  Shelf shelf;
  std::vector<ReceiveCompletion> completions;
  replay({request, request + 2}, shelf, request->datagram.source.bytes[15], completions);
}

}  // namespace
}  // namespace softhca::transport
