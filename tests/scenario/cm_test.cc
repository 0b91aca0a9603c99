// How connections are made and ended, message by message: what is lost, late, twice or wrong.
#include "cm/test_talk.h"
#include "wire/time_code.h"

namespace softhca::cm {
namespace {

using trace::ReasonId;
using wire::RejReason;

// What request() and its peers wait for: both response times are 2^20, the way there and back 2^17.
constexpr Duration kResponse = wire::duration_of(20) + wire::duration_of(17);
constexpr Duration kTimeWait = wire::duration_of(17);

// Of a program that makes no mistakes: three messages and nothing twice.
TEST(Cm, AConnectionIsThreeMessagesAndItsEndTwo) {
  Talk talk;
  talk.listen();
  const wire::CommId id = talk.connect();
  EXPECT_EQ(talk.settle(), Names{"ConnectRequest"});
  const Event asked = talk.b.only(EventKind::ConnectRequest);
  talk.accept(asked.id);
  EXPECT_EQ(talk.settle(), Names{"ConnectReply"});
  talk.a.only(EventKind::Reply);
  EXPECT_TRUE(talk.a.agent.establish(id, {}, talk.now));
  EXPECT_EQ(talk.settle(), Names{"ReadyToUse"});
  talk.b.only(EventKind::Established);
  EXPECT_EQ(talk.a.agent.next_deadline(), Time::never());
  EXPECT_EQ(talk.b.agent.next_deadline(), Time::never());

  const auto bytes = counted_bytes(kDreqPrivateBytes);
  EXPECT_TRUE(talk.a.agent.disconnect(id, bytes, talk.now));
  EXPECT_EQ(talk.settle(), (Names{"DisconnectRequest", "DisconnectReply"}));
  const Event ended = talk.b.only(EventKind::Disconnected);
  EXPECT_TRUE(begins_with(ended.private_bytes, bytes));
  EXPECT_FALSE(ended.reason);
  talk.a.only(EventKind::Disconnected);
  EXPECT_EQ(talk.wait(), kTimeWait);
  talk.a.only(EventKind::TimewaitExit);
  talk.b.only(EventKind::TimewaitExit);
  // Over, and the call that comes too late does no harm.
  EXPECT_TRUE(talk.b.agent.disconnect(asked.id, {}, talk.now));
  talk.a.agent.destroy(id, talk.now);
  talk.b.agent.destroy(asked.id, talk.now);
  EXPECT_TRUE(talk.settle().empty());
  EXPECT_EQ(talk.a.agent.conversations() + talk.b.agent.conversations(), 0u);
}

// A process that was killed says nothing; whoever knows of it says so instead.
TEST(Cm, APeerThatHasEndedIsTheEndOfItsConnections) {
  const auto end_b = [](Talk& talk) {
    talk.a.agent.on_peer_ended(
        3, [](const wire::Gid&) { return true; }, talk.now);  // somebody else
    talk.a.agent.on_peer_ended(
        2, [](const wire::Gid& gid) { return gid != gid_of(2); }, talk.now);  // of another host
    EXPECT_TRUE(talk.a.events().empty());
    talk.a.agent.on_peer_ended(
        2, [](const wire::Gid& gid) { return gid == gid_of(2); }, talk.now);
  };
  Talk established;
  established.listen();
  established.establish();
  established.a.events();
  end_b(established);
  EXPECT_EQ(established.a.only(EventKind::Disconnected).reason.id, ReasonId::PeerEnded);
  end_b(established);
  EXPECT_TRUE(established.settle().empty());

  Talk replied;
  replied.listen();
  const Talk::Ids ids = replied.ask();
  replied.accept(ids.b);
  replied.settle();
  replied.a.only(EventKind::Reply);
  end_b(replied);
  EXPECT_EQ(replied.a.only(EventKind::Unreachable).reason.id, ReasonId::PeerEnded);
  EXPECT_EQ(replied.a.agent.establish(ids.a, {}, replied.now).error().id,
            ReasonId::ConnectionState);
}

// CASES C80: what the rejecting program says reaches the other one, whole.
TEST(Cm, ARejectionArrivesWithItsBytes) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, kRejPrivateBytes}) {
    Talk talk;
    talk.listen();
    const Talk::Ids ids = talk.ask();
    const auto bytes = counted_bytes(count);
    EXPECT_TRUE(talk.b.agent.reject(ids.b, bytes, talk.now));
    EXPECT_EQ(talk.settle(), Names{"ConnectReject"});
    const Event rejected = talk.a.only(EventKind::Rejected);
    EXPECT_EQ(rejected.id, ids.a);
    EXPECT_EQ(rejected.status, 28);
    EXPECT_EQ(rejected.reason.id, ReasonId::RejectedByProgram);
    EXPECT_TRUE(begins_with(rejected.private_bytes, bytes));
    EXPECT_EQ(rejected.private_bytes.size(), kRejPrivateBytes);
  }
}

