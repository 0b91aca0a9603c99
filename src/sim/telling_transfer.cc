// The steps of the transfer itself: IOMMU, NIC, PCIe, Ethernet, arrival; and the ledger.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "sim/telling.h"
#include "trace/words.h"
#include "wire/opcode.h"

namespace softhca::sim {

using trace::bytes_text;
using trace::counted;
using trace::Counter;
using trace::Event;
using trace::EventKind;
using trace::grouped;
using trace::hex;

namespace {

constexpr std::size_t kShown = 3;
constexpr std::size_t kInFull = 16;

Step transfer_step(const Transfer& transfer, const TransferEnd& end, std::string title) {
  Step step;
  step.title = std::move(title);
  step.host = &end == &transfer.client ? "client" : "server";
  return step;
}

void add_heard(Step& step, const Transfer& transfer, const TransferEnd& end, EventKind kind) {
  const Heard::Kind& events = transfer.heard().of(end.number(), kind);
  for (std::size_t i = 0; i < std::min(events.first.size(), kInFull); ++i)
    step.details.push_back(trace::event_text(events.first[i]));
  if (events.count > kInFull)
    step.details.push_back(fmt::format("... and {} more {}", grouped(events.count - kInFull),
                                       trace::kEvents[static_cast<std::size_t>(kind)].name));
}

std::string tlp_text(const Event& event) {
  constexpr std::array<std::string_view, 3> kNames = {"MRd ", "MWr ", "CplD"};
  const std::uint64_t kind = event.fields[0];
  return fmt::format("{} {} {} bytes", kind < kNames.size() ? kNames[kind] : "?",
                     hex(event.fields[1]), event.fields[2]);
}

std::string packet_line(const Event& event) {
  const wire::OpcodeInfo* const row = wire::find_opcode(static_cast<std::uint8_t>(event.fields[0]));
  return fmt::format("{} PSN {:#08x}, {} bytes", row == nullptr ? "unknown opcode" : row->name,
                     event.fields[1], grouped(event.fields[2]));
}

}  // namespace

Step tell_iommu(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "IOMMU");
  const Range<BusSpace> bus = transfer.on_bus(end);
  const Heard::Kind& maps = end.registered.of(end.number(), EventKind::IommuMap);
  if (maps.count == 0) {
    step.told =
        "Nothing stands between the device and memory here: the addresses that it uses are those"
        " of the frames themselves, and it could reach any.";
    step.facts = {{"the device sees", fmt::format("the first frame at {}", hex(bus.start.value))}};
    return step;
  }
  step.told = fmt::format(
      "The device gets addresses of its own, bus addresses, and the IOMMU a table that leads from"
      " them to the frames: {}. Whatever is not in it, the device cannot reach.",
      counted(maps.sums[3], "leaf entry"));
  step.facts = {
      {"on the bus", fmt::format("{} bytes from {}", grouped(bus.length), hex(bus.start.value))}};
  for (std::size_t i = 0; i < std::min(maps.first.size(), kShown); ++i)
    step.facts.push_back(
        {i == 0 ? "leads to" : "",
         fmt::format("{} > {} ({}, pages of {})", hex(maps.first[i].fields[0]),
                     hex(maps.first[i].fields[1]),
                     (maps.first[i].fields[4] & 2) != 0 ? "read and write" : "read only",
                     bytes_text(maps.first[i].fields[2]))});
  const auto hits = transfer.counted(end, Counter::IotlbHits);
  const auto misses = transfer.counted(end, Counter::IotlbMisses);
  step.details.push_back(fmt::format("during the transfer: {} found in the IOTLB, {} walked",
                                     grouped(hits), grouped(misses)));
  add_heard(step, transfer, end, EventKind::IotlbMiss);
  for (std::size_t i = kShown; i < std::min(maps.first.size(), kInFull); ++i)
    step.details.push_back(trace::event_text(maps.first[i]));
  return step;
}

