// What Linux's connection manager sent, read and written again, and talked with: our agent takes
// either side of its conversations, and says what the other Linux said wherever the standard leaves
// no choice. What it does leave are ids, first PSNs and transaction numbers.
#include <algorithm>
#include <map>

#include "cm/agent.h"
#include "samples.h"
#include "wire/cm_text.h"

namespace softhca::cm {
namespace {

using wire::Sample;

struct Heard {
  Sample sample;
  wire::CmMad mad;

  Arrival arrival() const {
    return {sample.datagram.source, sample.datagram.destination, wire::kManagementQpn};
  }
};

std::vector<Heard> management_of(const std::string& file) {
  std::vector<Sample> samples;
  wire::append_samples(file, samples);
  std::vector<Heard> heard;
  for (const Sample& sample : samples) {
    const auto packet = wire::parse(sample.udp_payload());
    if (!packet || packet->headers.bth.dest_qpn != wire::kManagementQpn) continue;
    EXPECT_EQ(packet->headers.qkey, wire::kManagementQkey) << sample.where();
    EXPECT_EQ(packet->headers.source_qpn, wire::kManagementQpn) << sample.where();
    const auto mad = wire::parse_cm(packet->payload);
    if (!mad) ADD_FAILURE() << sample.where();
    if (!mad) continue;
    EXPECT_TRUE(std::ranges::equal(wire::emit_cm(*mad), packet->payload)) << sample.where();
    heard.push_back({sample, *mad});
  }
  return heard;
}

template <class Message>
const Message& message_of(const Heard& heard) {
  return std::get<Message>(heard.mad.message);
}

TEST(GoldenCm, EveryDatagramIsReadAndWrittenAgain) {
  std::vector<std::string> names;
  for (const char* const file : {"cm-rping.pcap", "cm-udaddy.pcap"})
    for (const Heard& heard : management_of(file))
      names.emplace_back(wire::cm_message_name(heard.mad.message));
  // As tshark 4.0 names them.
  EXPECT_EQ(names, (std::vector<std::string>{"ConnectRequest", "ConnectReply", "ReadyToUse",
                                             "DisconnectRequest", "DisconnectReply",
                                             "ServiceIDResReq", "ServiceIDResReqResp"}));
}

// The values are those that tshark 4.0 prints for the first two packets.
TEST(GoldenCm, TheFieldsAreThoseThatTsharkSees) {
  const auto heard = management_of("cm-rping.pcap");
  ASSERT_EQ(heard.size(), 5u);
  EXPECT_EQ(heard[0].mad.transaction, 0x2b0051f9fu);
  const auto& req = message_of<wire::CmReq>(heard[0]);
  EXPECT_EQ(req.local_id.value, 0x9f1f05b0u);
  EXPECT_EQ(req.service, wire::service_of(wire::PortSpace::Tcp, 0x1c06));
  EXPECT_EQ(req.ca_guid, 0x505400fffe007702u);
  EXPECT_EQ(req.qpn.value, 0x24u);
  EXPECT_EQ(req.responder_resources, 1);
  EXPECT_EQ(req.initiator_depth, 1);
  EXPECT_EQ(req.remote_response_timeout, 20);
  EXPECT_EQ(req.local_response_timeout, 20);
  EXPECT_EQ(req.psn.value, 0xc7fd46u);
  EXPECT_EQ(req.retry_count, 7);
  EXPECT_EQ(req.path_mtu, 3);
  EXPECT_EQ(req.rnr_retry_count, 7);
  EXPECT_EQ(req.max_cm_retries, 15);
  // Bytes 12 38 50 00 are 20 bits, 6 reserved and 6 (table 106); tshark 4.0 reads other bits here.
  EXPECT_EQ(req.primary.flow_label, 0x12385u);
  EXPECT_EQ(req.primary.packet_rate, 0);
  EXPECT_EQ(req.primary.hop_limit, 64);
  EXPECT_EQ(req.primary.ack_timeout, 19);
  EXPECT_EQ(req.alternate, wire::CmPath{});
  const auto addresses = wire::parse_ip_service(req.private_bytes);
  ASSERT_TRUE(addresses);
  EXPECT_EQ(addresses->source_port, 0x8ca1);
  EXPECT_EQ(addresses->source, wire::Gid::parse("192.168.77.2"));
  EXPECT_EQ(addresses->destination, wire::Gid::parse("192.168.77.3"));
  const auto& rep = message_of<wire::CmRep>(heard[1]);
  EXPECT_EQ(rep.local_id.value, 0x4ab5a26eu);
  EXPECT_EQ(rep.psn.value, 0x79451u);
  EXPECT_EQ(rep.target_ack_delay, 15);
  EXPECT_EQ(rep.rnr_retry_count, 7);
  EXPECT_EQ(rep.ca_guid, 0x505400fffe007703u);
}

// An agent in the place of one of the two.
struct Stand {
  explicit Stand(std::uint64_t guid) : agent({.ca_guid = guid, .block = 5}, Prng(1)) {}