// CASES C80: a closed port is a rejection, not a time-out.
TEST(Cm, APortThatNobodyListensToIsRejectedAtOnce) {
  Talk talk;
  talk.connect();
  EXPECT_EQ(talk.settle(), (Names{"ConnectRequest", "ConnectReject"}));
  const Event rejected = talk.a.only(EventKind::Rejected);
  EXPECT_EQ(rejected.status, 8);
  EXPECT_EQ(rejected.reason.id, ReasonId::NoListener);
  EXPECT_EQ(talk.a.agent.next_deadline(), Time::never());
}

// CASES C80: no room in the backlog is no rejection, since there may be room for the next try.
TEST(Cm, ARequestThatFindsTheBacklogFullComesAgain) {
  Talk talk;
  const ListenerId listener = talk.listen(1);
  talk.connect(0x11);
  const wire::CommId second = talk.connect(0x12);
  talk.settle();
  auto events = talk.b.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].kind, EventKind::BacklogFull);
  EXPECT_EQ(events[1].listener, listener);
  EXPECT_EQ(events[1].reason.id, ReasonId::BacklogFull);
  EXPECT_EQ(events[1].reason.high, 1u);
  talk.accept(events[0].id);
  talk.settle();
  talk.a.only(EventKind::Reply);
  EXPECT_EQ(talk.wait(), kResponse);
  talk.settle();
  EXPECT_EQ(talk.b.only(EventKind::ConnectRequest).terms.remote_qpn, wire::Qpn{0x12});
  EXPECT_NE(talk.a.agent.find(second), nullptr);
}

// 12.9.3: a request is repeated after the time that the peer was given and the way there and back.
TEST(Cm, ALostRequestIsSentAgain) {
  Talk talk;
  talk.listen();
  talk.connect();
  EXPECT_EQ(talk.lose(), Names{"ConnectRequest"});
  EXPECT_EQ(talk.wait(), kResponse);
  EXPECT_EQ(talk.settle(), Names{"ConnectRequest"});
  talk.b.only(EventKind::ConnectRequest);
  EXPECT_EQ(talk.a.agent.tally().resent, 1u);
}

TEST(Cm, APeerThatNeverAnswersIsUnreachableAfterAllRetries) {
  Talk talk;
  ConnectRequest request = talk.request();
  request.patience.retries = 3;
  const auto id = talk.a.agent.connect(request, talk.now);
  ASSERT_TRUE(id);
  const Time began = talk.now;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(talk.lose(), Names{"ConnectRequest"});
    EXPECT_TRUE(talk.a.events().empty());
    talk.wait();
  }
  const Event event = talk.a.only(EventKind::Unreachable);
  EXPECT_EQ(event.reason.id, ReasonId::ConnectTimedOut);
  EXPECT_EQ((talk.now - began).ps, (kResponse * 4).ps);
  // Who has heard it after all is told that nobody waits any more.
  EXPECT_EQ(talk.lose(), Names{"ConnectReject"});
  talk.a.agent.destroy(*id, talk.now);
  EXPECT_EQ(talk.a.agent.conversations(), 0u);
}

