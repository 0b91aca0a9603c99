#include "sim/world.h"

#include <algorithm>

#include "base/assert.h"
#include "sim/constants.h"

namespace softhca::sim {

using transport::QpAttribute;
using transport::QpState;
using transport::QpType;

namespace {

constexpr int kTurnsAtMost = 10'000;  // at one instant; more is a loop that would never end

wire::Gid gid_of_host(std::size_t i, bool ipv6) {
  const auto number = static_cast<std::uint8_t>(i + 1);
  if (!ipv6) return wire::Gid::of_ipv4({10, 0, 0, number});
  wire::Gid gid;
  gid.bytes = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number};
  return gid;
}

}  // namespace

HostSettings cited_host_costs() {
  HostSettings s;
  s.costs.read_latency = cost_of(Constant::DmaRead);
  s.costs.write_latency = cost_of(Constant::DmaWrite);
  s.costs.iotlb_miss = cost_of(Constant::IotlbMiss);
  s.costs.peer_read_latency = cost_of(Constant::DmaRead);
  s.costs.peer_write_latency = cost_of(Constant::DmaWrite);
  s.costs.redirect_latency = cost_of(Constant::PeerThroughRoot);
  s.costs.ps_per_byte = cost_of(Constant::LinkByte).ps;
  s.costs.tlp_overhead = cost_of(Constant::TlpHeader);
  return s;
}

link::SimCosts cited_network_costs() {
  link::SimCosts costs;
  costs.delay = cost_of(Constant::CableDelay);
  costs.ps_per_byte = cost_of(Constant::CableByte).ps;
  return costs;
}

World::World(const WorldSettings& settings) {
  Prng prng(settings.seed);
  if (settings.record) journal_ = std::make_unique<trace::Journal>(settings.journal_events);
  network_ = std::make_unique<link::SimNetwork>(prng.next(), settings.network);
  for (std::size_t i = 0; i < settings.hosts; ++i) {
    HostSettings host = settings.host;
    host.seed = prng.next();
    host.number = static_cast<std::uint16_t>(i);
    host.journal = journal_.get();
    if (i < settings.plans.size()) host.faults = settings.plans[i];
    const wire::Gid gid = gid_of_host(i, settings.ipv6);
    link::Link& cable = network_->attach({&gid, 1});
    host.on_group = [this, &cable](const wire::Gid& group, bool joined) {
      network_->set_joined(cable, group, joined);
    };
    hosts_.push_back(std::make_unique<Host>(host, gid, cable, now_));
  }
}

World::~World() = default;

std::uint64_t World::journal_hash() const { return journal_ ? journal_->hash() : 0; }

// Everything that is due at this instant. True if there was anything.
bool World::run_instant() {
  bool any = false;
  for (int turn = 0;; ++turn) {
    ASSERT(turn < kTurnsAtMost);
    bool worked = false;
    for (const auto& host : hosts_) worked |= host->engine().progress(now_);
    if (!worked) return any;
    any = true;
  }
}

Time World::next_event() const {
  Time next = network_->next_arrival();
  for (const auto& host : hosts_) next = earlier(next, host->engine().next_deadline());
  return next == Time::never() ? next : later(next, now_ + picoseconds(1));
}

bool World::step_until(Time end) {
  if (run_instant()) return true;
  const Time next = next_event();
  if (next == Time::never() || next > end) {
    if (end != Time::never()) now_ = end;
    return false;
  }
  now_ = next;
  run_instant();
  return true;
}

bool World::step() { return step_until(Time::never()); }

bool World::run_until(const std::function<bool()>& done, Duration limit) {
  const Time end = now_ + limit;
  while (!done())
    if (!step_until(end)) return done();
  return true;
}

