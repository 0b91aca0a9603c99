// Datagrams for queue pair 1, calls and time in any order: what is accepted is written back, and
// the agent keeps to its limits, answers no more than it is sent, and forgets all in the end.
#include <algorithm>
#include <set>
#include <vector>

#include "base/cursor.h"
#include "cm/agent.h"
#include "wire/cm_text.h"

namespace softhca::cm {
namespace {

constexpr wire::Gid kOwn = wire::Gid::of_ipv4({10, 0, 0, 1});
constexpr wire::ServiceId kConnections = wire::service_of(wire::PortSpace::Tcp, 1);
constexpr wire::ServiceId kDatagrams = wire::service_of(wire::PortSpace::Udp, 1);
constexpr Limits kLimits = {.conversations = 24, .lingering = 8};
constexpr std::size_t kMessageAt = 24;
constexpr Time kEnd = Time{0} + seconds(30 * 86'400);  // then time stands still

wire::Gid peer_of(unsigned number) {
  return wire::Gid::of_ipv4({10, 0, 0, static_cast<std::uint8_t>(2 + (number & 1))});
}

class Fuzzed {
 public:
  explicit Fuzzed(ConstBytes input) : cursor_(input) {
    ASSERT(agent_.listen({.service = kConnections, .backlog = 4}));
    ASSERT(agent_.listen({.service = kDatagrams, .backlog = 4, .datagrams = true}));
  }

  void run() {
    while (cursor_.left() >= 2) {
      const auto what = cursor_.take_be<std::uint8_t>(), which = cursor_.take_be<std::uint8_t>();
      if (what < 128)
        datagram(what, which);
      else if (what < 192)
        call(what % 8u, which);
      else
        pass(std::min(Duration{std::int64_t{1} << (what % 32u + 25)}, kEnd - now_));
      settle();
      ASSERT(agent_.conversations() <= kLimits.conversations);
    }
    while (!held_.empty()) destroy(*held_.begin());
    for (int i = 0; i < 64 * 32 && agent_.next_deadline() != Time::never(); ++i) {
      now_ = agent_.next_deadline();
      agent_.on_time(now_);
      settle();
    }
    ASSERT(agent_.conversations() == 0 && agent_.next_deadline() == Time::never());
  }

 private:
  wire::CommId one_of_ours(unsigned which) const {
    if (held_.empty()) return {};
    auto it = held_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(which % held_.size()));
    return *it;
  }

  // Fuzzed bytes with a right header; ids, addresses and services are mostly put right too.
  void datagram(std::uint8_t what, std::uint8_t which) {
    wire::CmMadBytes mad{};
    const ConstBytes bytes =
        cursor_.take(std::min({cursor_.left(), std::size_t{which}, mad.size() - kMessageAt}));
    std::ranges::copy(bytes, Bytes(mad).subspan(kMessageAt).begin());
    store_be(Bytes(mad), 0, std::uint32_t{0x01070203});
    store_be(Bytes(mad), 16, static_cast<std::uint16_t>(wire::kFirstCmAttribute + what % 16u));
    const Arrival arrival{peer_of(which), kOwn, wire::kManagementQpn};
    if (auto parsed = wire::parse_cm(mad)) {
      check_written(*parsed);
      if (what < 112) std::visit([&](auto& m) { put_right(m, arrival, which); }, parsed->message);
      mad = wire::emit_cm(*parsed);
    }
    const std::uint64_t dreqs_before = dreqs_;
    agent_.on_datagram(arrival, mad, now_);
    std::size_t answers = 0;
    while (const auto out = agent_.poll_datagram()) ++answers, count(*out);
    ASSERT(answers <= 1 + (dreqs_ - dreqs_before));
  }
  static void check_written(const wire::CmMad& mad) {
    const auto again = wire::parse_cm(wire::emit_cm(mad));
    ASSERT(again && *again == mad);
    ASSERT(wire::cm_text(mad).starts_with("CM "));
  }
  void put_right(wire::CmReq& m, const Arrival& from, unsigned) const {
    m.service = kConnections;
    m.primary.local_gid = from.source;
    m.primary.remote_gid = from.destination;
    m.path_mtu = 3;
    m.transport = wire::kCmRc;
    m.qpn.value &= 7;
    m.local_id.value &= 0xf;
    wire::emit_ip_service({1, from.source, from.destination}, m.private_bytes);
  }
  void put_right(wire::CmSidrReq& m, const Arrival& from, unsigned) const {
    m.service = kDatagrams;
    m.request_id.value &= 0xf;
    wire::emit_ip_service({1, from.source, from.destination}, m.private_bytes);
  }
  void put_right(wire::CmSidrRep& m, const Arrival&, unsigned which) const {
    m.request_id = one_of_ours(which / 2);
  }
  void put_right(auto& m, const Arrival&, unsigned which) const {
    m.remote_id = one_of_ours(which / 2);
    m.local_id.value &= 0xf;
    if constexpr (requires { m.remote_qpn; }) m.remote_qpn.value &= 7;
    if constexpr (requires { m.qpn; }) m.qpn.value &= 7;
  }

  void call(unsigned number, std::uint8_t which) {
    const wire::CommId id = one_of_ours(which);
    Path path;
    path.local = kOwn;
    path.remote = peer_of(which);
    const wire::IpAddresses addresses{1, kOwn, path.remote};
    const wire::Qpn qpn{which & 7u};
    const std::vector<std::byte> bytes(which);
    if (number == 0 || number == 1) {
      const auto opened = number == 0 ? agent_.connect({.service = kConnections,
                                                        .addresses = addresses,
                                                        .path = path,
                                                        .qpn = qpn,
                                                        .private_bytes = bytes},
                                                       now_)
                                      : agent_.resolve({.service = kDatagrams,
                                                        .addresses = addresses,
                                                        .path = path,
                                                        .private_bytes = bytes},
                                                       now_);
      if (opened) held_.insert(*opened);
      return;
    }
    if (id.value == 0) return;
    switch (number) {
      case 2:
        return static_cast<void>(agent_.accept(id, {.qpn = qpn, .private_bytes = bytes}, now_));
      case 3:
        return static_cast<void>(agent_.answer(id, {.qpn = qpn, .private_bytes = bytes}, now_));
      case 4:
        return static_cast<void>(agent_.reject(id, bytes, now_));
      case 5:
        return static_cast<void>(agent_.establish(id, bytes, now_));
      case 6:
        return static_cast<void>(agent_.disconnect(id, bytes, now_));
      default:
        return destroy(id);
    }
  }
  void destroy(wire::CommId id) {
    held_.erase(id);
    agent_.destroy(id, now_);
  }
  void pass(Duration time) {
    now_ = now_ + time;
    agent_.on_time(now_);
  }

  void settle() {
    while (const auto out = agent_.poll_datagram()) count(*out);
    while (const auto event = agent_.poll_event()) {
      if (event->kind == EventKind::BacklogFull) continue;
      const bool is_new =
          event->kind == EventKind::ConnectRequest || event->kind == EventKind::ResolveRequest;
      ASSERT(held_.contains(event->id) != is_new);
      ASSERT(agent_.find(event->id) != nullptr);
      held_.insert(event->id);
    }
  }
  void count(const Outgoing& out) {
    const auto mad = wire::parse_cm(out.mad);
    ASSERT(mad && out.source == kOwn);
    dreqs_ += std::holds_alternative<wire::CmDreq>(mad->message) ? 1u : 0u;
  }

  Cursor cursor_;
  Time now_{1};
  Agent agent_{{.ca_guid = 1, .block = 1, .limits = kLimits}, Prng(1)};
  std::set<wire::CommId> held_;
  std::uint64_t dreqs_ = 0;
};

}  // namespace
}  // namespace softhca::cm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const softhca::ConstBytes input = std::as_bytes(std::span(bytes, size));
  static_cast<void>(softhca::wire::parse_cm(input));
  static_cast<void>(softhca::wire::parse_ip_service(input));
  softhca::cm::Fuzzed(input).run();
  return 0;
}
