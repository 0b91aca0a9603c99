#include "cm_worlds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cm/agent.h"

namespace softhca::cm {
namespace {

constexpr wire::ServiceId kService = wire::service_of(wire::PortSpace::Tcp, 1000);
constexpr wire::ServiceId kDatagramService = wire::service_of(wire::PortSpace::Udp, 1000);
constexpr std::uint32_t kBacklog = 8;

// How bad the network is.
struct Weather {
  std::uint64_t loss = 0;  // of a thousand
  std::uint64_t twice = 0;
  Duration longest = milliseconds(1);
};

class Network {
 public:
  Network(const Weather& weather, Prng& prng) : weather_(weather), prng_(prng) {}

  void clear_up() { weather_ = {}; }
  void send(const Outgoing& out, Time now) {
    for (const std::byte b : out.mad) hash_ = (hash_ ^ std::to_integer<std::uint64_t>(b)) * kPrime;
    for (std::uint64_t copies = prng_.chance(weather_.twice, 1000) ? 2 : 1; copies > 0; --copies) {
      if (prng_.chance(weather_.loss, 1000))
        ++lost_;
      else
        under_way_.emplace(now + picoseconds(static_cast<std::int64_t>(
                                     prng_.below(static_cast<std::uint64_t>(weather_.longest.ps)))),
                           out);
    }
  }
  Time next() const { return under_way_.empty() ? Time::never() : under_way_.begin()->first; }
  Outgoing take() {
    const Outgoing first = under_way_.begin()->second;
    under_way_.erase(under_way_.begin());
    return first;
  }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t lost() const { return lost_; }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV-1a
  Weather weather_;
  Prng& prng_;
  std::multimap<Time, Outgoing> under_way_;
  std::uint64_t hash_ = 0xcbf29ce484222325, lost_ = 0;
};

// What a program knows of one of its conversations.
struct Known {
  bool is_passive{};
  bool is_resolution{};
  int outcomes = 0;  // established, rejected, unreachable
  bool established = false;
  bool ended = false;
  bool answered = false;
  Terms terms{};
  std::vector<std::byte> said{}, heard{};  // in REQ and REP
};

struct Fault {
  std::string what;
};

class Program {
 public:
  Program(std::uint8_t number, Prng& prng) : number_(number), prng_(prng) { start(); }

  wire::Gid gid() const { return wire::Gid::of_ipv4({10, 0, 0, number_}); }
  Agent& agent() { return *agent_; }
  const std::map<wire::CommId, Known>& known() const { return known_; }

  // All that the process knew is gone. Its queue pair numbers come again, when it does.
  void die(bool comes_back) {
    start();
    is_dead_ = !comes_back;
  }
  bool is_dead() const { return is_dead_; }
  void come_back() { is_dead_ = false; }

  void connect(const Program& to, Time now, bool to_datagrams) {
    const std::vector<std::byte> bytes = random_bytes(kIpReqPrivateBytes);
    Path path;
    path.local = gid();
    path.remote = to.gid();
    path.ack_timeout = static_cast<std::uint8_t>(10 + prng_.below(6));  // 4 to 134 ms
    const wire::IpAddresses addresses{1, gid(), to.gid()};
    const Patience patience{.response_timeout = 13,
                            .retries = static_cast<std::uint8_t>(prng_.below(16))};
    if (to_datagrams) {
      const auto id = agent_->resolve({.service = kDatagramService,
                                       .addresses = addresses,
                                       .path = path,
                                       .patience = patience,
                                       .private_bytes = bytes},
                                      now);
      if (id) known_[*id] = {.is_resolution = true};
      return;
    }
    const auto id = agent_->connect(
        {.service = prng_.chance(1, 20) ? wire::service_of(wire::PortSpace::Tcp, 9) : kService,
         .addresses = addresses,
         .path = path,
         .qpn = next_qpn(),
         .responder_resources = static_cast<std::uint8_t>(prng_.below(20)),
         .initiator_depth = static_cast<std::uint8_t>(prng_.below(20)),
         .patience = patience,
         .private_bytes = bytes},
        now);
    if (id) known_[*id] = {.said = bytes};
  }

  // Does one of the things that it could do now, or nothing.
  void act(Time now) {
    if (is_dead_ || known_.empty()) return;
    auto it = known_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(prng_.below(known_.size())));
    auto& [id, known] = *it;
    if (known.is_passive && !known.answered) return answer(id, known, now);
    if (known.outcomes > 0 && known.established && !known.ended && prng_.chance(1, 2)) {
      require(static_cast<bool>(agent_->disconnect(id, {}, now)), "disconnect is refused");
    } else if (known.outcomes > 0 || prng_.chance(1, 10)) {
      destroy(id, now);
    }
  }
  void answer_all(Time now) {
    for (auto it = known_.begin(); it != known_.end();) {
      const auto one = it++;  // answering may end it
      if (one->second.is_passive && !one->second.answered) answer(one->first, one->second, now);
    }
  }
  void finish(Time now) {
    while (!known_.empty()) destroy(known_.begin()->first, now);
  }

