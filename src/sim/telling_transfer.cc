// The steps of the transfer itself: IOMMU, NIC, PCIe, Ethernet, arrival.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "nic/ring_format.h"
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
  return step_at(transfer, end, std::move(title), "The transfer");
}

std::string bytes_text_of(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x} ", std::to_integer<unsigned>(b));
  return text;
}

void add_heard(Step& step, const Transfer& transfer, const TransferEnd& end, EventKind kind) {
  add_events(step, transfer.heard().of(end.number(), kind), kInFull);
}

std::string tlp_line(const Event& event) {
  constexpr std::array<std::string_view, 3> kNames = {"memory read (MRd)", "memory write (MWr)",
                                                      "completion (CplD)"};
  const std::uint64_t kind = event.fields[0];
  return fmt::format("{} at {}, {}", kind < kNames.size() ? kNames[kind] : "?",
                     hex(event.fields[1]), counted(event.fields[2], "byte"));
}

std::string packet_line(const Event& event) {
  const wire::OpcodeInfo* const row = wire::find_opcode(static_cast<std::uint8_t>(event.fields[0]));
  return fmt::format("{} PSN {:#08x}, {}", row == nullptr ? "unknown opcode" : row->name,
                     event.fields[1], counted(event.fields[2], "byte"));
}

// "0xa000 -> 0x5000, read only"
std::string mapping_line(const Event& map) {
  return fmt::format("{} -> {}, {}", hex(map.fields[0]), hex(map.fields[1]),
                     (map.fields[4] & 2) != 0 ? "read and write" : "read only");
}

// The kernel's side of it: what was mapped, before any transfer.
void tell_mapping(const TransferEnd& end, Step& step) {
  const Heard::Kind& maps = end.registered.of(end.number(), EventKind::IommuMap);
  const host::IommuMode mode = end.host->dma().mode();
  step.phase = "Once, before any transfer";
  if (maps.count == 0) {
    step.told = mode == host::IommuMode::PassThrough
                    ? "It knows the device and lets it through untranslated (pass-through): the"
                      " device uses the addresses of the frames themselves, and could reach any."
                    : "There is none: the device uses the addresses of the frames themselves, and"
                      " could reach any.";
    step.facts = {{"bus address", hex(end.bus_pages.front()) + ", that of the first frame"}};
    return;
  }
  step.told =
      "The device gets addresses of its own, bus addresses, and the IOMMU a table that leads from"
      " them to the frames. What is not in it, the device cannot reach.";
  if (mode == host::IommuMode::TranslateDeferred)
    step.told +=
        " What is taken out of it, the device may reach for up to 10 ms more (deferred"
        " invalidation).";
  for (std::size_t i = 0; i < std::min(maps.first.size(), kShown); ++i)
    step.facts.push_back({i == 0 ? "bus address" : "", mapping_line(maps.first[i])});
  if (maps.count > kShown)
    step.facts.back().value += fmt::format(", and {} more", grouped(maps.count - kShown));
}

// The device's side of it: what was asked while the transfer lasted.
void tell_translations(const Transfer& transfer, const TransferEnd& end, Step& step) {
  const auto hits = transfer.counted(end, Counter::IotlbHits);
  const auto misses = transfer.counted(end, Counter::IotlbMisses);
  const Heard::Kind& peer = transfer.heard().of(end.number(), EventKind::PeerAccess);
  const bool is_direct = peer.count != 0 && peer.first[0].fields[3] == 0;
  if (is_direct && end.host->dma().translates())
    step.told =
        "It is not asked for the buffer: NIC and GPU are behind one switch, which knows where the "
        "GPU's memory is"
        " and hands the requests over by itself.";
  else if (end.host->dma().mode() == host::IommuMode::PassThrough)
    step.told = "It lets the device through untranslated: any frame could be reached.";
  else if (!end.host->dma().translates())
    step.told = "There is none: any frame could be reached.";
  else
    step.told = fmt::format(
        "It turns bus addresses into frames, page by page: its cache (IOTLB) had {} of {}, the"
        " others were looked up in the table. Whatever is not mapped would be blocked here.",
        grouped(hits), counted(hits + misses, "answer"));
  const Heard::Kind& maps = end.registered.of(end.number(), EventKind::IommuMap);
  if (!maps.first.empty()) step.facts.push_back({"bus address", mapping_line(maps.first[0])});
}

}  // namespace

