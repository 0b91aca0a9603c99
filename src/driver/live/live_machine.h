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
#include "driver/live/live_memory.h"
#include "driver/live/live_settings.h"
#include "driver/live/neighbours.h"
#include "driver/table_memory.h"
#include "link/faulty_link.h"
#include "link/packet_port.h"
#include "link/pcap_link.h"
#include "link/ring_link.h"
#include "link/udp_link.h"
#include "local/service_names.h"
#include "os/clock.h"
#include "os/guarded_copy.h"
#include "os/host_name.h"
#include "os/interfaces.h"
#include "os/kernel_pin.h"
#include "os/shared_memory.h"
#include "trace/recording.h"

namespace softhca::driver {

class LiveMachine {
 public:
  // FAILS WITH ProfileUnknown, SettingUnknown, PlanUnusable, NoInterface (gone), AddressesExhausted
  // (no memory for tables), LimitExceeded (QPNs)
  static Result<std::unique_ptr<LiveMachine>, NotOpened> open(const DeviceDescription& which);
  ~LiveMachine();

  Engine& engine() { return *engine_; }
  const LiveSettings& settings() const { return settings_; }
  // The next progress looks at what the poller found readable, or everywhere.
  void expect(std::span<const int> readable);
  // Nobody polls from now on, or somebody does: whether peers of this host have to wake us. True if
  // something of theirs lies there already. Any thread.
  bool set_sleeping(bool sleeps);
  Time now() const { return clock_.now(); }
  trace::Tracer& tracer() { return *tracer_; }
  // Addresses or the frames' port were opened: there may be something to listen to.
  bool is_listening() const { return listening_ || frames_port_.fds_version() != 0; }
  // What a poller watches; another number when that has changed; that it has seen the change.
  std::vector<int> fds() const;
  std::uint32_t fds_version() const {
    return udp_->fds_version() + frames_port_.fds_version() + watches_version_;
  }
  void close_left();
  // Whether the interface may have changed, if `readable` names what listens for that.
  bool has_port_news(std::span<const int> readable);
  // Whether one of `readable` says that a process has ended which is watched.
  bool has_ended_process(std::span<const int> readable) const;
  // In the child of a fork: closes and unshares what it inherited, without a trace in the parent.
  // What remains answers questions; nothing may be driven.
  void before_fork();
  void after_fork_in_parent();
  void leave_behind();
  // One line on stderr; what was told before is only recorded.
  void tell(trace::Telling how, std::string_view what, const trace::Reason& reason,
            std::string_view particulars = {});
  // Appends what the chain did to the ledger file and ends the recording, if asked for. Once.
  void write_reports();

 private:
  LiveMachine(const DeviceDescription& which, LiveSettings settings, faults::Plan plan,
              os::SharedMemory memory, os::GuardedCopy copy, local::QpnBlock block);
  void tell_line(const trace::ToldLine& line);
  trace::Reason told(const local::PortFailure& error);
  void start_recording();
  bool claim_file(const FileIdentity& file);
  Result<void, trace::Reason> join_group(const wire::Gid& group);
  bool watch_process(std::uint32_t block);
  std::vector<std::uint32_t> ended_processes();
  bool pass_on_request(const wire::Datagram& from, ConstBytes packet);
  // Of a packet for queue pair 1.
  local::ServiceNames::Listener owner_of(const link::Frame& frame);
  Result<std::uint16_t, trace::Reason> open_path(const wire::Gid& source, wire::Qpn qpn);
  Neighbours::Settings neighbourhood();
  bool is_own_address(const wire::Gid& address) const;
  void build_engine(std::uint64_t seed);
  link::Link& lay_cable();
  void fill_header();
  void open_frames();
  std::string ledger_line();

  LiveSettings settings_;
  DeviceDescription description_;
  os::Clock clock_;
  os::SharedMemory memory_;
  TableMemory tables_;
  std::optional<os::SharedMemory> recording_memory_;
  std::unique_ptr<trace::Recording> recording_;
  std::unique_ptr<trace::Journal> journal_;  // null: not recording
  std::unique_ptr<trace::Tracer> tracer_;
  std::unique_ptr<faults::Injector> faults_;  // null: nothing is planned
  os::GuardedCopy copy_;
  os::KernelPins kernel_pins_;
  std::unique_ptr<LiveFrames> live_frames_;  // null: registered memory stays where it is
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
  Neighbours neighbours_;
  std::map<FileIdentity, os::HostName> claimed_;  // files with XRC domains of this process
  local::ServiceNames services_;
  std::map<std::uint32_t, os::NameWatch> watched_;  // processes of this host, by block
  std::vector<os::NameWatch> ended_;                // until nobody listens to their descriptors
  std::uint32_t watches_version_ = 0;
  std::unique_ptr<link::UdpLink> udp_;
  std::unique_ptr<link::PcapLink> pcap_;  // null: not capturing
  std::unique_ptr<link::FaultyLink> faulty_;
  std::unique_ptr<link::RingLink> ring_link_;  // null: every packet is for the cable
  link::PacketPort frames_port_;
  std::optional<os::InterfaceWatch> interfaces_;  // nothing: changes are seen when asked for
  std::unique_ptr<Engine> engine_;
  bool listening_ = false;
  bool reported_ = false;
  void publish_line(const std::string& line);
  int lines_told_ = 0;
  std::map<trace::ReasonId, int> warnings_told_;
  std::uint64_t refusals_ = 0;  // published
};

}  // namespace softhca::driver