  void take_events(Time now, ConnectingOutcome& outcome) {
    while (const auto event = agent_->poll_event()) take(*event, now, outcome);
  }

 private:
  void start() {
    known_.clear();
    qpn_ = std::uint32_t{number_} << 12;
    agent_ = std::make_unique<Agent>(
        Settings{.ca_guid = number_, .block = number_, .service_timeout = 15}, Prng(prng_.next()));
    ASSERT(agent_->listen({.service = kService, .backlog = kBacklog}));
    ASSERT(agent_->listen({.service = kDatagramService, .backlog = kBacklog, .datagrams = true}));
  }
  wire::Qpn next_qpn() { return {qpn_++}; }
  std::vector<std::byte> random_bytes(std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (std::byte& b : bytes) b = static_cast<std::byte>(prng_.next());
    return bytes;
  }
  static void require(bool holds, const std::string& what) {
    if (!holds) throw Fault{what};
  }
  void destroy(wire::CommId id, Time now) {
    agent_->destroy(id, now);
    known_.erase(id);
  }

  void answer(wire::CommId id, Known& known, Time now) {
    known.answered = true;
    const bool refuses = prng_.chance(1, 5);
    if (refuses) {
      const bool was_open = static_cast<bool>(agent_->reject(id, {}, now));
      require(was_open || known.outcomes > 0, "reject is refused");
      destroy(id, now);
    } else if (known.is_resolution) {
      require(static_cast<bool>(agent_->answer(id, {.qpn = {number_}, .qkey = 77u + number_}, now)),
              "answer is refused");
      destroy(id, now);
    } else {
      known.said = random_bytes(kRepPrivateBytes);
      const bool was_open = static_cast<bool>(
          agent_->accept(id,
                         {.qpn = next_qpn(),
                          .responder_resources = static_cast<std::uint8_t>(prng_.below(20)),
                          .initiator_depth = static_cast<std::uint8_t>(prng_.below(20)),
                          .private_bytes = known.said},
                         now));
      require(was_open || known.outcomes > 0, "accept is refused");
      if (was_open) known.terms = agent_->find(id)->terms;
    }
  }

  void take(const Event& event, Time now, ConnectingOutcome& outcome) {
    if (event.kind == EventKind::BacklogFull) return;
    if (event.kind == EventKind::ConnectRequest || event.kind == EventKind::ResolveRequest) {
      require(!known_.contains(event.id), "a request under an id in use");
      known_[event.id] = {.is_passive = true,
                          .is_resolution = event.kind == EventKind::ResolveRequest,
                          .terms = event.terms,
                          .heard = event.private_bytes};
      return;
    }
    const auto it = known_.find(event.id);
    require(it != known_.end(), "an event about an id that nobody holds");
    Known& known = it->second;
    switch (event.kind) {
      case EventKind::Reply:
        require(!known.is_passive, "a reply for who accepts");
        known.heard = event.private_bytes;
        known.terms = event.terms;
        require(static_cast<bool>(agent_->establish(event.id, {}, now)), "establish is refused");
        [[fallthrough]];
      case EventKind::Established:
        known.established = true;
        ++outcome.established;
        return add_outcome(known);
      case EventKind::Resolved:
        require(known.is_resolution && event.terms.remote_qkey == 77 + event.terms.remote_qpn.value,
                "another queue pair was resolved");
        ++outcome.resolved;
        return add_outcome(known);
      case EventKind::Rejected:
        ++outcome.rejected;
        return add_outcome(known);
      case EventKind::Unreachable:
        ++outcome.unreachable;
        return add_outcome(known);
      case EventKind::Disconnected:
        require(known.established && !known.ended, "an end of what was not established");
        known.ended = true;
        return;
      case EventKind::TimewaitExit:
        require(known.ended, "TimeWait before the end");
        return;
      default:
        return;
    }
  }
  static void add_outcome(Known& known) {
    ++known.outcomes;
    require(known.outcomes == 1, "a second outcome");
  }

  std::uint8_t number_;
  Prng& prng_;
  std::unique_ptr<Agent> agent_;
  std::map<wire::CommId, Known> known_;
  std::uint32_t qpn_ = 0;
  bool is_dead_ = false;
};

class World {
 public:
  explicit World(std::uint64_t seed) : prng_(seed), network_(random_weather(prng_), prng_) {
    const std::uint64_t count = 2 + prng_.below(4);
    for (std::uint64_t i = 0; i < count; ++i)
      programs_.push_back(std::make_unique<Program>(static_cast<std::uint8_t>(i + 1), prng_));
    deadly_ = prng_.chance(1, 3);
  }

