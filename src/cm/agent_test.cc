#include "cm/agent.h"

#include <gtest/gtest.h>

#include <set>

#include "cm/test_talk.h"

namespace softhca::cm {
namespace {

using trace::ReasonId;
using wire::RejReason;

ReasonId reason_for(const Agent::Done& done) { return done ? ReasonId::None : done.error().id; }

TEST(Agent, OneListenerHasAServiceAtAnAddress) {
  Talk talk;
  const auto first = talk.b.agent.listen({.service = kPort});
  ASSERT_TRUE(first);
  const auto again = talk.b.agent.listen({.service = kPort});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().id, ReasonId::ServiceTaken);
  EXPECT_TRUE(talk.b.agent.listen({.service = kPort, .address = talk.b.gid}));
  EXPECT_TRUE(talk.b.agent.listen({.service = wire::service_of(wire::PortSpace::Tcp, 1)}));
  talk.b.agent.close(*first);
  EXPECT_TRUE(talk.b.agent.listen({.service = kPort}));
}

TEST(Agent, AnAddressGoesBeforeEveryAddress) {
  Talk talk;
  const auto any = talk.b.agent.listen({.service = kPort});
  const auto own = talk.b.agent.listen({.service = kPort, .address = talk.b.gid});
  const auto other = talk.b.agent.listen({.service = kPort, .address = gid_of(77)});
  ASSERT_TRUE(any && own && other);
  talk.connect(1);
  talk.settle();
  EXPECT_EQ(talk.b.only(EventKind::ConnectRequest).listener, *own);
  talk.b.agent.close(*own);
  talk.connect(2);
  talk.settle();
  EXPECT_EQ(talk.b.only(EventKind::ConnectRequest).listener, *any);
}

TEST(Agent, EveryAddressMayBeThoseOfOneFamily) {
  Talk talk;
  const auto ipv6 = talk.b.agent.listen({.service = kPort, .only_ipv6 = true});
  ASSERT_TRUE(ipv6);
  const wire::Gid four = wire::Gid::of_ipv4({192, 0, 2, 7});
  wire::Gid six;
  six.bytes[0] = 0xfd;
  EXPECT_FALSE(talk.b.agent.listens(kPort, four));
  EXPECT_TRUE(talk.b.agent.listens(kPort, six));
  const auto ipv4 = talk.b.agent.listen({.service = kPort, .address = kEveryIpv4Address});
  ASSERT_TRUE(ipv4) << "beside the other one";
  EXPECT_TRUE(talk.b.agent.listens(kPort, four));
  talk.b.agent.close(*ipv6);
  EXPECT_FALSE(talk.b.agent.listens(kPort, six));
}

TEST(Agent, ABacklogMayChange) {
  Talk talk;
  const ListenerId listener = talk.listen(1);
  for (const std::uint32_t qpn : {1u, 2u}) talk.connect(qpn);
  talk.settle();
  EXPECT_EQ(talk.b.agent.tally().dropped, 1u);
  talk.b.agent.set_backlog(listener, 3);
  for (const std::uint32_t qpn : {3u, 4u, 5u}) talk.connect(qpn);
  talk.settle();
  EXPECT_EQ(talk.b.agent.tally().dropped, 2u) << "there is room for two more";
}

// 12.7.11 to 12.7.31: both ends have the same numbers, and each READ limit is the smaller one.
TEST(Agent, BothEndsAgreeOnWhatTheirQueuePairsAreTold) {
  Talk talk;
  talk.listen();
  ConnectRequest request = talk.request();
  request.rnr_retry_count = 5;
  request.retry_count = 4;
  request.flow_control = true;
  request.srq = true;
  request.path.mtu = 4;
  request.path.flow_label = 0xabcde;
  request.path.traffic_class = 7;
  request.ece = {0x1234, 0x5678};
  const auto bytes = counted_bytes(kIpReqPrivateBytes);
  request.private_bytes = bytes;
  const auto id = talk.a.agent.connect(request, talk.now);
  ASSERT_TRUE(id);
  talk.settle();
  const Event asked = talk.b.only(EventKind::ConnectRequest);
  EXPECT_TRUE(begins_with(asked.private_bytes, bytes));
  EXPECT_EQ(asked.private_bytes.size(), kIpReqPrivateBytes);
  EXPECT_EQ(asked.terms.addresses, request.addresses);
  EXPECT_EQ(asked.terms.service, kPort);
  EXPECT_EQ(asked.terms.responder_resources, 3);
  EXPECT_EQ(asked.terms.initiator_depth, 4);
  EXPECT_EQ(asked.terms.retry_count, 4);
  EXPECT_EQ(asked.terms.rnr_retry_count, 5);
  EXPECT_TRUE(asked.terms.flow_control);
  EXPECT_TRUE(asked.terms.remote_srq);
  EXPECT_EQ(asked.terms.remote_ece, request.ece);
  EXPECT_EQ(asked.terms.remote_guid, 0x1001u);

  const auto answer = counted_bytes(kRepPrivateBytes);
  EXPECT_TRUE(talk.b.agent.accept(asked.id,
                                  {.qpn = {0x22},
                                   .responder_resources = 16,
                                   .initiator_depth = 2,
                                   .rnr_retry_count = 6,
                                   .ece = {9, 10},
                                   .private_bytes = answer},
                                  talk.now));
  EXPECT_EQ(talk.settle(), Names{"ConnectReply"});
  const Event reply = talk.a.only(EventKind::Reply);
  EXPECT_EQ(reply.id, *id);
  EXPECT_TRUE(begins_with(reply.private_bytes, answer));
  EXPECT_EQ(reply.private_bytes.size(), kRepPrivateBytes);
  const Terms& a = reply.terms;
  const Terms& b = talk.b.agent.find(asked.id)->terms;
  EXPECT_EQ(a.local_qpn, b.remote_qpn);
  EXPECT_EQ(a.remote_qpn, b.local_qpn);
  EXPECT_EQ(a.local_psn, b.remote_psn);
  EXPECT_EQ(a.remote_psn, b.local_psn);
  EXPECT_NE(a.local_psn, a.remote_psn);
  EXPECT_EQ(asked.terms.local_psn, b.local_psn) << "a queue pair is made ready before the accept";
  EXPECT_EQ(a.initiator_depth, b.responder_resources);
  EXPECT_EQ(a.responder_resources, b.initiator_depth);
  EXPECT_EQ(a.initiator_depth, 3);
  EXPECT_EQ(a.responder_resources, 2);
  EXPECT_EQ(a.path.mtu, b.path.mtu);
  EXPECT_EQ(a.path.flow_label, b.path.flow_label);
  EXPECT_EQ(b.path.traffic_class, 7);
  EXPECT_EQ(a.rnr_retry_count, 6);
  EXPECT_EQ(b.rnr_retry_count, 5);
  EXPECT_EQ(a.remote_ece, (Ece{9, 10}));

  const auto last = counted_bytes(kRtuPrivateBytes);
  EXPECT_TRUE(talk.a.agent.establish(*id, last, talk.now));
  EXPECT_EQ(talk.settle(), Names{"ReadyToUse"});
  EXPECT_TRUE(begins_with(talk.b.only(EventKind::Established).private_bytes, last));
}

// A reply that promises more than was asked for changes nothing.
TEST(Agent, ALyingReplyDoesNotRaiseTheLimits) {
  Talk talk;
  talk.listen();
  talk.accept(talk.ask().b);
  talk.give(talk.a, changed<wire::CmRep>(talk.b.said().at(0), [](wire::CmRep& rep) {
              rep.responder_resources = rep.initiator_depth = 255;
            }));
  const Terms terms = talk.a.only(EventKind::Reply).terms;
  EXPECT_EQ(terms.initiator_depth, 3);
  EXPECT_EQ(terms.responder_resources, 4);
}

TEST(Agent, AServiceWithoutAddressesHasRoomForMore) {
  Talk talk;
  ASSERT_TRUE(talk.b.agent.listen({.service = {0x1000'0000'0000'0001}}));
  ConnectRequest request = talk.request();
  request.service = {0x1000'0000'0000'0001};
  request.addresses = {};
  const auto bytes = counted_bytes(kReqPrivateBytes);
  request.private_bytes = bytes;
  ASSERT_TRUE(talk.a.agent.connect(request, talk.now));
  talk.settle();
  EXPECT_TRUE(begins_with(talk.b.only(EventKind::ConnectRequest).private_bytes, bytes));
}

// 12.7.32: a second path is not refused, only not used.
TEST(Agent, SaysThatItHasNoAlternatePaths) {
  Talk talk;
  talk.listen();
  talk.connect();
  talk.give(talk.b, changed<wire::CmReq>(talk.a.said().at(0), [](wire::CmReq& req) {
              req.alternate.local_gid = gid_of(7);
            }));
  talk.accept(talk.b.only(EventKind::ConnectRequest).id);
  EXPECT_EQ(std::get<wire::CmRep>(read(talk.b.said().at(0)).message).failover, 1);
}

// The queue pair of an XRC target stands where a context number was.
TEST(Agent, AnXrcTargetIsNamed) {
  Talk talk;
  talk.listen();
  ConnectRequest request = talk.request();
  request.transport = Transport::Xrc;
  const auto id = talk.a.agent.connect(request, talk.now);
  ASSERT_TRUE(id);
  talk.settle();
  const Event asked = talk.b.only(EventKind::ConnectRequest);
  EXPECT_EQ(asked.terms.transport, Transport::Xrc);
  talk.accept(asked.id, 0x33);
  talk.settle();
  EXPECT_EQ(talk.a.only(EventKind::Reply).terms.remote_qpn, wire::Qpn{0x33});
}

TEST(Agent, ProgramsBytesHaveLimits) {
  Talk talk;
  talk.listen();
  ConnectRequest request = talk.request();
  const auto too_many = counted_bytes(kIpReqPrivateBytes + 1);
  request.private_bytes = too_many;
  const auto id = talk.a.agent.connect(request, talk.now);
  ASSERT_FALSE(id);
  EXPECT_EQ(id.error().id, ReasonId::PrivateTooLong);
  EXPECT_EQ(id.error().length, too_many.size());
  EXPECT_EQ(id.error().high, kIpReqPrivateBytes);
  EXPECT_EQ(talk.a.agent.conversations(), 0u);
  ResolveRequest resolution = talk.resolution();
  const auto resolving = counted_bytes(kIpSidrReqPrivateBytes + 1);
  resolution.private_bytes = resolving;
  EXPECT_FALSE(talk.a.agent.resolve(resolution, talk.now));

  const Talk::Ids ids = talk.ask();
  const auto rep = counted_bytes(kRepPrivateBytes + 1);
  EXPECT_EQ(reason_for(talk.b.agent.accept(ids.b, {.private_bytes = rep}, talk.now)),
            ReasonId::PrivateTooLong);
  const auto rej = counted_bytes(kRejPrivateBytes + 1);
  EXPECT_EQ(reason_for(talk.b.agent.reject(ids.b, rej, talk.now)), ReasonId::PrivateTooLong);
  talk.accept(ids.b);
  talk.settle();
  const auto rtu = counted_bytes(kRtuPrivateBytes + 1);
  EXPECT_EQ(reason_for(talk.a.agent.establish(ids.a, rtu, talk.now)), ReasonId::PrivateTooLong);
  EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  const auto dreq = counted_bytes(kDreqPrivateBytes + 1);
  EXPECT_EQ(reason_for(talk.a.agent.disconnect(ids.a, dreq, talk.now)), ReasonId::PrivateTooLong);
}

TEST(Agent, RefusesPathsThatItCannotTake) {
  Talk talk({.mtu = 3});
  const auto refusal = [&](const ConnectRequest& request) {
    const auto id = talk.a.agent.connect(request, talk.now);
    return id ? ReasonId::None : id.error().id;
  };
  ConnectRequest request = talk.request();
  request.path.mtu = 4;
  EXPECT_EQ(refusal(request), ReasonId::AttributeOutOfRange);
  request.path.mtu = 0;
  EXPECT_EQ(refusal(request), ReasonId::AttributeOutOfRange);
  request = talk.request();
  request.path.remote = {};
  EXPECT_EQ(refusal(request), ReasonId::DestinationGidZero);
  request.path.remote = *wire::Gid::parse("fd00::1");
  EXPECT_EQ(refusal(request), ReasonId::GidFamilyDiffers);
  request = talk.request();
  request.addresses.source = *wire::Gid::parse("fd00::1");
  EXPECT_EQ(refusal(request), ReasonId::GidFamilyDiffers);
}

TEST(Agent, EachCallHasItsTurn) {
  Talk talk;
  talk.listen();
  const wire::CommId id = talk.connect();
  const auto wrong = [&](End& end, wire::CommId whose) {
    const auto is_wrong = [](const Agent::Done& done) {
      return reason_for(done) == ReasonId::ConnectionState;
    };
    Agent& agent = end.agent;
    return Names{is_wrong(agent.accept(whose, {}, talk.now)) ? "accept" : "",
                 is_wrong(agent.answer(whose, {}, talk.now)) ? "answer" : "",
                 is_wrong(agent.reject(whose, {}, talk.now)) ? "reject" : "",
                 is_wrong(agent.establish(whose, {}, talk.now)) ? "establish" : "",
                 is_wrong(agent.disconnect(whose, {}, talk.now)) ? "disconnect" : ""};
  };
  const Names all = {"accept", "answer", "reject", "establish", "disconnect"};
  EXPECT_EQ(wrong(talk.a, id), all);
  EXPECT_EQ(wrong(talk.a, {0x7777}), all);
  talk.settle();
  const wire::CommId passive = talk.b.only(EventKind::ConnectRequest).id;
  EXPECT_EQ(reason_for(talk.b.agent.establish(passive, {}, talk.now)), ReasonId::ConnectionState);
  EXPECT_EQ(reason_for(talk.b.agent.disconnect(passive, {}, talk.now)), ReasonId::ConnectionState);
  talk.accept(passive);
  EXPECT_EQ(reason_for(talk.b.agent.accept(passive, {}, talk.now)), ReasonId::ConnectionState);
  EXPECT_EQ(reason_for(talk.b.agent.reject(passive, {}, talk.now)), ReasonId::ConnectionState);
}

TEST(Agent, IdsLieInTheBlockAndAreNotInARow) {
  End end(5);
  Talk talk;
  std::set<wire::CommId> seen;
  for (std::uint32_t i = 0; i < 500; ++i) {
    ConnectRequest request = talk.request(i);
    request.path.local = end.gid;
    const auto id = end.agent.connect(request, talk.now);
    ASSERT_TRUE(id);
    EXPECT_EQ(block_of(*id), 5u);
    EXPECT_FALSE(seen.contains({id->value - 1}) && seen.contains({id->value - 2}));
    EXPECT_TRUE(seen.insert(*id).second);
  }
}

// 12.6.7.2: what no program is asked about is refused at once, with what would have been right.
TEST(Agent, RefusesRequestsThatCannotBe) {
  Talk talk({.mtu = 3});
  const ListenerId listener = talk.listen();
  talk.listen(8, true);
  talk.connect();
  const Outgoing good = talk.a.said().at(0);
  const auto answer_to = [&](const auto& change) {
    talk.give(talk.b, changed<wire::CmReq>(good, change));
    const auto said = talk.b.said();
    EXPECT_EQ(said.size(), 1u);
    return said.empty() ? wire::CmRej{} : std::get<wire::CmRej>(read(said[0]).message);
  };
  const wire::CmRej mtu = answer_to([](wire::CmReq& r) { r.path_mtu = 5; });
  EXPECT_EQ(mtu.reason, RejReason::InvalidMtu);
  EXPECT_EQ(mtu.additional_length, 1);
  EXPECT_EQ(mtu.additional[0], std::byte{3});
  EXPECT_EQ(mtu.remote_id, std::get<wire::CmReq>(read(good).message).local_id);
  EXPECT_EQ(mtu.subject, wire::CmSubject::Req);
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.path_mtu = 0; }).reason, RejReason::InvalidMtu);
  const wire::CmRej gid = answer_to([](wire::CmReq& r) { r.primary.remote_gid = gid_of(99); });
  EXPECT_EQ(gid.reason, RejReason::InvalidGid);
  EXPECT_TRUE(std::equal(talk.b.gid.bytes.begin(), talk.b.gid.bytes.end(), gid.additional.begin(),
                         [](std::uint8_t x, std::byte y) { return std::byte{x} == y; }));
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.primary.local_gid = gid_of(99); }).reason,
            RejReason::InvalidGid);
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.transport = 2; }).reason, RejReason::InvalidTransport);
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.service = kDatagramPort; }).reason,
            RejReason::InvalidTransport);
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.service.value ^= 1; }).reason,
            RejReason::InvalidServiceId);
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.local_id = {}; }).reason, RejReason::InvalidCommId);
  EXPECT_EQ(answer_to([](wire::CmReq& r) { r.private_bytes[0] = std::byte{0x10}; }).reason,
            RejReason::UnsupportedRequest);
  EXPECT_EQ(talk.b.agent.conversations(), 0u);
  EXPECT_EQ(talk.b.agent.tally().refused, 9u);
  talk.b.agent.close(listener);
  EXPECT_EQ(answer_to([](wire::CmReq&) {}).reason, RejReason::InvalidServiceId);
}