Step tell_iommu(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "IOMMU");
  if (end.bus_pages.empty()) {
    step.told = "Nothing was mapped for the device.";
    return step;
  }
  if (&end == &transfer.client)
    tell_mapping(end, step);
  else
    tell_translations(transfer, end, step);
  const Heard::Kind& maps = end.registered.of(end.number(), EventKind::IommuMap);
  step.details.push_back(fmt::format("{} in {} of 4 KiB", counted(maps.sums[3], "leaf entry"),
                                     counted(end.host->iommu().table_frames(), "table")));
  for (std::size_t i = 0; i < std::min(maps.first.size(), kInFull); ++i)
    step.details.push_back(trace::event_text(maps.first[i]));
  add_heard(step, transfer, end, EventKind::IotlbMiss);
  add_heard(step, transfer, end, EventKind::IotlbHit);
  add_heard(step, transfer, end, EventKind::PeerAccess);
  add_heard(step, transfer, end, EventKind::IommuFault);
  return step;
}

namespace {

void tell_request(const Transfer& transfer, const TransferEnd& end, Step& step) {
  const Heard::Kind& fetches = transfer.heard().of(end.number(), EventKind::WqeFetch);
  step.told =
      "The program writes a request into a ring in its own memory, and one store to a register of"
      " the NIC rings the doorbell; no kernel is asked. The NIC fetches the request and checks the"
      " client's own key for each piece that it moves:";
  const PhysAddr doorbell =
      advance(end.host->nic_bar().start,
              nic::doorbell_offset(nic::Doorbell::Send, end.connection->qp->qpn().value));
  step.facts.push_back({"doorbell", hex(doorbell.value) + ", in the NIC's window (BAR 0)"});
  if (!fetches.first.empty())
    step.details.push_back(fmt::format("request of {} bytes at bus address {}",
                                       fetches.first[0].fields[3],
                                       hex(fetches.first[0].fields[2])));
  if (transfer.request.operation != Operation::Send)
    step.facts.push_back({"asks for", fmt::format("{} at the server, with remote key {}",
                                                  hex(transfer.request.remote_address),
                                                  hex(transfer.request.rkey.value))});
}

void tell_answer(const Transfer& transfer, const TransferEnd& end, Step& step) {
  const std::uint64_t checks = transfer.heard().count(end.number(), EventKind::KeyCheck);
  if (transfer.request.operation == Operation::Send)
    step.told = fmt::format(
        "It takes the receive request that the server's program had posted, checks its key ({}),"
        " and only then touches memory.",
        counted(checks, "check"));
  else
    step.told = fmt::format(
        "It looks up the remote key, and whether every byte asked for lies in that region ({}: the"
        " request, then each packet). Only then memory is touched. The server's program and kernel"
        " notice nothing.",
        counted(checks, "check"));
}

}  // namespace

