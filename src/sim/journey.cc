#include "sim/journey.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sim/constants.h"
#include "sim/sockets.h"
#include "sim/telling.h"
#include "sim/transfer.h"
#include "sim/wrong.h"
#include "trace/words.h"

namespace softhca::sim {
namespace {

constexpr std::array<std::string_view, 3> kOperations = {"RDMA WRITE", "RDMA READ", "SEND"};

std::vector<std::string> setting_of(const Transfer& transfer) {
  std::vector<std::string> lines;
  const bool is_send = transfer.request.operation == Operation::Send;
  const auto asked = [&](trace::Counter counter) {
    return transfer.counted(transfer.client, counter) + transfer.counted(transfer.server, counter);
  };
  lines.push_back(fmt::format(
      "Done in {}. At work: {}. Not at work: {}. On the way: {}, {}, {} (acknowledgements "
      "included).",
      trace::time_text(transfer.took()),
      is_send ? "both programs, once each" : "the client's program, once",
      is_send ? "either kernel, or a CPU that copies"
              : "the server's program, either kernel, or a CPU that copies",
      trace::counted(asked(trace::Counter::KeyChecks), "key check"),
      trace::counted(asked(trace::Counter::IotlbHits) + asked(trace::Counter::IotlbMisses),
                     "IOMMU translation"),
      trace::counted(asked(trace::Counter::PacketsSent), "packet")));
  if (transfer.request.operation == Operation::Read)
    lines.push_back(
        "Told from the client down and up again; the bytes themselves go from the server's NIC to "
        "the"
        " client's PCIe.");
  const std::size_t others = transfer.world().host_count() - 2;
  lines.push_back(fmt::format(
      "Each of the two servers: {} of RAM, a NIC (01:00.0) on PCIe Gen3 x8, 100 Gb/s Ethernet.{}",
      trace::bytes_text(transfer.client.host->ram().size()),
      others == 0
          ? ""
          : fmt::format(" On the same switch: {}.", trace::counted(others, "more server"))));
  return lines;
}

// Fewer of large ones, so that nobody waits long.
std::uint32_t transfers_for(const JourneySettings& settings) {
  constexpr std::uint64_t kAtMostBytes = std::uint64_t{512} << 20;
  constexpr std::uint64_t kAtLeast = 5;
  const std::uint64_t fit = std::max(kAtLeast, kAtMostBytes / settings.bytes);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(settings.compare, fit));
}

// Down at the one end of the cable, up at the other.
std::vector<Step> steps_of(const Transfer& transfer, bool moved_all) {
  const TransferEnd& down = transfer.client;
  const TransferEnd& up = transfer.server;
  return {tell_application(transfer, down),
          tell_allocation(transfer, down),
          tell_virtual_address(transfer, down),
          tell_mmu(transfer, down),
          tell_frames(transfer, down),
          tell_registration(transfer, down),
          tell_pins(transfer, down),
          tell_iommu(transfer, down),
          tell_nic(transfer, down),
          tell_pcie(transfer, down),
          tell_ethernet(transfer, down),
          tell_ethernet(transfer, up),
          tell_pcie(transfer, up),
          tell_nic(transfer, up),
          tell_iommu(transfer, up),
          tell_pins(transfer, up),
          tell_registration(transfer, up),
          tell_frames(transfer, up),
          tell_mmu(transfer, up),
          tell_virtual_address(transfer, up),
          tell_allocation(transfer, up),
          tell_arrival(transfer, moved_all)};
}

}  // namespace

Result<Story, std::string> tell_journey(const JourneySettings& settings) {
  if (!settings.acs_redirect && !settings.gpu)
    return std::string("--acs is about NIC and GPU; add --memory gpu");
  if (!settings.wrong.empty()) return tell_wrong(settings);
  if (settings.gpu && (settings.sockets || settings.compare != 0))
    return std::string("sockets are told of memory of the host; leave --memory out");
  Transfer transfer(settings);
  if (!transfer.prepare())
    return fmt::format("memory is too fragmented for pages of {}; lower --fragmentation",
                       trace::bytes_text(settings.page_bytes));
  transfer.post_and_finish();
  Story story;
  story.headline =
      fmt::format("{} from one server's memory to another's by {} (seed {})",
                  trace::counted(settings.bytes, "byte"),
                  kOperations[static_cast<std::size_t>(settings.operation)], settings.seed);
  story.setting = setting_of(transfer);
  const bool moved_all = transfer.moved_all();
  story.steps = steps_of(transfer, moved_all);
  story.took = transfer.took();
  story.came_out_right = transfer.completion() &&
                         transfer.completion()->status == transport::Status::Success && moved_all;
  std::optional<SocketResult> sockets;
  if (story.came_out_right && settings.sockets) {
    transfer.clear_target();
    sockets = SocketPath(transfer).move(milliseconds(2));
    story.has_sockets = true;
    story.came_out_right = sockets->arrived;
  }
  story.ledger = ledger_of(transfer, sockets ? &*sockets : nullptr);
  if (story.came_out_right && settings.compare != 0)
    story.ways = compare_ways(transfer, transfers_for(settings));
  if (story.has_sockets || !story.ways.empty())
    for (const ConstantRow& row : constants())
      story.citations.push_back(
          {std::string(row.name), trace::time_text(row.cost), std::string(row.source)});
  story.journal_hash = transfer.world().journal_hash();
  return story;
}

}  // namespace softhca::sim