TEST(Cm, AProgramIsToldThatTheOtherSideHasGivenUp) {
  Talk talk;
  talk.listen();
  ConnectRequest request = talk.request();
  request.patience.retries = 0;
  ASSERT_TRUE(talk.a.agent.connect(request, talk.now));
  talk.settle();
  const wire::CommId asked = talk.b.only(EventKind::ConnectRequest).id;
  talk.wait();
  talk.a.only(EventKind::Unreachable);
  EXPECT_EQ(talk.settle(), Names{"ConnectReject"});
  const Event event = talk.b.only(EventKind::Rejected);
  EXPECT_EQ(event.id, asked);
  EXPECT_EQ(event.reason.id, ReasonId::PeerGaveUp);
  EXPECT_FALSE(talk.b.agent.accept(asked, {}, talk.now));
}

// 12.9.5 (REP wait): a program that takes its time costs the peer no retries but the first.
TEST(Cm, ASecondRequestWhileTheProgramThinksIsAnsweredByAnMra) {
  Talk talk({.service_timeout = 22});
  talk.listen();
  const Talk::Ids ids = talk.ask();
  EXPECT_EQ(talk.wait(), kResponse);
  EXPECT_EQ(talk.settle(), (Names{"ConnectRequest", "MsgRcptAck"}));
  EXPECT_TRUE(talk.b.events().empty()) << "a duplicate is no new request";
  EXPECT_EQ(talk.a.agent.next_deadline() - talk.now, wire::duration_of(22) + wire::duration_of(17));
  talk.pass(seconds(15));
  EXPECT_TRUE(talk.lose().empty());
  talk.accept(ids.b);
  talk.settle();
  EXPECT_EQ(talk.a.only(EventKind::Reply).id, ids.a);
}

TEST(Cm, AnMraExtendsATryOnceOnly) {
  Talk talk;
  talk.listen();
  const wire::CommId id = talk.connect();
  talk.lose();
  const auto mra = [&](std::uint8_t timeout) {
    const wire::CmMra message{.local_id = {5}, .remote_id = id, .service_timeout = timeout};
    talk.give(talk.a, {talk.b.gid, talk.a.gid, wire::emit_cm({.message = message})});
  };
  mra(31);  // 2.4 hours are not believed
  EXPECT_EQ(talk.a.agent.next_deadline() - talk.now,
            wire::duration_of(kMaxPatience) + wire::duration_of(17));
  const Time until = talk.a.agent.next_deadline();
  talk.pass(seconds(1));
  mra(31);
  EXPECT_EQ(talk.a.agent.next_deadline(), until);
  talk.pass(until - talk.now);
  EXPECT_EQ(talk.lose(), Names{"ConnectRequest"});
}

TEST(Cm, ALostReplyIsSentAgain) {
  Talk talk;
  talk.listen();
  talk.accept(talk.ask().b);
  EXPECT_EQ(talk.lose(), Names{"ConnectReply"});
  EXPECT_EQ(talk.wait(), kResponse);
  // Both sides' timers: the request comes again and is answered, and the reply comes by itself.
  EXPECT_EQ(talk.settle(), (Names{"ConnectRequest", "ConnectReply", "ConnectReply", "MsgRcptAck"}));
  talk.a.only(EventKind::Reply);
}

// The first reply establishes; each that comes later shows that the RTU was lost.
TEST(Cm, ALostRtuIsSentAgainForEachReply) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.agree();
  EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  EXPECT_EQ(talk.lose(), Names{"ReadyToUse"});
  talk.wait();
  EXPECT_EQ(talk.settle(), (Names{"ConnectReply", "ReadyToUse"}));
  talk.b.only(EventKind::Established);
  EXPECT_TRUE(talk.a.events().empty());
}

