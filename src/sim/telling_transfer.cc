// The steps of the transfer itself: IOMMU, NIC, PCIe, Ethernet, arrival; and the ledger.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "sim/constants.h"
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

std::string tlp_line(const Event& event) {
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
  const bool again = &end == &transfer.server;
  const Heard::Kind& maps = end.registered.of(end.number(), EventKind::IommuMap);
  if (end.bus_pages.empty()) {
    step.told = "Nothing was mapped for the device.";
    return step;
  }
  const Heard::Kind& peer = transfer.heard().of(end.number(), EventKind::PeerAccess);
  if (maps.count == 0 && peer.count != 0) {
    step.told =
        "It is not asked: NIC and GPU are behind one switch, which knows the GPU's BAR and hands"
        " the requests over by itself.";
    step.facts = {{"bus address", hex(end.bus_pages.front()) + ", that of the BAR"}};
    add_heard(step, transfer, end, EventKind::PeerAccess);
    return step;
  }
  if (maps.count == 0) {
    step.told = again ? "Nothing stands between this device and memory either."
                      : "Nothing stands between the device and memory here: it uses the addresses"
                        " of the frames themselves, and could reach any other.";
    step.facts = {{"bus address", hex(end.bus_pages.front()) + ", that of the first frame"}};
    return step;
  }
  const auto hits = transfer.counted(end, Counter::IotlbHits);
  const auto misses = transfer.counted(end, Counter::IotlbMisses);
  step.told =
      again ? fmt::format(
                  "A table of the same kind: {}. In all, the IOTLB knew {} of its answers,"
                  " and {} were looked up.",
                  counted(maps.sums[3], "leaf entry"), grouped(hits), grouped(misses))
            : "The device gets addresses of its own, and the IOMMU a table that leads from them to"
              " the frames. What is not in it, the device cannot reach:";
  const std::size_t shown = again ? 1 : kShown;
  for (std::size_t i = 0; i < std::min(maps.first.size(), shown); ++i)
    step.facts.push_back(
        {i == 0 ? "bus address" : "",
         fmt::format("{} > {}, {}", hex(maps.first[i].fields[0]), hex(maps.first[i].fields[1]),
                     (maps.first[i].fields[4] & 2) != 0 ? "read and write" : "read only")});
  if (maps.count > shown)
    step.facts.back().value += fmt::format(", and {} more", grouped(maps.count - shown));
  step.details.push_back(fmt::format("{} in {} of 4 KiB", counted(maps.sums[3], "leaf entry"),
                                     counted(end.host->iommu().table_frames(), "table")));
  for (std::size_t i = 0; i < std::min(maps.first.size(), kInFull); ++i)
    step.details.push_back(trace::event_text(maps.first[i]));
  add_heard(step, transfer, end, EventKind::IotlbMiss);
  add_heard(step, transfer, end, EventKind::IotlbHit);
  add_heard(step, transfer, end, EventKind::IommuFault);
  return step;
}

