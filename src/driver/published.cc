#include "driver/published.h"

#include <cstring>
#include <map>
#include <optional>

#include "driver/table_memory.h"
#include "os/open_file.h"
#include "os/processes.h"
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
                 .counters = record.counters};
  std::memcpy(qp.destination.bytes.data(), record.destination, sizeof record.destination);
  return qp;
}

std::optional<PublishedDevice> read_tables(ConstBytes memory) {
  TableHeader h;
  if (!is_table_memory(memory, h)) return std::nullopt;
  PublishedDevice device{.pid = h.pid,
                         .program = text_of(h.program, sizeof h.program),
                         .device = text_of(h.device, sizeof h.device),
                         .interface = text_of(h.interface, sizeof h.interface),
                         .pin_backend = text_of(h.pin_backend, sizeof h.pin_backend),
                         .counters = {},
                         .qps = {},
                         .regions = {},
                         .refusals = {}};
  for (std::uint64_t i = 0; i < h.counters; ++i)
    device.counters.push_back(record_at<std::uint64_t>(memory, h.counters_at, i));
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

}  // namespace

std::vector<PublishedDevice> published_devices() {
  std::vector<PublishedDevice> devices;
  const std::string prefix = std::string("/memfd:") + kTableName;
  for (const os::Pid pid : os::running_programs())
    for (const os::OpenFile& file : os::open_files(pid)) {
      if (!file.target.starts_with(prefix)) continue;
      auto fd = os::open_file_of(pid, file.fd);
      if (!fd) continue;
      const auto memory = os::SharedMemory::attach(std::move(*fd));
      if (!memory) continue;
      auto device = read_tables(memory->read_only_bytes());
      // A forked child holds its parent's tables: each device is told of once.
      if (device && device->pid == pid) devices.push_back(std::move(*device));
    }
  return devices;
}

}  // namespace softhca::driver
