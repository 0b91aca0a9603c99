#include "driver/published.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "driver/table_memory.h"
#include "os/processes.h"
#include "os/self.h"
#include "os/shared_memory.h"

namespace softhca::driver {
namespace {

std::string text_of(const char* field, std::size_t room) { return {field, strnlen(field, room)}; }

// A record as it is now; its owner may be writing it.
template <class Record>
Record record_at(ConstBytes memory, std::uint64_t at, std::uint64_t index) {
  return load_le<Record>(memory, at + index * sizeof(Record));
}

PublishedQp published(const nic::QpRecord& record) {
  PublishedQp qp{.qpn = {record.qpn},
                 .dest_qpn = {record.dest_qpn},
                 .state = static_cast<transport::QpState>(record.state),
                 .pd = record.pd,
                 .destination = {},
                 .path_mtu_bytes = record.path_mtu,
                 .is_direct = record.path == nic::kPathDirect,
                 .why_not_direct = static_cast<trace::ReasonId>(record.path & 0xffff),
                 .is_by_ring = record.message_path == nic::kPathRing,
                 .why_not_by_ring = static_cast<trace::ReasonId>(record.message_path & 0xffff),
                 .counters = record.counters};
  std::memcpy(qp.destination.bytes.data(), record.destination, sizeof record.destination);
  return qp;
}

std::vector<std::uint64_t> counters_of(ConstBytes memory, const TableHeader& h) {
  std::vector<std::uint64_t> counters;
  for (std::uint64_t i = 0; i < h.counters; ++i)
    counters.push_back(record_at<std::uint64_t>(memory, h.counters_at, i));
  return counters;
}

PublishedDevice read_tables(ConstBytes memory, const TableHeader& h) {
  PublishedDevice device{.pid = h.pid,
                         .program = text_of(h.program, sizeof h.program),
                         .device = text_of(h.device, sizeof h.device),
                         .interface = text_of(h.interface, sizeof h.interface),
                         .pin_backend = text_of(h.pin_backend, sizeof h.pin_backend),
                         .counters = counters_of(memory, h),
                         .qps = {},
                         .regions = {},
                         .refusals = {}};
  for (std::uint64_t i = 0; i < h.qps; ++i)
    if (const auto record = record_at<nic::QpRecord>(memory, h.qps_at, i); record.qpn != 0)
      device.qps.push_back(published(record));
  for (std::uint64_t i = 1; i < h.keys; ++i) {
    const auto record = record_at<nic::KeyRecord>(memory, h.keys_at, i);
    if (record.state != static_cast<std::uint32_t>(nic::KeyState::Valid)) continue;
    device.regions.push_back({.key = wire::Key::of(static_cast<std::uint32_t>(i),
                                                   static_cast<std::uint8_t>(record.variant)),
                              .pd = record.pd,
                              .access = record.access,
                              .io_address = {record.start},
                              .length = record.bytes});
  }
  std::map<std::uint64_t, std::string> lines;
  for (std::uint64_t i = 0; i < h.refusals; ++i)
    if (const auto record = record_at<RefusalRecord>(memory, h.refusals_at, i); record.number != 0)
      lines.emplace(record.number, text_of(record.line, sizeof record.line));
  for (auto& [number, line] : lines) device.refusals.push_back(std::move(line));
  return device;
}

// look(tables, header) for each device that a process has open. A forked child holds its parent's
// tables: each device is told of once.
template <class Look>
void look_at_devices(os::Pid pid, Look&& look) {
  const std::string prefix = std::string("/memfd:") + kTableName;
  for (const os::OpenFile& file : os::open_files(pid)) {
    if (!file.target.starts_with(prefix)) continue;
    auto fd = os::open_file_of(pid, file.fd);
    if (!fd) continue;
    const auto memory = os::SharedMemory::attach(std::move(*fd));
    if (!memory) continue;
    TableHeader header;
    if (is_table_memory(memory->read_only_bytes(), header) && header.pid == pid)
      look(memory->read_only_bytes(), header);
  }
}

}  // namespace

std::vector<PublishedDevice> published_devices() {
  std::vector<PublishedDevice> devices;
  for (const os::Pid pid : os::running_programs())
    look_at_devices(pid, [&](ConstBytes memory, const TableHeader& header) {
      devices.push_back(read_tables(memory, header));
    });
  return devices;
}

std::vector<std::uint64_t> published_counters(const std::string& device,
                                              const std::string& interface) {
  std::vector<std::uint64_t> sum;
  const auto add = [&](ConstBytes memory, const TableHeader& header) {
    if (text_of(header.device, sizeof header.device) != device ||
        text_of(header.interface, sizeof header.interface) != interface)
      return;
    const std::vector<std::uint64_t> counters = counters_of(memory, header);
    sum.resize(std::max(sum.size(), counters.size()));
    for (std::size_t i = 0; i < counters.size(); ++i) sum[i] += counters[i];
  };
  look_at_devices(static_cast<os::Pid>(os::own_pid()), add);
  if (!sum.empty()) return sum;
  for (const os::Pid pid : os::running_programs())
    if (os::shares_network(pid)) look_at_devices(pid, add);
  return sum;
}

}  // namespace softhca::driver