Step tell_nic(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "NIC DMA engine");
  const Heard& heard = transfer.heard();
  const Heard::Kind& checks = heard.of(end.number(), EventKind::KeyCheck);
  const Heard::Kind& fetches = heard.of(end.number(), EventKind::WqeFetch);
  if (&end == &transfer.client) {
    step.told =
        "The program writes a request into a ring in its own memory, and one store rings the"
        " doorbell; no kernel is asked. The NIC fetches the request and checks its key:";
    if (!fetches.first.empty())
      step.facts.push_back(
          {"request", fmt::format("{} bytes from the ring at bus address {}",
                                  fetches.first[0].fields[3], hex(fetches.first[0].fields[2]))});
  } else {
    step.told = fmt::format(
        "It compares every byte's address with what was registered under the key ({}), and only"
        " then touches memory. Program and kernel notice nothing.",
        counted(checks.count, "check"));
  }
  if (!checks.first.empty())
    step.facts.push_back(
        {"key " + hex(checks.first[0].object),
         fmt::format("{} at {}: allowed", counted(checks.first[0].fields[1], "byte"),
                     hex(checks.first[0].fields[0]))});
  const bool reads = &end == &transfer.source();
  const auto payload =
      transfer.payload_accesses(end, reads ? EventKind::DmaRead : EventKind::DmaWrite);
  if (!payload.empty())
    step.facts.push_back(
        {reads ? "gathered" : "scattered",
         fmt::format("{} at bus address {} are {} of RAM", counted(payload[0].fields[1], "byte"),
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
        "The NIC is a bus master and asks memory by itself: {} go up, {} bring the bytes. No"
        " processor touches them.",
        counted(reads, "read"), counted(completions, "completion"));
  else
    step.told =
        fmt::format("{} carry the bytes up: at most 256 each, never across 4 KiB; nobody answers.",
                    counted(writes, "posted write"));
  if (const Heard::Kind& peer = transfer.heard().of(end.number(), EventKind::PeerAccess);
      peer.count != 0)
    step.told +=
        peer.first[0].fields[3] != 0
            ? " They go up to the root complex and down again to the GPU (ACS redirect)."
            : " They go through the switch straight to the GPU, and not to the root complex.";
  std::size_t shown = 0;
  for (const Event& event : transfer.heard().of(end.number(), EventKind::Tlp).first) {
    if (!Transfer::is_payload(end, {event.fields[1]})) continue;
    const std::string line = tlp_line(event);
    if (shown++ == 0) step.facts.push_back({"first TLP", line});
    if (shown <= kInFull) step.details.push_back(line);
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
        "{} (RoCEv2: Ethernet, IP, UDP port 4791, InfiniBand), each with its number and a checksum"
        " (ICRC):",
        counted(packets.count, "packet"));
  else
    step.told = fmt::format(
        "{} arrive, with the right checksum, from the right peer, each with the next number.",
        counted(packets.count, "packet"));
  const std::size_t shown_at_most = sends ? kShown : 0;
  std::size_t shown = 0;
  for (const Event& event : packets.first) {
    if (shown++ < shown_at_most)
      step.facts.push_back({shown == 1 ? "sent" : "", packet_line(event)});
    if (shown <= kInFull) step.details.push_back(packet_line(event));
  }
  if (sends && packets.count > shown_at_most && !step.facts.empty())
    step.facts.back().value += fmt::format(", and {} more", grouped(packets.count - shown_at_most));
  step.details.push_back(fmt::format(
      "{} on the wire, {} sent again",
      counted(
          transfer.counted(end, sends ? Counter::PacketBytesSent : Counter::PacketBytesReceived),
          "byte"),
      counted(transfer.counted(end, Counter::Retransmits), "packet")));
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
  const std::uint64_t bytes = transfer.settings().bytes;
  std::string text;
  const auto first = transfer.first_arrived();
  for (const std::byte b : first) text += fmt::format("{:02x} ", std::to_integer<unsigned>(b));
  const std::string outcome = success ? "success" : "an error";
  switch (transfer.settings().operation) {
    case Operation::Send:
      step.told = fmt::format(
          "Both programs find a completion in their queues, written there by their NICs: {}.",
          outcome);
      break;
    case Operation::Write:
      step.told = fmt::format(
          "The client finds a completion in its queue, written there by its NIC: {}. The server's"
          " program was not asked and not woken, and has the bytes.",
          outcome);
      break;
    case Operation::Read:
      step.told = fmt::format(
          "The client finds a completion in its queue, written there by its NIC: {}. The server's"
          " program was not asked and not woken; it has its bytes still.",
          outcome);
      break;
  }
  step.facts = {{"in memory",
                 fmt::format("{}{}; {}", text, bytes > first.size() ? "..." : "",
                             transfer.moved_all()
                                 ? fmt::format("all {} as they were sent", counted(bytes, "byte"))
                                 : "NOT what was sent")},
                {"it took", trace::time_text(transfer.took())}};
  step.refused = !success;
  add_heard(step, transfer, transfer.client, EventKind::Cqe);
  add_heard(step, transfer, transfer.server, EventKind::Cqe);
  return step;
}

std::vector<LedgerRow> ledger_of(const Transfer& transfer) {
  constexpr std::array<std::pair<Counter, std::string_view>, 11> kRows = {{
      {Counter::CpuCopyBytes, "bytes copied by a CPU"},
      {Counter::DmaReadBytes, "bytes read by DMA"},
      {Counter::DmaWriteBytes, "bytes written by DMA"},
      {Counter::TlpMemoryReads, "PCIe: read requests"},
      {Counter::TlpCompletions, "PCIe: completions"},
      {Counter::TlpMemoryWrites, "PCIe: writes"},
      {Counter::IotlbHits, "IOTLB hits"},
      {Counter::IotlbMisses, "IOTLB misses"},
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
  // While the transfer lasts a program of RDMA calls no kernel; it polls.
  rows.insert(rows.begin() + 1,
              {.name = "system calls", .unit = "count", .rdma = {}, .sockets = {}});
  const Duration server_busy =
      transfer.request.operation == Operation::Send
          ? cost_of(Constant::PostRequest) + cost_of(Constant::PollCompletion)
          : Duration{};
  const Duration client_busy = transfer.cpu_busy(transfer.took()) - server_busy;
  rows.push_back({.name = "CPU busy",
                  .unit = "ns",
                  .rdma = {static_cast<std::uint64_t>(client_busy.nanoseconds()),
                           static_cast<std::uint64_t>(server_busy.nanoseconds())},
                  .sockets = {}});
  return rows;
}

}  // namespace softhca::sim