TEST(Cm, AnAcceptedConnectionThatIsNeverConfirmedEnds) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.ask();
  talk.accept(ids.b);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(talk.b.said().size(), 1u);
    talk.a.said();
    talk.now = talk.b.agent.next_deadline();
    talk.b.agent.on_time(talk.now);
  }
  const Event event = talk.b.only(EventKind::Unreachable);
  EXPECT_EQ(event.reason.id, ReasonId::AcceptUnconfirmed);
  EXPECT_EQ(event.id, ids.b);
}

// 12.9.5 (communication established): what came through the connection is as good as an RTU.
TEST(Cm, TheFirstBytesEstablishAConnectionWhoseRtuIsLost) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.agree();
  EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  const auto rtu = talk.a.said();
  EXPECT_TRUE(talk.b.agent.establish(ids.b, {}, talk.now));
  talk.b.only(EventKind::Established);
  EXPECT_EQ(talk.b.agent.next_deadline(), Time::never());
  talk.give(talk.b, rtu.at(0));
  EXPECT_TRUE(talk.b.events().empty()) << "once";
  EXPECT_TRUE(talk.b.agent.establish(ids.b, {}, talk.now));
}

// The peer was established and has ended it before its RTU came: this side hears of both.
TEST(Cm, ADreqAheadOfTheRtuSaysBoth) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.agree();
  EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  const auto rtu = talk.a.said();
  EXPECT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
  talk.settle();
  const auto events = talk.b.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, EventKind::Established);
  EXPECT_EQ(events[1].kind, EventKind::Disconnected);
  talk.give(talk.b, rtu.at(0));
  EXPECT_TRUE(talk.b.events().empty());
  EXPECT_TRUE(talk.b.said().empty());
}

TEST(Cm, ADisconnectionSurvivesLostMessages) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.establish();
  EXPECT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
  EXPECT_EQ(talk.lose(), Names{"DisconnectRequest"});
  EXPECT_EQ(talk.wait(), kResponse);
  const auto again = talk.a.said();
  talk.give(talk.b, again.at(0));
  talk.b.only(EventKind::Disconnected);
  EXPECT_EQ(talk.lose(), Names{"DisconnectReply"});
  // In TimeWait it answers again, and after that too.
  talk.give(talk.b, again.at(0));
  EXPECT_EQ(talk.lose(), Names{"DisconnectReply"});
  talk.b.agent.destroy(ids.b, talk.now);
  talk.pass(kResponse);
  EXPECT_EQ(talk.b.agent.conversations(), 0u);
  EXPECT_EQ(talk.settle(), (Names{"DisconnectRequest", "DisconnectReply"}));
  talk.a.only(EventKind::Disconnected);
}

// Packets that outlive their connection start nothing again.
TEST(Cm, WhatBothSidesKnowIsOverIsNotSaidAgain) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.establish();
  EXPECT_TRUE(talk.b.agent.disconnect(ids.b, {}, talk.now));
  talk.settle();
  const auto late = [&](End& to, const wire::CmMessage& message) {
    const wire::Gid& from = &to == &talk.a ? talk.b.gid : talk.a.gid;
    talk.give(to, {from, to.gid, wire::emit_cm({.message = message})});
    return to.said().size();
  };
  EXPECT_EQ(late(talk.a, wire::CmRep{.local_id = ids.b, .remote_id = ids.a}), 0u);
  EXPECT_EQ(late(talk.b, wire::CmRtu{.local_id = ids.a, .remote_id = ids.b}), 0u);
}