TEST(Agent, AnotherRequestUnderTheSameIdIsRefused) {
  Talk talk;
  talk.listen();
  talk.connect();
  const Outgoing out = talk.a.said().at(0);
  talk.give(talk.b, out);
  talk.give(talk.b, changed<wire::CmReq>(out, [](wire::CmReq& req) { req.qpn = {0x99}; }));
  const auto said = talk.b.said();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(std::get<wire::CmRej>(read(said[0]).message).reason, RejReason::DuplicateCommId);
  EXPECT_EQ(talk.b.events().size(), 1u);
}

TEST(Agent, WhatMakesNoSenseIsCountedAndForgotten) {
  Talk talk;
  talk.listen();
  talk.connect();
  Outgoing out = talk.a.said().at(0);
  talk.b.agent.on_datagram({out.source, out.destination, {0x11}}, out.mad, talk.now);
  out.mad[1] = std::byte{4};
  talk.give(talk.b, out);
  talk.b.agent.on_datagram({out.source, out.destination, wire::kManagementQpn}, {}, talk.now);
  EXPECT_EQ(talk.b.agent.tally().malformed, 3u);
  EXPECT_TRUE(talk.b.said().empty());
  EXPECT_TRUE(talk.b.events().empty());
}

// A message counts only from the peer's address, whatever ids it has.
TEST(Agent, AStrangerCannotEndAConnection) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.establish();
  End stranger(9);
  for (const wire::CmMessage& message :
       {wire::CmMessage{wire::CmDreq{.local_id = ids.a, .remote_id = ids.b, .remote_qpn = {0x22}}},
        wire::CmMessage{wire::CmRej{.local_id = ids.a, .remote_id = ids.b}},
        wire::CmMessage{wire::CmDrep{.local_id = ids.a, .remote_id = ids.b}}})
    talk.give(talk.b, {stranger.gid, talk.b.gid, wire::emit_cm({.message = message})});
  EXPECT_TRUE(talk.b.events().empty());
  EXPECT_EQ(talk.b.agent.find(ids.b)->state, State::Established);
  // The right address with a wrong id, or a wrong queue pair: the same.
  for (const wire::CmDreq& dreq :
       {wire::CmDreq{.local_id = {ids.a.value + 1}, .remote_id = ids.b, .remote_qpn = {0x22}},
        wire::CmDreq{.local_id = ids.a, .remote_id = ids.b, .remote_qpn = {0x23}}})
    talk.give(talk.b, {talk.a.gid, talk.b.gid, wire::emit_cm({.message = dreq})});
  EXPECT_TRUE(talk.b.events().empty());
  EXPECT_EQ(talk.b.agent.find(ids.b)->state, State::Established);
}