namespace {

struct Psns {
  wire::Psn own;
  wire::Psn theirs;
};

// `qp` sends to `to`, a queue pair of who is at `peer`, and hears it.
void bring_up(driver::Engine& engine, driver::QueuePair& qp, const wire::Gid& peer, wire::Qpn to,
              const ConnectionSettings& s, Psns psns, Time now) {
  transport::QpAttributes a;
  a.state = QpState::Init;
  a.port = 1;
  a.access_flags = s.access;
  using Mask = transport::QpAttributeMask;
  const bool is_datagram = qp.type() == QpType::Ud;
  a.qkey = kWorldQkey;
  auto ok = engine.modify_qp(qp, a,
                             Mask(QpAttribute::State) | QpAttribute::PkeyIndex | QpAttribute::Port |
                                 (is_datagram ? QpAttribute::Qkey : QpAttribute::AccessFlags),
                             now);
  ASSERT(ok);
  const bool requests = qp.type() == QpType::Rc || qp.type() == QpType::XrcSend;
  const bool responds = qp.type() == QpType::Rc || qp.type() == QpType::XrcReceive;
  a.state = QpState::Rtr;
  a.address = {.is_global = true,
               .destination = peer,
               .source_gid_index = 0,
               .flow_label = 0,
               .hop_limit = 64,
               .traffic_class = s.traffic_class,
               .service_level = 0,
               .port = 1};
  a.path_mtu_bytes = s.mtu;
  a.dest_qpn = to;
  a.rq_psn = psns.theirs;
  a.max_dest_reads = s.max_reads;
  a.min_rnr_timer = s.min_rnr_timer;
  Mask mask = QpAttribute::State;
  if (!is_datagram)
    mask = mask | QpAttribute::AddressVector | QpAttribute::PathMtu | QpAttribute::DestQpn |
           QpAttribute::RqPsn;
  if (responds) mask = mask | QpAttribute::MaxDestReads | QpAttribute::MinRnrTimer;
  ok = engine.modify_qp(qp, a, mask, now);
  ASSERT(ok);
  a.state = QpState::Rts;
  a.sq_psn = psns.own;
  a.timeout = s.timeout;
  a.retry_count = s.retry_count;
  a.rnr_retry = s.rnr_retry;
  a.max_reads = s.max_reads;
  mask = Mask(QpAttribute::State) | QpAttribute::SqPsn;
  if (requests || responds) mask = mask | QpAttribute::Timeout;
  if (requests)
    mask = mask | QpAttribute::RetryCount | QpAttribute::RnrRetry | QpAttribute::MaxReads;
  ok = engine.modify_qp(qp, a, mask, now);
  ASSERT(ok);
}

Connection::End make_end(Host& host, host::Pid program, std::uint32_t pd,
                         const ConnectionSettings& s, driver::SharedReceiveQueue* srq,
                         bool makes_shared, driver::EventSink* events, Time now) {
  if (program != host::Pid{}) host.run(program);
  Connection::End end{
      .host = &host, .program = host.running(), .pd = pd, .cq = nullptr, .qp = nullptr};
  driver::Engine& engine = host.engine();
  if (pd == 0) {
    const auto fresh = engine.alloc_pd();
    ASSERT(fresh);
    end.pd = *fresh;
  }
  const auto cq = engine.create_cq(4 * s.depth, events, now);
  ASSERT(cq);
  end.cq = *cq;
  end.srq = srq;
  const bool is_xrc = s.type == QpType::XrcSend;
  if (is_xrc) {
    const auto domain = engine.open_xrcd(std::nullopt, {});
    ASSERT(domain);
    end.xrcd = *domain;
  }
  if (makes_shared || is_xrc) {
    const auto made = engine.create_srq({.pd = end.pd,
                                         .xrcd = end.xrcd,
                                         .cq = is_xrc ? end.cq : nullptr,
                                         .capacity = {s.depth, s.sges}},
                                        now);
    ASSERT(made);
    end.srq = *made;
  }
  if (is_xrc) {
    const auto target = engine.create_qp(
        {.type = QpType::XrcReceive, .xrcd = end.xrcd, .capacity = {}, .events = events}, now);
    ASSERT(target);
    end.target = *target;
  }
  const auto qp = engine.create_qp({.pd = end.pd,
                                    .type = s.type,
                                    .send_cq = end.cq,
                                    .receive_cq = is_xrc ? nullptr : end.cq,
                                    .srq = is_xrc ? nullptr : end.srq,
                                    .capacity = {.send_requests = s.depth,
                                                 .receive_requests = s.depth,
                                                 .send_sges = s.sges,
                                                 .receive_sges = s.sges,
                                                 .inline_bytes = s.inline_bytes},
                                    .signal_all = false,
                                    .events = events},
                                   now);
  ASSERT(qp);
  end.qp = *qp;
  return end;
}

}  // namespace

Connection connect(World& world, Host& a, Host& b, const ConnectionSettings& settings) {
  const ConnectionSettings& s = settings;
  Connection c{
      make_end(a, s.program_a, s.pd_a, s, nullptr, s.makes_shared_a, s.events_a, world.now()),
      make_end(b, s.program_b, s.pd_b, s, s.srq_b, s.makes_shared_b, s.events_b, world.now())};
  const auto up = [&](const Connection::End& end, driver::QueuePair& qp,
                      const Connection::End& peer, const driver::QueuePair& to, Psns psns) {
    bring_up(end.host->engine(), qp, peer.host->gid(), to.qpn(), s, psns, world.now());
  };
  const Psns of_a{s.psn_a, s.psn_b}, of_b{s.psn_b, s.psn_a};
  up(c.a, *c.a.qp, c.b, c.b.hearing(), of_a);
  up(c.b, *c.b.qp, c.a, c.a.hearing(), of_b);
  if (c.a.target != nullptr) {
    up(c.a, *c.a.target, c.b, *c.b.qp, of_a);
    up(c.b, *c.b.target, c.a, *c.a.qp, of_b);
  }
  return c;
}

Result<void, trace::Reason> Connection::End::post_receive(const driver::ReceiveRequest& request,
                                                          Time now) const {
  driver::Engine& engine = host->engine();
  return srq != nullptr ? engine.post_receive(*srq, request, false, now)
                        : engine.post_receive(*qp, request, false, now);
}

Connection::End connect_to(World& world, Host& host, const wire::Gid& peer, wire::Qpn peer_qpn,
                           const ConnectionSettings& s) {
  const Connection::End end =
      make_end(host, s.program_a, s.pd_a, s, nullptr, s.makes_shared_a, s.events_a, world.now());
  bring_up(host.engine(), *end.qp, peer, peer_qpn, s, {s.psn_a, s.psn_b}, world.now());
  return end;
}

void disconnect(World& world, const Connection::End& end) {
  driver::Engine& engine = end.host->engine();
  const auto qp = engine.destroy_qp(*end.qp, world.now());
  Result<void, trace::Reason> target, srq, xrcd;
  if (end.target != nullptr) target = engine.destroy_qp(*end.target, world.now());
  if (end.srq != nullptr) srq = engine.destroy_srq(*end.srq, world.now());
  if (end.xrcd != 0) xrcd = engine.close_xrcd(end.xrcd);
  const auto cq = engine.destroy_cq(*end.cq, world.now());
  const auto pd = engine.dealloc_pd(end.pd);
  ASSERT(qp && target && srq && xrcd && cq && pd);
}

}  // namespace softhca::sim