TEST(Cm, APeerThatIsGoneDoesNotKeepAConnection) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.establish();
  EXPECT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(talk.lose(), Names{"DisconnectRequest"});
    EXPECT_TRUE(talk.a.events().empty());
    talk.wait();
  }
  const Event event = talk.a.only(EventKind::Disconnected);
  EXPECT_EQ(event.reason.id, ReasonId::DisconnectUnanswered);
  EXPECT_EQ(talk.wait(), kTimeWait);
  talk.a.only(EventKind::TimewaitExit);
}

TEST(Cm, BothSidesMayEndItAtOnce) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.establish();
  EXPECT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
  EXPECT_TRUE(talk.b.agent.disconnect(ids.b, {}, talk.now));
  const Names names = talk.settle();
  EXPECT_EQ(std::ranges::count(names, "DisconnectRequest"), 2);
  talk.a.only(EventKind::Disconnected);
  talk.b.only(EventKind::Disconnected);
}

// 12.9.8.3.1: a peer that died and comes back with the same queue pair number.
TEST(Cm, AStaleConnectionIsTakenDownAndTheNextTrySucceeds) {
  Talk talk;
  talk.listen();
  const Talk::Ids old = talk.establish(0x11);
  talk.a.agent = End(1, {}, 77).agent;  // another process, of which nothing is known
  talk.connect(0x11);
  const Names names = talk.settle();
  EXPECT_EQ(std::ranges::count(names, "ConnectReject"), 1);
  EXPECT_EQ(std::ranges::count(names, "DisconnectRequest"), 1);
  const Event rejected = talk.a.only(EventKind::Rejected);
  EXPECT_EQ(rejected.status, static_cast<std::uint16_t>(RejReason::StaleConnection));
  EXPECT_EQ(rejected.reason.id, ReasonId::ConnectionStale);
  EXPECT_EQ(talk.b.only(EventKind::Disconnected).id, old.b);
  talk.establish(0x11, 0x23);
}

// The same seen by who connects: the server came back with a number that this side still uses.
TEST(Cm, AReplyFromAQueuePairInUseIsRefused) {
  Talk talk;
  talk.listen();
  const Talk::Ids old = talk.establish(0x11, 0x22);
  talk.b.agent = End(2, {}, 77).agent;
  talk.listen();
  talk.accept(talk.ask(0x12).b, 0x22);
  talk.settle();
  const auto events = talk.a.events();
  ASSERT_EQ(events.size(), 2u);
  for (const Event& event : events) {
    if (event.id == old.a)
      EXPECT_EQ(event.kind, EventKind::Disconnected);
    else
      EXPECT_EQ(event.reason.id, ReasonId::ConnectionStale);
  }
  EXPECT_EQ(talk.b.only(EventKind::Rejected).reason.id, ReasonId::ConnectionStale);
}

// 12.9.8.2: what is unknown is answered, so that the other side does not wait.
TEST(Cm, WhoTalksOfAConnectionThatIsUnknownIsToldSo) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.ask();
  talk.accept(ids.b);
  talk.a.agent = End(1, {}, 77).agent;
  EXPECT_EQ(talk.settle(), (Names{"ConnectReply", "ConnectReject"}));
  const Event event = talk.b.only(EventKind::Rejected);
  EXPECT_EQ(event.status, static_cast<std::uint16_t>(RejReason::InvalidCommId));
  EXPECT_EQ(event.reason.id, ReasonId::ConnectionUnknown);
  EXPECT_EQ(talk.a.agent.tally().unknown, 1u);
  const wire::CmDreq dreq{.local_id = ids.b, .remote_id = ids.a};
  talk.give(talk.a, {talk.b.gid, talk.a.gid, wire::emit_cm({.transaction = 99, .message = dreq})});
  const auto said = talk.a.said();
  ASSERT_EQ(said.size(), 1u);
  const auto drep = std::get<wire::CmDrep>(read(said[0]).message);
  EXPECT_EQ(drep.local_id, ids.a);
  EXPECT_EQ(drep.remote_id, ids.b);
  EXPECT_EQ(read(said[0]).transaction, 99u);
}