namespace {

// At the client: the request is read from its ring, and checked.
void tell_request(const Transfer& transfer, const TransferEnd& end, Step& step) {
  const Heard& heard = transfer.heard();
  const Heard::Kind& fetches = heard.of(end.number(), EventKind::WqeFetch);
  const Heard::Kind& doorbells = heard.of(end.number(), EventKind::Doorbell);
  step.told =
      "The program writes a request of 64 bytes into a ring in its own memory and rings the"
      " doorbell: one store to a register of the NIC. No kernel is asked. The NIC fetches the"
      " request by DMA, checks its key and turns it into pieces of memory.";
  if (!doorbells.first.empty())
    step.facts.push_back(
        {"doorbell", fmt::format("queue pair {}: {} posted", hex(doorbells.first[0].object),
                                 counted(doorbells.first[0].fields[1], "request"))});
  if (!fetches.first.empty())
    step.facts.push_back(
        {"request", fmt::format("{} bytes from the ring at bus {}", fetches.first[0].fields[3],
                                hex(fetches.first[0].fields[2]))});
}

}  // namespace

Step tell_nic(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "NIC DMA engine");
  const bool is_client = &end == &transfer.client;
  const Heard::Kind& checks = transfer.heard().of(end.number(), EventKind::KeyCheck);
  if (is_client)
    tell_request(transfer, end, step);
  else
    step.told = fmt::format(
        "The NIC looks the key of the request up in its own table, and compares every byte's"
        " address with what was registered ({}). Only then it touches memory; the program and its"
        " kernel notice nothing.",
        counted(checks.count, "check"));
  if (!checks.first.empty())
    step.facts.push_back(
        {"key check",
         fmt::format("key {}, {} bytes at {}: allowed", hex(checks.first[0].object),
                     grouped(checks.first[0].fields[1]), hex(checks.first[0].fields[0]))});
  const bool reads = &end == &transfer.source();
  const auto payload =
      transfer.payload_accesses(end, reads ? EventKind::DmaRead : EventKind::DmaWrite);
  if (!payload.empty())
    step.facts.push_back(
        {"scatter-gather",
         fmt::format("{} bytes at bus {} are {} of memory", grouped(payload[0].fields[1]),
                     hex(payload[0].fields[0]), counted(payload[0].fields[2], "piece"))});
  add_heard(step, transfer, end, EventKind::Doorbell);
  add_heard(step, transfer, end, EventKind::WqeFetch);
  add_heard(step, transfer, end, EventKind::KeyCheck);
  add_heard(step, transfer, end, EventKind::KeyRefusal);
  return step;
}

Step tell_pcie(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "PCIe");
  const auto reads = transfer.counted(end, Counter::TlpMemoryReads);
  const auto completions = transfer.counted(end, Counter::TlpCompletions);
  const auto writes = transfer.counted(end, Counter::TlpMemoryWrites);
  if (&end == &transfer.source())
    step.told = fmt::format(
        "The NIC is a bus master: it asks memory by itself. {} went up, {} with the bytes came"
        " back; no processor touched them.",
        counted(reads, "read request"), counted(completions, "completion"));
  else
    step.told = fmt::format(
        "The bytes go up as {}: posted, so nobody answers. Each is cut where the bus wants it: at"
        " most 256 bytes, never across 4 KiB.",
        counted(writes, "memory write"));
  const Heard::Kind& tlps = transfer.heard().of(end.number(), EventKind::Tlp);
  const Range<BusSpace> buffer = transfer.on_bus(end);
  std::size_t shown = 0;
  for (const Event& event : tlps.first) {
    if (!buffer.contains({event.fields[1]}, event.fields[2])) continue;
    const std::string line = tlp_text(event);
    if (shown < kShown)
      step.facts.push_back({shown == 0 ? "first packets" : "", line});
    else if (shown < kShown + kInFull)
      step.details.push_back(line);
    ++shown;
  }
  step.details.push_back(fmt::format("in all: {}, {}, {}", counted(reads, "memory read"),
                                     counted(writes, "memory write"),
                                     counted(completions, "completion")));
  return step;
}