TEST(Agent, AResolutionIsAnsweredByWhomItHasAskedOnly) {
  Talk talk;
  const auto id = talk.a.agent.resolve(talk.resolution(), talk.now);
  ASSERT_TRUE(id);
  const Outgoing right{.source = talk.b.gid,
                       .destination = talk.a.gid,
                       .mad = wire::emit_cm({.message = wire::CmSidrRep{.request_id = *id}})};
  for (const Arrival& wrong : {Arrival{gid_of(9), talk.a.gid, wire::kManagementQpn},
                               Arrival{talk.b.gid, gid_of(9), wire::kManagementQpn}})
    talk.a.agent.on_datagram(wrong, right.mad, talk.now);
  EXPECT_TRUE(talk.a.events().empty());
  EXPECT_EQ(talk.a.agent.tally().unknown, 2u);
  talk.give(talk.a, right);
  EXPECT_EQ(talk.a.only(EventKind::Resolved).id, *id);
}

TEST(Agent, ListensForItself) {
  End end(1);
  Talk talk;
  ASSERT_TRUE(end.agent.listen({.service = kPort}));
  ConnectRequest request = talk.request();
  request.path.remote = request.path.local = end.gid;
  const auto id = end.agent.connect(request, talk.now);
  ASSERT_TRUE(id);
  const auto settle = [&] {
    for (auto said = end.said(); !said.empty(); said = end.said())
      for (const Outgoing& out : said) talk.give(end, out);
  };
  settle();
  const Event asked = end.only(EventKind::ConnectRequest);
  ASSERT_TRUE(end.agent.accept(asked.id, {.qpn = {0x12}}, talk.now));
  settle();
  EXPECT_EQ(end.only(EventKind::Reply).terms.remote_qpn, wire::Qpn{0x12});
  ASSERT_TRUE(end.agent.establish(*id, {}, talk.now));
  settle();
  EXPECT_EQ(end.only(EventKind::Established).id, asked.id);
  ASSERT_TRUE(end.agent.disconnect(asked.id, {}, talk.now));
  settle();
  EXPECT_EQ(end.events().size(), 2u);
}