  ConnectingOutcome run() {
    try {
      for (int step = 0; step < 300; ++step) {
        begin_something();
        pass(microseconds(static_cast<std::int64_t>(prng_.below(30'000))));
        check_pairs();
      }
      network_.clear_up();
      for (int step = 0; step < 300; ++step) {
        for (auto& program : programs_) program->come_back(), program->act(now_);
        pass(milliseconds(10));
      }
      for (auto& program : programs_) program->answer_all(now_);
      pass(seconds(120));
      check_outcomes();
      check_pairs();
      for (auto& program : programs_) program->finish(now_);
      pass(seconds(120));
      check_empty();
    } catch (const Fault& fault) {
      outcome_.wrong = fmt::format("at {} ns: {}", now_.ps / 1000, fault.what);
    }
    outcome_.datagrams = network_.hash();
    outcome_.lost = network_.lost();
    return outcome_;
  }

 private:
  static Weather random_weather(Prng& prng) {
    Weather weather;
    if (prng.chance(3, 4)) weather.loss = prng.below(300);
    if (prng.chance(1, 2)) weather.twice = prng.below(300);
    weather.longest = microseconds(1 + static_cast<std::int64_t>(prng.below(200'000)));
    return weather;
  }
  Program& any() { return *programs_[prng_.below(programs_.size())]; }

  void begin_something() {
    Program& program = any();
    if (program.is_dead()) {
      if (prng_.chance(1, 10)) program.come_back();
    } else if (deadly_ && prng_.chance(1, 60)) {
      program.die(prng_.chance(1, 2));
      ++outcome_.deaths;
    } else if (prng_.chance(1, 3)) {
      program.connect(any(), now_, prng_.chance(1, 5));
    } else {
      program.act(now_);
    }
  }

  void pass(Duration time) {
    const Time end = now_ + time;
    settle();
    for (Time next = next_event(); next <= end; next = next_event()) {
      now_ = next;
      while (network_.next() <= now_) deliver(network_.take());
      for (auto& program : programs_) program->agent().on_time(now_);
      settle();
    }
    now_ = end;
  }
  Time next_event() const {
    Time next = network_.next();
    for (const auto& program : programs_) next = earlier(next, program->agent().next_deadline());
    return next;
  }
  void deliver(const Outgoing& out) {
    for (auto& program : programs_)
      if (program->gid() == out.destination && !program->is_dead())
        program->agent().on_datagram({out.source, out.destination, wire::kManagementQpn}, out.mad,
                                     now_);
  }
  void settle() {
    for (auto& program : programs_) {
      program->take_events(now_, outcome_);
      while (const auto out = program->agent().poll_datagram()) network_.send(*out, now_);
    }
  }

  // Nobody waits for anything any more.
  void check_outcomes() const {
    for (const auto& program : programs_)
      for (const auto& [id, known] : program->known())
        if (known.outcomes != 1) throw Fault{fmt::format("{:#x} has no outcome", id.value)};
  }
  // Both ends of what is established, if both know each other still.
  void check_pairs() {
    for (const auto& a : programs_)
      for (const auto& [id, known] : a->known()) {
        if (known.is_passive || !known.established) continue;
        for (const auto& b : programs_)
          for (const auto& [other_id, other] : b->known())
            if (other.is_passive && other.established && a->agent().find(id)->remote == other_id &&
                b->agent().find(other_id)->remote == id && b->gid() == known.terms.path.remote) {
              check_pair(known, other);
              ++outcome_.pairs;
            }
      }
  }
  static void check_pair(const Known& a, const Known& b) {
    const Terms &x = a.terms, &y = b.terms;
    const bool agree =
        x.local_qpn == y.remote_qpn && x.remote_qpn == y.local_qpn && x.local_psn == y.remote_psn &&
        x.remote_psn == y.local_psn && x.initiator_depth == y.responder_resources &&
        x.responder_resources == y.initiator_depth && a.said == b.heard && a.heard == b.said;
    if (!agree) throw Fault{"two ends of a connection do not agree"};
  }
  void check_empty() const {
    for (const auto& program : programs_) {
      if (program->agent().conversations() != 0) throw Fault{"an id is left"};
      if (program->agent().next_deadline() != Time::never()) throw Fault{"a deadline is left"};
    }
    if (network_.next() != Time::never()) throw Fault{"somebody still talks"};
  }

  Prng prng_;
  Network network_;
  std::vector<std::unique_ptr<Program>> programs_;
  bool deadly_ = false;
  Time now_{1};
  ConnectingOutcome outcome_;
};

}  // namespace

ConnectingOutcome run_connecting_world(std::uint64_t seed) { return World(seed).run(); }

}  // namespace softhca::cm
