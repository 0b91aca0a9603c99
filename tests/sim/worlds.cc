#include "worlds.h"

#include <cstdio>

#include "seeds.h"
#include "sim/workload.h"

namespace softhca::sim {

WorldSettings random_settings(Prng& prng) {
  WorldSettings settings;
  settings.seed = prng.next();
  settings.record = true;
  settings.ipv6 = prng.chance(1, 4);
  settings.host.scatter = prng.chance(3, 4);
  if (prng.chance(1, 3)) settings.host = cited_host_costs();
  settings.network =
      prng.chance(1, 2) ? cited_network_costs() : link::SimCosts{.delay = microseconds(1)};
  settings.network.corruption = static_cast<std::uint32_t>(prng.below(51));
  settings.network.loss = static_cast<std::uint32_t>(prng.below(201 - settings.network.corruption));
  settings.network.duplication = static_cast<std::uint32_t>(prng.below(201));
  settings.network.reordering = static_cast<std::uint32_t>(prng.below(201));
  settings.network.delay_spread = microseconds(static_cast<std::int64_t>(prng.below(20)));
  return settings;
}

void build(Roads roads, WorldSettings& settings) {
  if (roads == Roads::Plain) return;
  settings.host.congestion.ecn = transport::CongestionSettings::Ecn::Control;
  settings.network.port = {.ps_per_byte = 800,
                           .queue_bytes = 100'000,
                           .marks_from = 2'000,
                           .marks_all_at = 20'000,
                           .marks_at_most = 200};
}

WorldOutcome run_world(std::uint64_t seed, Roads roads) {
  Prng prng(seed);
  WorldSettings settings = random_settings(prng);
  build(roads, settings);
  World world(settings);
  ConnectionSettings connection;
  connection.mtu = 256u << prng.below(5);
  connection.retry_count = 7;
  connection.timeout = 9;  // 2.1 ms
  connection.max_reads = static_cast<std::uint8_t>(1 + prng.below(8));
  connection.psn_a = {static_cast<std::uint32_t>(prng.below(1u << 24))};
  connection.psn_b = {static_cast<std::uint32_t>(0xff'ff00 + prng.below(256))};
  if (prng.chance(1, 4)) connection.type = transport::QpType::XrcSend;
  connection.makes_shared_a = prng.chance(1, 2);
  connection.makes_shared_b = prng.chance(1, 2);
  const Connection pair = connect(world, world.host(0), world.host(1), connection);
  Workload workload(world, pair, prng.next());

  // Losses come in storms. A transport with at most seven retries is entitled to give up on a
  // network that never lets it through (C9-139); between two storms it gets its chance.
  const link::SimCosts storm = settings.network;
  link::SimCosts calm = storm;
  calm.loss = calm.duplication = calm.corruption = 0;
  const auto done = [&] {
    const bool raging = world.now().ps % milliseconds(5).ps < milliseconds(3).ps;
    world.network().set_costs(raging ? storm : calm);
    workload.drive();
    return workload.finished();
  };
  WorldOutcome outcome;
  const bool all = world.run_until(done, seconds(2));
  outcome.wrong = workload.verdict();
  if (!outcome.wrong.empty() && Seeds::wanted().one)
    for (const trace::Event& event : world.journal()->events())
      std::puts(trace::event_text(event).c_str());
  if (outcome.wrong.empty() && !all) outcome.wrong = "not everything completed";
  outcome.journal = world.journal_hash();
  outcome.retransmits = world.host(0).counter(trace::Counter::Retransmits);
  outcome.slowed = world.host(0).counter(trace::Counter::CnpsHandled);

  for (const std::size_t end : {0u, 1u}) workload.release(end);
  for (std::size_t i = 0; i < 2; ++i) {
    Host& host = world.host(i);
    if (host.pins().pages_held() != 0) outcome.wrong += " pins left";
    const auto mapped = host.counter(trace::Counter::IommuLeavesMapped) -
                        host.counter(trace::Counter::IommuLeavesUnmapped);
    if (host.iommu().leaves() != mapped) outcome.wrong += " leaves miscounted";
  }
  return outcome;
}

}  // namespace softhca::sim
