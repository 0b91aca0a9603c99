#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/range.h"
#include "cli/commands.h"
#include "driver/published.h"
#include "os/processes.h"

namespace softhca::cli {
namespace {

using Json = nlohmann::ordered_json;
using driver::PublishedDevice;

std::string_view state_name(transport::QpState state) {
  constexpr std::array<std::string_view, 7> kNames = {"RESET", "INIT", "RTR", "RTS",
                                                      "SQD",   "SQE",  "ERR"};
  const auto at = static_cast<std::size_t>(state);
  return at < kNames.size() ? kNames[at] : "?";  // another process wrote it
}

// How something reaches the peer: as packets, perhaps for a reason, or what else there is.
std::string way_text(bool is_memory, trace::ReasonId why_not) {
  if (is_memory) return "memory";
  const trace::ReasonInfo* const why = trace::find_reason(why_not);
  return why == nullptr ? "packets" : "packets: " + std::string(why->name);
}

// One-sided requests.
std::string path_text(const driver::PublishedQp& qp) {
  return way_text(qp.is_direct, qp.why_not_direct);
}

// Messages: what goes as packets, and so are acknowledgements.
std::string message_path_text(const driver::PublishedQp& qp) {
  return way_text(qp.is_by_ring, qp.why_not_by_ring);
}

// The rights of a region as words: "local_write remote_read".
std::string access_text(std::uint32_t bits) {
  constexpr std::pair<driver::Access, std::string_view> kNames[] = {
      {driver::Access::LocalWrite, "local_write"}, {driver::Access::RemoteWrite, "remote_write"},
      {driver::Access::RemoteRead, "remote_read"}, {driver::Access::RemoteAtomic, "remote_atomic"},
      {driver::Access::MwBind, "mw_bind"},         {driver::Access::ZeroBased, "zero_based"}};
  std::string text;
  for (const auto& [access, name] : kNames)
    if (driver::AccessFlags::of_bits(bits).has(access))
      text += fmt::format("{}{}", text.empty() ? "" : " ", name);
  return text.empty() ? "local read only" : text;
}

// Which libibverbs the program really runs with; "" if it maps none.
std::string library_of(const PublishedDevice& device) {
  for (const std::string& file : os::mapped_files(device.pid))
    if (file.find("libibverbs.so") != std::string::npos) return file;
  return "";
}

std::uint64_t counter(const PublishedDevice& device, trace::Counter which) {
  const auto at = static_cast<std::size_t>(which);
  return at < device.counters.size() ? device.counters[at] : 0;
}

Json json_of(const trace::QpCounters& counters) {
  Json all = Json::object();
  for (const trace::QpCounterInfo& row : trace::kQpCounters)
    all[std::string(row.name)] = counters.get(row.counter);
  return all;
}

Json json_of(const PublishedDevice& device) {
  Json qps = Json::array();
  for (const driver::PublishedQp& qp : device.qps)
    qps.push_back({{"qpn", qp.qpn.value},
                   {"state", state_name(qp.state)},
                   {"pd", qp.pd},
                   {"dest_qpn", qp.dest_qpn.value},
                   {"dest_gid", wire::gid_text(qp.destination)},
                   {"path_mtu", qp.path_mtu_bytes},
                   {"path", path_text(qp)},
                   {"message_path", message_path_text(qp)},
                   {"counters", json_of(qp.counters)}});
  Json regions = Json::array();
  for (const driver::PublishedRegion& region : device.regions)
    regions.push_back({{"key", region.key.value},
                       {"pd", region.pd},
                       {"address", fmt::format("{:#x}", region.io_address.value)},
                       {"bytes", region.length},
                       {"access", access_text(region.access)}});
  Json counters = Json::object();
  for (const trace::CounterInfo& row : trace::kCounters)
    counters[std::string(row.name)] = counter(device, row.counter);
  return {{"pid", device.pid},         {"program", device.program},
          {"device", device.device},   {"interface", device.interface},
          {"pin", device.pin_backend}, {"library", library_of(device)},
          {"queue_pairs", qps},        {"regions", regions},
          {"counters", counters}};
}

void print_queue_pairs(const PublishedDevice& device, Terminal& terminal) {
  if (device.qps.empty()) {
    terminal.out << "  no queue pairs\n";
    return;
  }
  Table table({{"QP"},
               {"STATE"},
               {"PD", Table::Align::Right},
               {"PATH MTU", Table::Align::Right},
               {"PEER"},
               {"ONE-SIDED BY"},
               {"MESSAGES BY"}},
              2);
  for (const driver::PublishedQp& qp : device.qps) {
    const bool connected = !qp.destination.is_zero();
    table.add_row({fmt::format("{:#08x}", qp.qpn.value), std::string(state_name(qp.state)),
                   std::to_string(qp.pd), connected ? std::to_string(qp.path_mtu_bytes) : "-",
                   connected ? fmt::format("{} QP {:#08x}", wire::address_text(qp.destination),
                                           qp.dest_qpn.value)
                             : "-",
                   connected ? path_text(qp) : "-", connected ? message_path_text(qp) : "-"});
  }
  terminal.out << table.text(terminal.look);
}

bool is_traffic(trace::QpCounter counter) { return counter <= trace::QpCounter::BytesReceived; }

// Acknowledgements are no trouble, and what needs no packets is none either.
bool is_trouble(trace::QpCounter counter) {
  using enum trace::QpCounter;
  return !is_traffic(counter) && counter != AcksSent && counter != AcksReceived &&
         counter != DirectRequests && counter != DirectBytes;
}

void print_traffic(const PublishedDevice& device, Terminal& terminal) {
  using enum trace::QpCounter;
  Table table({{"QP"},
               {"SENT", Table::Align::Right},
               {"BYTES", Table::Align::Right},
               {"RECEIVED", Table::Align::Right},
               {"BYTES", Table::Align::Right},
               {"BY MEMORY", Table::Align::Right},
               {"BYTES", Table::Align::Right}},
              2);
  for (const driver::PublishedQp& qp : device.qps) {
    std::vector<std::string> cells{fmt::format("{:#08x}", qp.qpn.value)};
    for (const auto which :
         {PacketsSent, BytesSent, PacketsReceived, BytesReceived, DirectRequests, DirectBytes})
      cells.push_back(grouped(qp.counters.get(which)));
    table.add_row(std::move(cells));
  }
  terminal.out << table.text(terminal.look);
}

// What was sent again, refused, or waited for.
void print_trouble(const PublishedDevice& device, Terminal& terminal) {
  Table table({{"QP"}, {"COUNTER"}, {"VALUE", Table::Align::Right}, {"MEANING"}}, 2);
  bool any = false;
  for (const driver::PublishedQp& qp : device.qps)
    for (const trace::QpCounterInfo& row : trace::kQpCounters) {
      const std::uint64_t value = qp.counters.get(row.counter);
      if (value == 0 || !is_trouble(row.counter)) continue;
      const Duration time{static_cast<std::int64_t>(value)};
      table.add_row({fmt::format("{:#08x}", qp.qpn.value), std::string(row.name),
                     row.is_time ? trace::time_text(time) : grouped(value), std::string(row.text)});
      any = true;
    }
  terminal.out << (any ? table.text(terminal.look)
                       : "  nothing was sent again, refused or waited for\n");
}

void print_regions(const PublishedDevice& device, Terminal& terminal) {
  if (device.regions.empty()) {
    terminal.out << "  no regions\n";
    return;
  }
  Table table({{"KEY"},
               {"PD", Table::Align::Right},
               {"ADDRESS"},
               {"BYTES", Table::Align::Right},
               {"ACCESS"}},
              2);
  for (const driver::PublishedRegion& region : device.regions)
    table.add_row({fmt::format("{:#010x}", region.key.value), std::to_string(region.pd),
                   fmt::format("{:#x}", region.io_address.value), grouped(region.length),
                   access_text(region.access)});
  terminal.out << table.text(terminal.look);
}

// How much of the program's memory lies in frames of the device now.
void print_frames(const PublishedDevice& device, Terminal& terminal) {
  using enum trace::Counter;
  const std::uint64_t moved = counter(device, FramesMoved);
  if (moved == 0) return;
  const std::uint64_t orphaned = counter(device, FramesOrphaned);
  // It counts on while we read.
  const std::uint64_t gone = std::min(moved, counter(device, FramesReturned) + orphaned);
  terminal.out << fmt::format("  frames: {} bytes lie in the device's memory",
                              grouped((moved - gone) * kPage4K));
  if (orphaned != 0)
    terminal.out << fmt::format("; {} were unmapped under a region", grouped(orphaned * kPage4K));
  terminal.out << "\n";
}

void print_counters(const PublishedDevice& device, Terminal& terminal) {
  Table table({{"COUNTER"}, {"VALUE", Table::Align::Right}, {"MEANING"}}, 2);
  bool any = false;
  for (const trace::CounterInfo& row : trace::kCounters) {
    const std::uint64_t value = counter(device, row.counter);
    if (value == 0) continue;
    table.add_row({std::string(row.name), grouped(value), std::string(row.text)});
    any = true;
  }
  terminal.out << (any ? table.text(terminal.look) : "  all counters are zero\n");
}

}  // namespace

int command_stat(const StatArguments& arguments, Terminal& terminal) {
  std::vector<PublishedDevice> devices = driver::published_devices();
  if (arguments.pid)
    std::erase_if(devices, [&](const PublishedDevice& one) { return one.pid != *arguments.pid; });
  if (arguments.json) {
    Json all = Json::array();
    for (const PublishedDevice& device : devices) all.push_back(json_of(device));
    terminal.out << all.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else if (devices.empty()) {
    terminal.out << (arguments.pid
                         ? fmt::format("Process {} has no SoftHCA device open.\n", *arguments.pid)
                         : "No program has a SoftHCA device open.\n");
  }
  if (devices.empty()) return arguments.pid ? 1 : 0;
  if (arguments.json) return 0;

  bool first = true;
  for (const PublishedDevice& device : devices) {
    const std::string head =
        printable(fmt::format("{} (pid {}): {} on {}, pins: {}", device.program, device.pid,
                              device.device, device.interface, device.pin_backend));
    terminal.out << (first ? "" : "\n") << toned(head, Tone::Strong, terminal.look) << "\n";
    first = false;
    if (const std::string library = library_of(device); !library.empty())
      terminal.out << "  library " << library << "\n";
    print_queue_pairs(device, terminal);
    if (!device.qps.empty()) {
      print_traffic(device, terminal);
      print_trouble(device, terminal);
    }
    print_regions(device, terminal);
    print_frames(device, terminal);
    print_counters(device, terminal);
  }
  return 0;
}

}  // namespace softhca::cli