// A program that destroys its id ends the conversation as its state demands.
TEST(Cm, DestroyingAnIdTellsTheOtherSide) {
  const auto at = [](int step, EventKind expected, ReasonId reason, bool by_active) {
    Talk talk;
    talk.listen();
    const Talk::Ids ids = step == 0 ? talk.ask() : step == 1 ? talk.agree() : talk.establish();
    End& destroyer = by_active ? talk.a : talk.b;
    destroyer.agent.destroy(by_active ? ids.a : ids.b, talk.now);
    talk.settle();
    EXPECT_TRUE(destroyer.events().empty());
    const Event event = (by_active ? talk.b : talk.a).only(expected);
    EXPECT_EQ(event.reason.id, reason);
    talk.pass(seconds(100));
    EXPECT_EQ(destroyer.agent.conversations(), 0u);
    EXPECT_TRUE(talk.lose().empty());
  };
  at(0, EventKind::Rejected, ReasonId::PeerGaveUp, true);
  at(0, EventKind::Rejected, ReasonId::RejectedByProgram, false);
  at(1, EventKind::Rejected, ReasonId::RejectedByProgram, true);
  at(1, EventKind::Rejected, ReasonId::RejectedByProgram, false);
  at(2, EventKind::Disconnected, ReasonId::None, true);
  at(2, EventKind::Disconnected, ReasonId::None, false);
}

// It destroyed the id, and its DREQ was lost: it goes on, or the peer would wait for ever.
TEST(Cm, ADestroyedConnectionStillSaysThatItEnds) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.establish();
  talk.a.agent.destroy(ids.a, talk.now);
  EXPECT_EQ(talk.lose(), Names{"DisconnectRequest"});
  EXPECT_EQ(talk.a.agent.find(ids.a), nullptr);
  EXPECT_EQ(talk.wait(), kResponse);
  EXPECT_EQ(talk.settle(), (Names{"DisconnectRequest", "DisconnectReply"}));
  talk.b.only(EventKind::Disconnected);
  talk.pass(kTimeWait);
  EXPECT_EQ(talk.a.agent.conversations(), 0u);
  EXPECT_TRUE(talk.a.events().empty());
}

// The REJ was lost: the request that comes again is refused again, and is no new request.
TEST(Cm, ALostRejectionIsSaidAgain) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.ask();
  const auto bytes = counted_bytes(7);
  EXPECT_TRUE(talk.b.agent.reject(ids.b, bytes, talk.now));
  talk.b.agent.destroy(ids.b, talk.now);
  EXPECT_EQ(talk.lose(), Names{"ConnectReject"});
  EXPECT_EQ(talk.wait(), kResponse);
  EXPECT_EQ(talk.settle(), (Names{"ConnectRequest", "ConnectReject"}));
  EXPECT_TRUE(talk.b.events().empty());
  EXPECT_TRUE(begins_with(talk.a.only(EventKind::Rejected).private_bytes, bytes));
}

// How long that is, says the request: the peer asks again after the time that it gives this side.
TEST(Cm, ARejectionIsKeptAsLongAsThePeerAsks) {
  Talk talk;
  talk.listen();
  talk.connect();
  const Outgoing out = changed<wire::CmReq>(
      talk.a.said().at(0), [](wire::CmReq& req) { req.local_response_timeout = 0; });
  talk.give(talk.b, out);
  talk.b.agent.destroy(talk.b.only(EventKind::ConnectRequest).id, talk.now);
  EXPECT_EQ(talk.lose(), Names{"ConnectReject"});
  talk.pass(kResponse);
  talk.lose();
  talk.give(talk.b, out);
  EXPECT_EQ(talk.lose(), Names{"ConnectReject"});
  EXPECT_TRUE(talk.b.events().empty());
}