Step tell_ethernet(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "Ethernet");
  const bool sends = &end == &transfer.source();
  const EventKind kind = sends ? EventKind::PacketSent : EventKind::PacketReceived;
  const Heard::Kind& packets = transfer.heard().of(end.number(), kind);
  if (sends)
    step.told = fmt::format(
        "The bytes leave as {} (RoCEv2: Ethernet, IP, UDP port 4791, InfiniBand headers), each with"
        " a number that tells its place, and a checksum over all that must not change (ICRC).",
        counted(packets.count, "packet"));
  else
    step.told = fmt::format(
        "{} arrive. The NIC checks the checksum of each, that it comes from its peer, and that its"
        " number is the next one; a gap would be asked for again.",
        counted(packets.count, "packet"));
  std::size_t shown = 0;
  for (const Event& event : packets.first) {
    if (shown < kShown)
      step.facts.push_back({shown == 0 ? (sends ? "sent" : "received") : "", packet_line(event)});
    else if (shown < kShown + kInFull)
      step.details.push_back(packet_line(event));
    ++shown;
  }
  if (packets.count > kShown)
    step.facts.push_back({"", fmt::format("... and {} more", grouped(packets.count - kShown))});
  const auto retransmits = transfer.counted(end, Counter::Retransmits);
  step.details.push_back(
      fmt::format("{} bytes on the wire, {} sent again",
                  grouped(transfer.counted(
                      end, sends ? Counter::PacketBytesSent : Counter::PacketBytesReceived)),
                  counted(retransmits, "packet")));
  return step;
}

Step tell_arrival(const Transfer& transfer) {
  Step step = transfer_step(transfer, transfer.server, "Application");
  const auto& completion = transfer.completion();
  if (!completion) {
    step.told = "The client's program waits for a completion that does not come.";
    return step;
  }
  const bool success = completion->status == transport::Status::Success;
  const auto found = transfer.arrived();
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 8); ++i)
    text += fmt::format("{:02x} ", std::to_integer<unsigned>(found[i]));
  const bool right = transfer.moved_all();
  if (transfer.settings().operation == Operation::Send)
    step.told = fmt::format(
        "The server's program finds a completion in its queue: {} have arrived in the buffer that"
        " it had posted. The client's program finds one too: its own memory is its again.",
        counted(transfer.settings().bytes, "byte"));
  else
    step.told = fmt::format(
        "The client's program finds a completion in its queue, written there by its NIC: {}. The"
        " server's program was not asked, not woken, and {}.",
        success ? "success" : "an error",
        transfer.settings().operation == Operation::Write ? "has the bytes where it looks for them"
                                                          : "has its bytes still");
  step.facts = {{"in memory now", text + (found.size() > 8 ? "..." : "")},
                {"compared", right ? fmt::format("all {} are those that were sent",
                                                 counted(found.size(), "byte"))
                                   : "the bytes are NOT those that were sent"},
                {"it took", trace::time_text(transfer.took())}};
  step.refused = !success;
  add_heard(step, transfer, transfer.client, EventKind::Cqe);
  add_heard(step, transfer, transfer.server, EventKind::Cqe);
  return step;
}

std::vector<LedgerRow> ledger_of(const Transfer& transfer) {
  constexpr std::array<std::pair<Counter, std::string_view>, 12> kRows = {{
      {Counter::CpuCopyBytes, "bytes copied by a CPU"},
      {Counter::DmaReadBytes, "bytes read by DMA"},
      {Counter::DmaWriteBytes, "bytes written by DMA"},
      {Counter::TlpMemoryReads, "PCIe: read requests"},
      {Counter::TlpCompletions, "PCIe: completions"},
      {Counter::TlpMemoryWrites, "PCIe: writes"},
      {Counter::IotlbHits, "IOTLB hits"},
      {Counter::IotlbMisses, "IOTLB misses"},
      {Counter::Doorbells, "doorbells"},
      {Counter::KeyChecks, "key checks"},
      {Counter::PacketsSent, "packets sent"},
      {Counter::Interrupts, "interrupts"},
  }};
  std::vector<LedgerRow> rows;
  for (const auto& [counter, name] : kRows)
    rows.push_back({.name = std::string(name),
                    .unit = name.starts_with("bytes") ? "bytes" : "count",
                    .rdma = {transfer.counted(transfer.client, counter),
                             transfer.counted(transfer.server, counter)},
                    .sockets = {}});
  return rows;
}

}  // namespace softhca::sim