// Nobody can make it keep more than its limits, nor answer more than he sends.
TEST(Agent, AFloodOfRequestsIsBounded) {
  Talk talk({.limits = {.conversations = 64, .lingering = 8}});
  talk.listen(16);
  talk.connect();
  const Outgoing first = talk.a.said().at(0);
  Prng prng(1);
  std::size_t answers = 0;
  for (int i = 0; i < 5000; ++i) {
    wire::CmRej rej{.local_id = {static_cast<std::uint32_t>(prng.next())},
                    .subject = wire::CmSubject::Req};
    rej.reason = RejReason::Timeout;
    talk.give(talk.b, changed<wire::CmReq>(first, [&](wire::CmReq& req) {
                req.local_id = rej.local_id;
                req.qpn.value = static_cast<std::uint32_t>(prng.below(1u << 24));
              }));
    talk.give(talk.b, {first.source, first.destination, wire::emit_cm({.message = rej})});
    answers += talk.b.said().size();
    EXPECT_LE(talk.b.agent.conversations(), 64u);
  }
  EXPECT_LE(answers, 5000u);
  const auto events = talk.b.events();
  EXPECT_LE(events.size(), 2 * 16u + 1) << "not more than the program has not answered";
  EXPECT_EQ(talk.b.agent.tally().dropped, 5000u - 16u);
  EXPECT_EQ(std::ranges::count(events, EventKind::BacklogFull, &Event::kind), 1);
  for (const Event& event : events)
    if (event.kind == EventKind::ConnectRequest) talk.b.agent.destroy(event.id, talk.now);
  talk.pass(seconds(3600));
  EXPECT_EQ(talk.b.agent.conversations(), 0u);
}