// The passive side has gone, and says so after the other side believes in the connection.
TEST(Cm, ARejectionOfWhatIsEstablishedIsADisconnection) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.agree();
  EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  const auto rtu = talk.a.said();
  talk.b.agent.destroy(ids.b, talk.now);
  EXPECT_EQ(talk.lose(), Names{"ConnectReject"});
  talk.give(talk.b, rtu.at(0));
  EXPECT_EQ(talk.settle(), Names{"ConnectReject"}) << "once more, for the RTU that came too late";
  const Event event = talk.a.only(EventKind::Disconnected);
  EXPECT_EQ(event.reason.id, ReasonId::RejectedByProgram);
}

TEST(Cm, AQueuePairOfDatagramsIsResolved) {
  Talk talk;
  talk.listen(8, true);
  ResolveRequest request = talk.resolution();
  const auto question = counted_bytes(kIpSidrReqPrivateBytes);
  request.private_bytes = question;
  const auto id = talk.a.agent.resolve(request, talk.now);
  ASSERT_TRUE(id);
  EXPECT_EQ(talk.settle(), Names{"ServiceIDResReq"});
  const Event asked = talk.b.only(EventKind::ResolveRequest);
  EXPECT_TRUE(begins_with(asked.private_bytes, question));
  EXPECT_EQ(asked.terms.addresses, request.addresses);
  EXPECT_EQ(asked.terms.path.remote, talk.a.gid);
  const auto answer = counted_bytes(kSidrRepPrivateBytes);
  EXPECT_TRUE(talk.b.agent.answer(
      asked.id, {.qpn = {0x25}, .qkey = 0x01234567, .ece = {3, 4}, .private_bytes = answer},
      talk.now));
  EXPECT_EQ(talk.lose(), Names{"ServiceIDResReqResp"});
  // Asked again it says the same, without the program.
  EXPECT_EQ(talk.wait(), kResponse);
  EXPECT_EQ(talk.settle(), (Names{"ServiceIDResReq", "ServiceIDResReqResp"}));
  EXPECT_TRUE(talk.b.events().empty());
  const Event resolved = talk.a.only(EventKind::Resolved);
  EXPECT_EQ(resolved.id, *id);
  EXPECT_EQ(resolved.terms.remote_qpn, wire::Qpn{0x25});
  EXPECT_EQ(resolved.terms.remote_qkey, 0x01234567u);
  EXPECT_EQ(resolved.terms.remote_ece, (Ece{3, 4}));
  EXPECT_TRUE(begins_with(resolved.private_bytes, answer));
  talk.a.agent.destroy(*id, talk.now);
  talk.b.agent.destroy(asked.id, talk.now);
  talk.pass(seconds(60));
  EXPECT_EQ(talk.a.agent.conversations() + talk.b.agent.conversations(), 0u);
}

TEST(Cm, AResolutionFailsInAsManyWays) {
  Talk talk;
  const auto ask = [&] {
    ResolveRequest request = talk.resolution();
    request.patience.retries = 1;
    EXPECT_TRUE(talk.a.agent.resolve(request, talk.now));
  };
  ask();
  EXPECT_EQ(talk.settle(), (Names{"ServiceIDResReq", "ServiceIDResReqResp"}));
  const Event nobody = talk.a.only(EventKind::Rejected);
  EXPECT_EQ(nobody.status, static_cast<std::uint16_t>(wire::SidrStatus::Unsupported));
  EXPECT_EQ(nobody.reason.id, ReasonId::NoListener);

  talk.listen(1, true);
  ask();
  talk.settle();
  const Event asked = talk.b.only(EventKind::ResolveRequest);
  const auto why = counted_bytes(3);
  EXPECT_TRUE(talk.b.agent.reject(asked.id, why, talk.now));
  talk.settle();
  const Event rejected = talk.a.only(EventKind::Rejected);
  EXPECT_EQ(rejected.status, static_cast<std::uint16_t>(wire::SidrStatus::Rejected));
  EXPECT_TRUE(begins_with(rejected.private_bytes, why));

  ask();
  talk.settle();
  talk.b.agent.destroy(talk.b.only(EventKind::ResolveRequest).id, talk.now);
  talk.settle();
  EXPECT_EQ(talk.a.only(EventKind::Rejected).reason.id, ReasonId::RejectedByProgram);

  ask();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(talk.a.said().size(), 1u);
    talk.pass(kResponse);
  }
  EXPECT_EQ(talk.a.only(EventKind::Unreachable).reason.id, ReasonId::ConnectTimedOut);
}

