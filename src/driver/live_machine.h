// LiveMachine: this process as a host with one device: memory, pins, IOMMU, bus, cable, engine.
//
// Put together in the order in which the parts need each other, and taken apart in the reverse.
//
// Threads  called with the device owned (LiveDevice)
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "driver/engine.h"
#include "driver/engine_parts.h"
#include "driver/live_memory.h"
#include "driver/table_memory.h"
#include "link/faulty_link.h"
#include "link/pcap_link.h"
#include "link/udp_link.h"
#include "os/clock.h"
#include "os/guarded_copy.h"
#include "os/host_name.h"
#include "os/kernel_pin.h"
#include "os/shared_memory.h"

namespace softhca::driver {

// SOFTHCA_* variables that a machine obeys.
struct LiveSettings {
  bool strict{};
  bool scatter{};
  bool quiet{};
  std::optional<os::PinBackend> pin;  // nothing: the best that works
  std::string pcap;                   // file names; "": none
  std::string trace;
  std::string ledger;
  std::string faults;

  static LiveSettings from_environment();
};

class LiveMachine {
 public:
  // FAILS WITH NoInterface (gone), AddressesExhausted (no memory for tables), LimitExceeded (QPNs),
  // PlanUnusable
  static Result<std::unique_ptr<LiveMachine>, trace::Reason> open(const DeviceDescription& which);
  ~LiveMachine();

  Engine& engine() { return *engine_; }
  link::UdpLink& udp() { return *udp_; }
  Time now() const { return clock_.now(); }
  trace::Tracer& tracer() { return *tracer_; }
  // Addresses are open: there is something to listen to.
  bool is_listening() const { return listening_; }
  // In the child of a fork: closes and unshares what it inherited, without a trace in the parent.
  // What remains answers questions; nothing may be driven.
  void leave_behind();
  // One line on stderr.
  void tell(std::string_view what, const trace::Reason& reason, std::string_view particulars = {});
  // Appends what the chain did to the ledger file and writes the trace, if asked for. Once.
  void write_reports();

 private:
  LiveMachine(const DeviceDescription& which, LiveSettings settings, faults::Plan plan,
              os::SharedMemory memory, os::GuardedCopy copy, local::QpnBlock block);
  void tell_line(const std::string& line);
  bool claim_file(const FileIdentity& file);
  Result<void, trace::Reason> join_group(const wire::Gid& group);
  Result<std::uint16_t, trace::Reason> open_path(const wire::Gid& source, wire::Qpn qpn);
  void build_engine(std::uint64_t seed);
  link::Link& lay_cable();
  void fill_header();
  std::string ledger_line();

  LiveSettings settings_;
  DeviceDescription description_;
  os::Clock clock_;
  os::SharedMemory memory_;
  TableMemory tables_;
  std::unique_ptr<trace::Journal> journal_;  // null: not recording
  std::unique_ptr<trace::Tracer> tracer_;
  std::unique_ptr<faults::Injector> faults_;  // null: nothing is planned
  os::GuardedCopy copy_;
  os::KernelPins kernel_pins_;
  LiveSpace space_;
  LiveRings rings_;
  host::Ram ram_;
  host::Pins pins_;
  host::TableFrames frames_;
  host::ContextTable contexts_;
  host::Iommu iommu_;
  host::IovaSpace iova_;
  host::Iotlb iotlb_;
  pcie::ConfigSpace config_;
  host::RootPort port_;
  host::DmaDomain dma_;
  local::QpnBlock block_;
  std::map<FileIdentity, os::HostName> claimed_;  // files with XRC domains of this process
  std::unique_ptr<link::UdpLink> udp_;
  std::unique_ptr<link::PcapLink> pcap_;  // null: not capturing
  std::unique_ptr<link::FaultyLink> faulty_;
  std::unique_ptr<Engine> engine_;
  bool listening_ = false;
  bool reported_ = false;
  void publish_line(const std::string& line);
  int lines_told_ = 0;
  std::uint64_t refusals_ = 0;  // published
};

}  // namespace softhca::driver