  wire::CmMad said() {
    const auto out = agent.poll_datagram();
    EXPECT_TRUE(out);
    if (!out) return {};
    EXPECT_EQ(out->source, own);
    EXPECT_EQ(out->destination, peer);
    EXPECT_FALSE(agent.poll_datagram());
    return *wire::parse_cm(out->mad);
  }
  // What Linux said, with our ids in the place of those of the Linux that we stand for.
  template <class Message>
  void hear(const Heard& heard, wire::CommId ours) {
    wire::CmMad mad = heard.mad;
    std::get<Message>(mad.message).remote_id = ours;
    agent.on_datagram(heard.arrival(), wire::emit_cm(mad), now);
  }
  Event told(EventKind kind) {
    const auto event = agent.poll_event();
    EXPECT_TRUE(event && event->kind == kind);
    return event ? *event : Event{};
  }

  Time now{1};
  Agent agent;
  wire::Gid own, peer;
};

TEST(GoldenCm, OurServerAnswersLinuxAsLinuxDid) {
  const auto heard = management_of("cm-rping.pcap");
  ASSERT_EQ(heard.size(), 5u);
  Stand server(message_of<wire::CmRep>(heard[1]).ca_guid);
  server.own = heard[1].sample.datagram.source;
  server.peer = heard[0].sample.datagram.source;
  ASSERT_TRUE(server.agent.listen({.service = wire::service_of(wire::PortSpace::Tcp, 7174)}));
  server.agent.on_datagram(heard[0].arrival(), wire::emit_cm(heard[0].mad), server.now);
  const Event asked = server.told(EventKind::ConnectRequest);
  EXPECT_EQ(asked.terms.remote_qpn.value, 0x24u);
  EXPECT_EQ(asked.private_bytes.size(), kIpReqPrivateBytes);
  ASSERT_TRUE(server.agent.accept(
      asked.id, {.qpn = {0x24}, .responder_resources = 1, .initiator_depth = 1}, server.now));
  const wire::CmMad reply = server.said();
  wire::CmMad expected = heard[1].mad;
  auto& rep = std::get<wire::CmRep>(expected.message);
  const wire::CommId ours = std::get<wire::CmRep>(reply.message).local_id;
  rep.local_id = ours;
  rep.psn = std::get<wire::CmRep>(reply.message).psn;
  EXPECT_EQ(reply, expected) << wire::cm_text(reply) << '\n' << wire::cm_text(expected);

  server.hear<wire::CmRtu>(heard[2], ours);
  server.told(EventKind::Established);
  server.hear<wire::CmDreq>(heard[3], ours);
  const wire::CmMad end = server.said();
  expected = heard[4].mad;
  std::get<wire::CmDrep>(expected.message).local_id = ours;
  EXPECT_EQ(end, expected) << wire::cm_text(end) << '\n' << wire::cm_text(expected);
  server.told(EventKind::Disconnected);
}

TEST(GoldenCm, OurClientAsksLinuxAsLinuxDid) {
  const auto heard = management_of("cm-rping.pcap");
  ASSERT_EQ(heard.size(), 5u);
  const auto& req = message_of<wire::CmReq>(heard[0]);
  Stand client(req.ca_guid);
  client.own = heard[0].sample.datagram.source;
  client.peer = heard[1].sample.datagram.source;
  ConnectRequest request;
  request.service = wire::service_of(wire::PortSpace::Tcp, 7174);
  request.addresses = {.source_port = 0x8ca1, .source = client.own, .destination = client.peer};
  request.path.local = client.own;
  request.path.remote = client.peer;
  request.path.flow_label = 0x12385;
  request.path.ack_timeout = 19;
  request.qpn = {0x24};
  request.responder_resources = request.initiator_depth = 1;
  const auto id = client.agent.connect(request, client.now);
  ASSERT_TRUE(id);
  const wire::CmMad asked = client.said();
  wire::CmMad expected = heard[0].mad;
  auto& wanted = std::get<wire::CmReq>(expected.message);
  expected.transaction = asked.transaction;
  wanted.local_id = *id;
  wanted.psn = std::get<wire::CmReq>(asked.message).psn;
  EXPECT_EQ(asked, expected) << wire::cm_text(asked) << '\n' << wire::cm_text(expected);

  client.hear<wire::CmRep>(heard[1], *id);
  const Event reply = client.told(EventKind::Reply);
  EXPECT_EQ(reply.terms.remote_qpn.value, 0x24u);
  EXPECT_EQ(reply.terms.remote_psn.value, 0x79451u);
  EXPECT_EQ(reply.terms.path.ack_timeout, 19);
  ASSERT_TRUE(client.agent.establish(*id, {}, client.now));
  const wire::CmMad rtu = client.said();
  expected = heard[2].mad;
  expected.transaction = asked.transaction;
  std::get<wire::CmRtu>(expected.message).local_id = *id;
  EXPECT_EQ(rtu, expected);

  ASSERT_TRUE(client.agent.disconnect(*id, {}, client.now));
  const wire::CmMad dreq = client.said();
  expected = heard[3].mad;
  expected.transaction = dreq.transaction;
  std::get<wire::CmDreq>(expected.message).local_id = *id;
  EXPECT_EQ(dreq, expected);
  client.hear<wire::CmDrep>(heard[4], *id);
  client.told(EventKind::Disconnected);
}

TEST(GoldenCm, ResolvesDatagramServicesWithLinux) {
  const auto heard = management_of("cm-udaddy.pcap");
  ASSERT_EQ(heard.size(), 2u);
  const wire::ServiceId service = wire::service_of(wire::PortSpace::Udp, 7174);
  Stand server(1);
  server.own = heard[1].sample.datagram.source;
  server.peer = heard[0].sample.datagram.source;
  ASSERT_TRUE(server.agent.listen({.service = service, .datagrams = true}));
  server.agent.on_datagram(heard[0].arrival(), wire::emit_cm(heard[0].mad), server.now);
  const Event asked = server.told(EventKind::ResolveRequest);
  EXPECT_EQ(asked.terms.addresses.source, server.peer);
  ASSERT_TRUE(server.agent.answer(asked.id, {.qpn = {0x25}, .qkey = 0x01234567}, server.now));
  EXPECT_EQ(server.said(), heard[1].mad);

  Stand client(1);
  client.own = server.peer;
  client.peer = server.own;
  ResolveRequest request;
  request.service = service;
  request.addresses = {.source_port = asked.terms.addresses.source_port,
                       .source = client.own,
                       .destination = client.peer};
  request.path.local = client.own;
  request.path.remote = client.peer;
  const auto id = client.agent.resolve(request, client.now);
  ASSERT_TRUE(id);
  const wire::CmMad question = client.said();
  wire::CmMad expected = heard[0].mad;
  expected.transaction = question.transaction;
  std::get<wire::CmSidrReq>(expected.message).request_id = *id;
  EXPECT_EQ(question, expected);
  wire::CmMad answer = heard[1].mad;
  std::get<wire::CmSidrRep>(answer.message).request_id = *id;
  client.agent.on_datagram(heard[1].arrival(), wire::emit_cm(answer), client.now);
  const Event resolved = client.told(EventKind::Resolved);
  EXPECT_EQ(resolved.terms.remote_qpn.value, 0x25u);
  EXPECT_EQ(resolved.terms.remote_qkey, 0x01234567u);
}

}  // namespace
}  // namespace softhca::cm