// CASES C82: nothing grows with the number of connections that there were.
TEST(Cm, ThousandsOfConnectionsLeaveNothing) {
  Talk talk;
  const ListenerId listener = talk.listen(600);
  std::size_t most = 0;
  for (std::uint32_t i = 0; i < 20'000; ++i) {
    const Talk::Ids ids = talk.establish(0x1000 + i % 0x800, 0x2000 + i % 0x800);
    EXPECT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
    talk.settle();
    talk.a.only(EventKind::Disconnected);
    talk.b.only(EventKind::Disconnected);
    talk.a.agent.destroy(ids.a, talk.now);
    talk.b.agent.destroy(ids.b, talk.now);
    talk.pass(milliseconds(1));
    most = std::max({most, talk.a.agent.conversations(), talk.b.agent.conversations()});
  }
  EXPECT_LT(most, 600u) << "as many as TimeWait lasts milliseconds";
  std::vector<Talk::Ids> all;
  for (std::uint32_t i = 0; i < 500; ++i) all.push_back({talk.connect(0x10'000 + i), {}});
  talk.settle();
  for (const Event& event : talk.b.events()) talk.accept(event.id, event.terms.remote_qpn.value);
  talk.settle();
  EXPECT_EQ(talk.a.events().size(), 500u);
  for (const Talk::Ids& ids : all) EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  talk.settle();
  const auto established = talk.b.events();
  EXPECT_EQ(established.size(), 500u);
  for (const Talk::Ids& ids : all) talk.a.agent.destroy(ids.a, talk.now);
  talk.settle();
  for (const Event& event : established) talk.b.agent.destroy(event.id, talk.now);
  talk.b.agent.close(listener);
  talk.pass(seconds(60));
  EXPECT_TRUE(talk.lose().empty());
  EXPECT_TRUE(talk.a.events().empty());
  EXPECT_TRUE(talk.b.events().empty());
  EXPECT_EQ(talk.a.agent.conversations() + talk.b.agent.conversations(), 0u);
  EXPECT_EQ(talk.b.agent.next_deadline(), Time::never());
}

// 12.7.34: the delay that a REP adds to the way there and back is a peer's word like all others, or
// an end would wait for 2.4 hours.
TEST(Cm, AReplysDelayIsBelievedUpToALimit) {
  Talk talk;
  talk.listen();
  const Talk::Ids ids = talk.ask();
  talk.accept(ids.b);
  talk.give(talk.a, changed<wire::CmRep>(talk.b.said().at(0),
                                         [](wire::CmRep& rep) { rep.target_ack_delay = 31; }));
  EXPECT_EQ(talk.a.only(EventKind::Reply).terms.path.ack_timeout, kMaxPatience);
  EXPECT_TRUE(talk.a.agent.establish(ids.a, {}, talk.now));
  talk.settle();
  EXPECT_TRUE(talk.a.agent.disconnect(ids.a, {}, talk.now));
  talk.settle();
  EXPECT_EQ(talk.a.agent.next_deadline() - talk.now, wire::duration_of(kMaxPatience));
  EXPECT_EQ(talk.wait(), kTimeWait) << "of the other side, which has heard of no delay";
  EXPECT_EQ(talk.wait(), wire::duration_of(kMaxPatience) - kTimeWait);
}

}  // namespace
}  // namespace softhca::cm
