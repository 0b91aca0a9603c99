// RDMA and sockets side by side: one transfer each, or many at irregular times.
#include <algorithm>

#include "base/assert.h"
#include "base/prng.h"
#include "sim/sockets.h"

namespace softhca::sim {
namespace {

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

void pause(Transfer& transfer, Duration pause) {
  transfer.world().run_until([] { return false; }, pause);
}

WaySummary compare_rdma(Transfer& transfer, std::uint32_t transfers, Prng prng) {
  WaySummary way;
  way.transfers = transfers;
  std::vector<Duration> latencies;
  for (std::uint32_t i = 0; i < transfers; ++i) {
    pause(transfer,
          {static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(kLongestPause.ps)))});
    transfer.clear_target();
    transfer.post_and_finish();
    ASSERT(transfer.completion() && transfer.moved_all());
    latencies.push_back(transfer.took());
    for (const TransferEnd* const end : {&transfer.client, &transfer.server}) {
      way.cpu_copy_bytes += transfer.counted(*end, trace::Counter::CpuCopyBytes);
      way.interrupts += transfer.counted(*end, trace::Counter::Interrupts);
    }
  }
  summarize(latencies, way);
  way.cpu_copy_bytes /= transfers;
  way.cpu_busy = transfer.cpu_busy(way.latency_mean);
  return way;
}

WaySummary compare_sockets(Transfer& transfer, std::uint32_t transfers, Prng prng) {
  WaySummary way;
  way.transfers = transfers;
  std::vector<Duration> latencies;
  SocketPath path(transfer);
  Duration busy{};
  for (std::uint32_t i = 0; i < transfers; ++i) {
    const Duration slept{
        static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(kLongestPause.ps)))};
    pause(transfer, slept);
    transfer.clear_target();
    const SocketResult result = path.move(slept);
    ASSERT(result.arrived);
    latencies.push_back(result.took);
    busy = busy + result.client.cpu_busy + result.server.cpu_busy;
    for (const SocketSide* const side : {&result.client, &result.server}) {
      way.cpu_copy_bytes += side->copied_bytes;
      way.system_calls += side->system_calls;
      way.interrupts += side->interrupts;
    }
  }
  summarize(latencies, way);
  way.cpu_copy_bytes /= transfers;
  way.cpu_busy = {busy.ps / static_cast<std::int64_t>(transfers)};
  return way;
}

}  // namespace

void add_sockets(std::vector<LedgerRow>& ledger, const SocketResult& result) {
  const auto fill = [&](std::string_view name, std::uint64_t SocketSide::*field) {
    for (LedgerRow& row : ledger)
      if (row.name == name) row.sockets = {result.client.*field, result.server.*field};
  };
  fill("bytes copied by a CPU", &SocketSide::copied_bytes);
  fill("system calls", &SocketSide::system_calls);
  fill("interrupts", &SocketSide::interrupts);
  fill("bytes read by DMA", &SocketSide::dma_read_bytes);
  fill("bytes written by DMA", &SocketSide::dma_write_bytes);
  for (LedgerRow& row : ledger)
    if (row.name == "PCIe packets")
      for (std::size_t i = 0; i < 2; ++i) {
        const SocketSide& side = i == 0 ? result.client : result.server;
        row.sockets[i] = side.tlp_reads + side.tlp_completions + side.tlp_writes;
      }
  fill("PCIe: read requests", &SocketSide::tlp_reads);
  fill("PCIe: completions", &SocketSide::tlp_completions);
  fill("PCIe: writes", &SocketSide::tlp_writes);
  fill("IOTLB hits", &SocketSide::iotlb_hits);
  fill("IOTLB misses", &SocketSide::iotlb_misses);
  fill("Ethernet packets sent", &SocketSide::packets);
  const auto ns = [](Duration time) { return static_cast<std::uint64_t>(time.nanoseconds()); };
  for (LedgerRow& row : ledger) {
    if (row.name == "CPU at work")
      row.sockets = {ns(result.client.cpu_busy), ns(result.server.cpu_busy)};
    if (row.name == "time until it is done") row.sockets = {ns(result.took), 0};
  }
}

std::vector<WaySummary> compare_ways(Transfer& transfer, std::uint32_t transfers) {
  ASSERT(transfers > 0);
  const Prng prng(transfer.settings().seed ^ 0x636f6d70617265);
  return {compare_rdma(transfer, transfers, prng), compare_sockets(transfer, transfers, prng)};
}

}  // namespace softhca::sim
