// RDMA and sockets side by side: one transfer each, or many at irregular times.
#include <algorithm>

#include "base/assert.h"
#include "base/prng.h"
#include "sim/sockets.h"

namespace softhca::sim {
namespace {

using trace::Counter;

constexpr Duration kLongestPause = milliseconds(4);

// Sorts.
void summarize(std::vector<Duration>& latencies, WaySummary& way) {
  ASSERT(!latencies.empty());
  std::ranges::sort(latencies);
  Duration sum{};
  for (const Duration latency : latencies) sum = sum + latency;
  const auto at = [&](std::size_t percent) {
    return latencies[std::min(latencies.size() - 1, latencies.size() * percent / 100)];
  };
  way.latency_mean = {sum.ps / static_cast<std::int64_t>(latencies.size())};
  way.latency_p50 = at(50);
  way.latency_p99 = at(99);
}

// What one transfer came to.
struct Once {
  Duration took;
  Duration cpu_busy;
  std::uint64_t copied_bytes{};
  std::uint64_t system_calls{};
  std::uint64_t interrupts{};
};

// `once` makes one transfer, after the receiver has slept for so long.
template <class MakeOne>
WaySummary compare_way(Transfer& transfer, std::uint32_t transfers, Prng prng, MakeOne once) {
  WaySummary way;
  way.transfers = transfers;
  std::vector<Duration> latencies;
  Duration busy{};
  for (std::uint32_t i = 0; i < transfers; ++i) {
    const Duration slept{
        static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(kLongestPause.ps)))};
    transfer.world().pass(slept);
    transfer.clear_target();
    const Once one = once(slept);
    latencies.push_back(one.took);
    busy = busy + one.cpu_busy;
    way.cpu_copy_bytes += one.copied_bytes;
    way.system_calls += one.system_calls;
    way.interrupts += one.interrupts;
  }
  summarize(latencies, way);
  way.cpu_copy_bytes /= transfers;
  way.cpu_busy = {busy.ps / static_cast<std::int64_t>(transfers)};
  return way;
}

std::uint64_t sum_of(const Host::Counts& a, const Host::Counts& b, Counter counter) {
  const auto index = static_cast<std::size_t>(counter);
  return a[index] + b[index];
}

Once once_by_rdma(Transfer& transfer) {
  transfer.post_and_finish();
  ASSERT(transfer.completion() && transfer.moved_all());
  const Host::Counts& client = transfer.client.counted;
  const Host::Counts& server = transfer.server.counted;
  return {.took = transfer.took(),
          .cpu_busy = transfer.cpu_busy(transfer.took()),
          .copied_bytes = sum_of(client, server, Counter::CpuCopyBytes),
          .system_calls = 0,
          .interrupts = sum_of(client, server, Counter::Interrupts)};
}

Once once_by_sockets(SocketPath& path, Duration slept) {
  const SocketResult result = path.move(slept);
  ASSERT(result.arrived);
  const SocketSide& client = result.client;
  const SocketSide& server = result.server;
  return {.took = result.took,
          .cpu_busy = client.cpu_busy + server.cpu_busy,
          .copied_bytes = sum_of(client.counted, server.counted, Counter::CpuCopyBytes),
          .system_calls = client.system_calls + server.system_calls,
          .interrupts = sum_of(client.counted, server.counted, Counter::Interrupts)};
}

// A row of counters, summed up; Count_ where unused.
struct CounterRow {
  std::string_view name;
  std::array<Counter, 3> counters;
  bool is_detail;
};
constexpr Counter kNone = Counter::Count_;
constexpr std::array<CounterRow, 11> kCounterRows = {{
    {"bytes copied by a CPU", {Counter::CpuCopyBytes, kNone, kNone}, false},
    {"bytes read by DMA", {Counter::DmaReadBytes, kNone, kNone}, false},
    {"bytes written by DMA", {Counter::DmaWriteBytes, kNone, kNone}, false},
    {"PCIe packets",
     {Counter::TlpMemoryReads, Counter::TlpCompletions, Counter::TlpMemoryWrites},
     false},
    {"PCIe: read requests", {Counter::TlpMemoryReads, kNone, kNone}, true},
    {"PCIe: completions", {Counter::TlpCompletions, kNone, kNone}, true},
    {"PCIe: writes", {Counter::TlpMemoryWrites, kNone, kNone}, true},
    {"IOTLB hits", {Counter::IotlbHits, kNone, kNone}, false},
    {"IOTLB misses", {Counter::IotlbMisses, kNone, kNone}, false},
    {"Ethernet packets sent", {Counter::PacketsSent, kNone, kNone}, false},
    {"interrupts", {Counter::Interrupts, kNone, kNone}, false},
}};

std::uint64_t sum_of(const Host::Counts& counts, const CounterRow& row) {
  std::uint64_t total = 0;
  for (const Counter counter : row.counters)
    if (counter != kNone) total += counts[static_cast<std::size_t>(counter)];
  return total;
}

std::uint64_t rounded_ns(Duration time) {
  return static_cast<std::uint64_t>((time + picoseconds(500)).nanoseconds());
}

}  // namespace

std::vector<LedgerRow> ledger_of(const Transfer& transfer, const SocketResult* sockets) {
  const SocketResult none;
  const SocketResult& s = sockets != nullptr ? *sockets : none;
  std::vector<LedgerRow> rows;
  for (const CounterRow& row : kCounterRows)
    rows.push_back(
        {.name = std::string(row.name),
         .unit = "count",
         .rdma = {sum_of(transfer.client.counted, row), sum_of(transfer.server.counted, row)},
         .sockets = {sum_of(s.client.counted, row), sum_of(s.server.counted, row)},
         .is_detail = row.is_detail});
  // While the transfer lasts a program of RDMA calls no kernel; it looks at its queue.
  rows.insert(rows.begin() + 1, {.name = "system calls",
                                 .unit = "count",
                                 .rdma = {},
                                 .sockets = {s.client.system_calls, s.server.system_calls},
                                 .is_detail = false});
  using Times = std::array<Duration, 2>;
  const auto add_times = [&](std::string name, const Times& rdma, const Times& by_sockets) {
    rows.push_back({.name = std::move(name),
                    .unit = "ns",
                    .rdma = {rounded_ns(rdma[0]), rounded_ns(rdma[1])},
                    .sockets = {rounded_ns(by_sockets[0]), rounded_ns(by_sockets[1])},
                    .is_detail = false});
  };
  const Duration work = cost_of(Constant::PostRequest) + cost_of(Constant::PollCompletion);
  const Duration waiting = std::max(Duration{}, transfer.took() - work);
  const bool both = transfer.request.operation == Operation::Send;
  add_times("CPU at work", {work, both ? work : Duration{}},
            {s.client.cpu_busy, s.server.cpu_busy});
  add_times("CPU waiting in a loop", {waiting, both ? waiting : Duration{}}, {});
  add_times("time until it is done", {transfer.took(), Duration{}}, {s.took, Duration{}});
  return rows;
}

std::vector<WaySummary> compare_ways(Transfer& transfer, std::uint32_t transfers) {
  ASSERT(transfers > 0);
  const Prng prng(transfer.settings().seed ^ 0x636f6d70617265);
  const WaySummary rdma =
      compare_way(transfer, transfers, prng, [&](Duration) { return once_by_rdma(transfer); });
  SocketPath path(transfer);
  return {rdma, compare_way(transfer, transfers, prng,
                            [&](Duration slept) { return once_by_sockets(path, slept); })};
}

}  // namespace softhca::sim