Step tell_nic(const Transfer& transfer, const TransferEnd& end) {
  Step step = transfer_step(transfer, end, "NIC DMA engine");
  const Heard::Kind& checks = transfer.heard().of(end.number(), EventKind::KeyCheck);
  if (&end == &transfer.client)
    tell_request(transfer, end, step);
  else
    tell_answer(transfer, end, step);
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
        {reads ? "first read" : "first write",
         fmt::format("{} at bus address {}: {} of memory", counted(payload[0].fields[1], "byte"),
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
  const auto fetches = transfer.heard().count(end.number(), EventKind::WqeFetch);
  const auto cqes = transfer.heard().count(end.number(), EventKind::Cqe);
  if (&end == &transfer.source())
    step.told = fmt::format(
        "The NIC is a bus master and asks memory by itself: {} up, and {} back with the bytes{}. No"
        " processor touches them.",
        counted(reads, "read request", "goes", "go"),
        counted(completions, "answer", "comes", "come"),
        fetches == 0 ? "" : " (and with the request)");
  else
    step.told = fmt::format(
        "{}, {} the bytes{} to memory: at most 256 each, never across 4 KiB, and none is answered.",
        &end == &transfer.server ? "When the NIC has allowed it (next step)"
                                 : "When the answer is here (next step)",
        counted(writes, "write", "carries", "carry"), cqes == 0 ? "" : " and the completion");
  if (const Heard::Kind& peer = transfer.heard().of(end.number(), EventKind::PeerAccess);
      peer.count != 0)
    step.told += peer.first[0].fields[3] != 0 ? " Those of the buffer go up to the root complex "
                                                "and down again to the GPU (ACS redirect)."
                                              : " Those of the buffer go through the switch "
                                                "straight to the GPU, past the root complex.";
  std::size_t shown = 0;
  for (const Event& event : transfer.heard().of(end.number(), EventKind::Tlp).first) {
    if (!Transfer::is_payload(end, {event.fields[1]})) continue;
    const std::string line = tlp_line(event);
    if (shown++ == 0) step.facts.push_back({"first", line});
    if (shown <= kInFull) step.details.push_back(line);
  }
  step.details.push_back(fmt::format("in all, rings included: {}, {}, {}",
                                     counted(reads, "memory read"), counted(writes, "memory write"),
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
        "{} (RoCEv2: Ethernet, IP, UDP port 4791, InfiniBand), each with its number (PSN) and a"
        " checksum (ICRC):",
        counted(packets.count, "packet", "leaves", "leave"));
  else
    step.told = fmt::format("{}, from the right peer, with the right checksum, none missing.",
                            counted(packets.count, "packet", "arrives", "arrive"));
  if (const auto asked = transfer.heard().of(end.number(), EventKind::PacketSent);
      transfer.request.operation == Operation::Read && &end == &transfer.client &&
      !asked.first.empty())
    step.facts.push_back({"asked", packet_line(asked.first[0])});
  const std::size_t shown_at_most = sends ? 2 : 0;
  std::size_t shown = 0;
  for (const Event& event : packets.first) {
    if (shown++ < shown_at_most)
      step.facts.push_back({shown == 1 ? "sent" : "", packet_line(event)});
    if (shown <= kInFull) step.details.push_back(packet_line(event));
  }
  if (sends && packets.count > shown_at_most && !step.facts.empty())
    step.facts.back().value += fmt::format(", and {} more", grouped(packets.count - shown_at_most));
  step.details.push_back(fmt::format(
      "{} behind the Ethernet headers, {} sent again",
      counted(
          transfer.counted(end, sends ? Counter::PacketBytesSent : Counter::PacketBytesReceived),
          "byte"),
      counted(transfer.counted(end, Counter::Retransmits), "packet")));
  return step;
}

namespace {

// "6.78 us, 4.50 us of it until the last packet had arrived"
std::string milestones(const Transfer& transfer) {
  const Heard::Kind& received =
      transfer.heard().of(transfer.target().number(), EventKind::PacketReceived);
  std::string text = trace::time_text(transfer.took());
  if (received.count != 0)
    text += fmt::format(", {} of it until the last packet had arrived",
                        trace::time_text(Time{received.last.time_ps} - transfer.posted_at()));
  return text;
}

}  // namespace

Step tell_arrival(const Transfer& transfer, bool moved_all) {
  const bool read = transfer.request.operation == Operation::Read;
  Step step = transfer_step(transfer, read ? transfer.client : transfer.server, "Application");
  step.phase = "The end";
  const auto& completion = transfer.completion();
  if (!completion) {
    step.told = "The client's program waits for a completion that does not come.";
    return step;
  }
  const bool success = completion->status == transport::Status::Success;
  const std::string outcome = success ? "success" : "an error";
  switch (transfer.request.operation) {
    case Operation::Send:
      step.told = fmt::format(
          "The server's program finds a completion in its queue, and the bytes. The server's NIC"
          " acknowledges, and the client's program finds a completion too: {}.",
          outcome);
      break;
    case Operation::Write:
      step.told = fmt::format(
          "The server's program has the bytes, and was neither asked nor woken. The server's NIC"
          " acknowledges; the client's NIC writes a completion into its program's queue: {}.",
          outcome);
      break;
    case Operation::Read:
      step.told = fmt::format(
          "The server's program was neither asked nor woken. The client's program has the bytes,"
          " and its NIC writes a completion into its queue: {}.",
          outcome);
      break;
  }
  const std::uint64_t bytes = transfer.settings().bytes;
  const auto found = transfer.first_arrived();
  std::vector<std::byte> sent(found.size());
  transfer.source().content.write(0, sent);
  step.facts = {
      {"sent", bytes_text_of(sent) + (bytes > sent.size() ? "..." : "")},
      {"found", fmt::format("{}{} ({})", bytes_text_of(found), bytes > found.size() ? "..." : "",
                            moved_all ? counted(bytes, "byte") + " compared, all the same"
                                      : "NOT what was sent")},
      {"took", milestones(transfer)}};
  if (!success) step.mark = Mark::Refused;
  add_heard(step, transfer, transfer.client, EventKind::Cqe);
  add_heard(step, transfer, transfer.server, EventKind::Cqe);
  return step;
}

}  // namespace softhca::sim
