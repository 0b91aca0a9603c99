// Talk: two agents, with a hand between them that delivers, loses and repeats what they say.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cm/agent.h"
#include "wire/cm_text.h"

namespace softhca::cm {

constexpr wire::Gid gid_of(std::uint8_t number) { return wire::Gid::of_ipv4({192, 0, 2, number}); }
inline constexpr wire::ServiceId kPort = wire::service_of(wire::PortSpace::Tcp, 7174);
inline constexpr wire::ServiceId kDatagramPort = wire::service_of(wire::PortSpace::Udp, 7174);

inline std::vector<std::byte> counted_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}
// Whether an event's bytes are these, and zeros behind.
inline bool begins_with(const std::vector<std::byte>& all, const std::vector<std::byte>& bytes) {
  const auto rest = static_cast<std::ptrdiff_t>(std::min(bytes.size(), all.size()));
  return all.size() >= bytes.size() && std::equal(bytes.begin(), bytes.end(), all.begin()) &&
         std::all_of(all.begin() + rest, all.end(), [](std::byte b) { return b == std::byte{}; });
}

struct End {
  explicit End(std::uint8_t number, Settings settings = {}, std::uint64_t seed = 1)
      : gid(gid_of(number)), agent([&] {
          settings.ca_guid = 0x1000 + number;
          settings.block = number;
          return Agent(settings, Prng(seed * 256 + number));
        }()) {}

  std::vector<Event> events() {
    std::vector<Event> all;
    while (auto event = agent.poll_event()) all.push_back(*event);
    return all;
  }
  // The only event that there is; kind and reason are printed if it is another.
  Event only(EventKind kind) {
    const auto all = events();
    EXPECT_EQ(all.size(), 1u);
    if (all.empty()) return {};
    EXPECT_EQ(all[0].kind, kind) << trace::reason_text(all[0].reason);
    return all[0];
  }
  std::vector<Outgoing> said() {
    std::vector<Outgoing> all;
    while (const auto out = agent.poll_datagram()) all.push_back(*out);
    return all;
  }

  wire::Gid gid;
  Agent agent;
};

inline wire::CmMad read(const Outgoing& out) {
  const auto mad = wire::parse_cm(out.mad);
  EXPECT_TRUE(mad);
  return mad ? *mad : wire::CmMad{};
}
// The same with another message, which has to be of this kind.
template <class Message>
Outgoing changed(Outgoing out, const auto& change) {
  wire::CmMad mad = read(out);
  change(std::get<Message>(mad.message));
  out.mad = wire::emit_cm(mad);
  return out;
}

using Names = std::vector<std::string>;

struct Talk {
  explicit Talk(const Settings& settings = {}) : a(1, settings), b(2, settings) {}

  ConnectRequest request(std::uint32_t qpn = 0x11) const {
    ConnectRequest request;
    request.service = kPort;
    request.addresses = {.source_port = 40'000, .source = a.gid, .destination = b.gid};
    request.path.local = a.gid;
    request.path.remote = b.gid;
    request.qpn = {qpn};
    request.responder_resources = 4;
    request.initiator_depth = 3;
    return request;
  }
  ResolveRequest resolution() const {
    ResolveRequest request;
    request.service = kDatagramPort;
    request.addresses = {.source_port = 40'000, .source = a.gid, .destination = b.gid};
    request.path.local = a.gid;
    request.path.remote = b.gid;
    return request;
  }
  ListenerId listen(std::uint32_t backlog = 8, bool datagrams = false) {
    const auto id = b.agent.listen(
        {.service = datagrams ? kDatagramPort : kPort, .backlog = backlog, .datagrams = datagrams});
    EXPECT_TRUE(id);
    return *id;
  }
  wire::CommId connect(std::uint32_t qpn = 0x11) {
    const auto id = a.agent.connect(request(qpn), now);
    EXPECT_TRUE(id);
    return id ? *id : wire::CommId{};
  }
  void accept(wire::CommId id, std::uint32_t qpn = 0x22) {
    AcceptRequest request;
    request.qpn = {qpn};
    request.responder_resources = 8;
    request.initiator_depth = 8;
    EXPECT_TRUE(b.agent.accept(id, request, now));
  }

  void give(End& to, const Outgoing& datagram) {
    EXPECT_EQ(datagram.destination, to.gid);
    to.agent.on_datagram({.source = datagram.source,
                          .destination = datagram.destination,
                          .source_qpn = wire::kManagementQpn},
                         datagram.mad, now);
  }
  // Delivers until nobody says anything; the names of what was said.
  Names settle() {
    Names names;
    for (bool more = true; more;) {
      more = false;
      for (End* from : {&a, &b})
        for (const Outgoing& out : from->said()) {
          more = true;
          names.emplace_back(wire::cm_message_name(read(out).message));
          give(from == &a ? b : a, out);
        }
    }
    return names;
  }
  // What was said and is lost.
  Names lose() {
    Names names;
    for (End* from : {&a, &b})
      for (const Outgoing& out : from->said())
        names.emplace_back(wire::cm_message_name(read(out).message));
    return names;
  }
  // Goes to the next deadline of one of them; how long that was.
  Duration wait() {
    const Time next = earlier(a.agent.next_deadline(), b.agent.next_deadline());
    EXPECT_NE(next, Time::never());
    const Duration waited = next - now;
    pass(waited);
    return waited;
  }
  void pass(Duration time) {
    now = now + time;
    a.agent.on_time(now);
    b.agent.on_time(now);
  }

  struct Ids {
    wire::CommId a;
    wire::CommId b;
  };
  // A connection as far as b's ConnectRequest, as a's Reply, as b's Established; these events are
  // taken. REQUIRES: b listens.
  Ids ask(std::uint32_t qpn_a = 0x11) {
    const wire::CommId id = connect(qpn_a);
    settle();
    return {id, b.only(EventKind::ConnectRequest).id};
  }
  Ids agree(std::uint32_t qpn_a = 0x11, std::uint32_t qpn_b = 0x22) {
    const Ids ids = ask(qpn_a);
    accept(ids.b, qpn_b);
    settle();
    a.only(EventKind::Reply);
    return ids;
  }
  Ids establish(std::uint32_t qpn_a = 0x11, std::uint32_t qpn_b = 0x22) {
    const Ids ids = agree(qpn_a, qpn_b);
    EXPECT_TRUE(a.agent.establish(ids.a, {}, now));
    settle();
    b.only(EventKind::Established);
    return ids;
  }

  Time now{1};
  End a;
  End b;
};

}  // namespace softhca::cm