TEST(Agent, WhatLingersMakesRoomForWhatComes) {
  Talk talk({.limits = {.conversations = 32, .lingering = 8}});
  talk.listen(64);
  for (std::uint32_t i = 0; i < 200; ++i) {
    talk.pass(microseconds(1));  // so that there is an oldest one
    const Talk::Ids ids = talk.establish(0x100 + i, 0x1000 + i);
    talk.a.agent.destroy(ids.a, talk.now);
    talk.settle();
    talk.b.only(EventKind::Disconnected);
    talk.b.agent.destroy(ids.b, talk.now);
    EXPECT_LE(talk.a.agent.conversations(), 32u);
    EXPECT_LE(talk.b.agent.conversations(), 32u);
  }
  talk.pass(seconds(3600));
  EXPECT_EQ(talk.a.agent.conversations(), 0u);
  EXPECT_EQ(talk.b.agent.conversations(), 0u);
}

TEST(Agent, WhatWaitsForNobodyHasALimitToo) {
  Talk talk({.limits = {.conversations = 32, .lingering = 2}});
  talk.listen(64);
  for (std::uint32_t i = 0; i < 6; ++i) {
    talk.pass(microseconds(1));
    const Talk::Ids ids = talk.establish(0x100 + i, 0x1000 + i);
    ASSERT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
    talk.lose();
    talk.a.agent.destroy(ids.a, talk.now);
    EXPECT_LE(talk.a.agent.conversations(), 2u);
  }
}

TEST(Agent, WithoutRoomBothSidesAreToldSo) {
  Talk talk({.limits = {.conversations = 4, .lingering = 4}});
  talk.listen(64);
  for (std::uint32_t i = 0; i < 4; ++i) talk.connect(0x100 + i);
  const auto fifth = talk.a.agent.connect(talk.request(), talk.now);
  ASSERT_FALSE(fifth);
  EXPECT_EQ(fifth.error().id, ReasonId::ConnectionsExhausted);
  talk.settle();
  End other(3);
  ConnectRequest request = talk.request();
  request.path.local = other.gid;
  ASSERT_TRUE(other.agent.connect(request, talk.now));
  talk.give(talk.b, other.said().at(0));
  const auto said = talk.b.said();
  ASSERT_EQ(said.size(), 1u);
  talk.give(other, said[0]);
  const Event event = other.only(EventKind::Rejected);
  EXPECT_EQ(event.status, static_cast<std::uint16_t>(RejReason::NoResources));
  EXPECT_EQ(event.reason.id, ReasonId::PeerExhausted);
}

}  // namespace
}  // namespace softhca::cm
