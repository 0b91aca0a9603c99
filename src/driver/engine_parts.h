// EngineParts: the machine that an engine drives, and its cable. OWNS nothing.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "driver/address_space.h"
#include "driver/profile.h"
#include "faults/injector.h"
#include "host/dma_domain.h"
#include "host/pin.h"
#include "host/ram.h"
#include "host/root_port.h"
#include "link/frame_port.h"
#include "link/link.h"
#include "nic/records.h"
#include "nic/same_host.h"
#include "pcie/config_space.h"
#include "trace/journal.h"
#include "transport/congestion.h"
#include "wire/cm_message.h"

namespace softhca::driver {

// A file, whatever its name: device and inode.
struct FileIdentity {
  std::uint64_t device{};
  std::uint64_t inode{};
  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

struct EngineParts {
  host::Ram& ram;
  host::Pins& pins;
  host::DmaDomain& dma;
  host::RootPort& port;
  pcie::ConfigSpace& config;
  AddressSpace& space;
  RingSource& rings;
  link::Link& link;
  trace::Tracer& tracer;
  nic::Tables tables;
  std::uint32_t first_qpn{};
  std::uint64_t seed{};
  Profile profile{};
  bool scatter{};  // map 4 KiB leaves in permuted order
  // Where the whole address space of the program, 47 bits of it, may be mapped on demand; nothing:
  // it may not. REQUIRES: nobody else uses these bus addresses.
  std::optional<BusAddr> whole_space{};
  // Makes packets of `qpn` possible from the address `source`; gives their UDP source port.
  std::function<Result<std::uint16_t, trace::Reason>(const wire::Gid& source, wire::Qpn qpn)>
      open_path;
  // From the first queue pair of a multicast group to the last, its packets come to the link.
  std::function<Result<void, trace::Reason>(const wire::Gid& group)> join_group = {};
  std::function<void(const wire::Gid& group)> leave_group = {};
  // XRC domains of files: makes `file` this process's; false if another process has one of it.
  // Empty where there are no others.
  std::function<bool(const FileIdentity& file)> claim_file = {};
  std::function<void(const FileIdentity& file)> give_back_file = {};
  // The device's, stable: peers are told it.
  std::uint64_t guid{};
  // Listeners of the connection manager (a zero address: every one): says on this host that their
  // requests are for this process; false if another one has that service. Empty where there are no
  // others.
  std::function<bool(wire::ServiceId, const wire::Gid& address)> claim_service = {};
  std::function<void(wire::ServiceId, const wire::Gid& address)> give_back_service = {};
  // Passes a request to the process of this host that listens to its service now, if one does.
  std::function<bool(const wire::Datagram& from, ConstBytes packet)> pass_on_request = {};
  // From now on the process of this host that has a block is watched; false if it has ended
  // already. And which of those have ended since the last call. Empty where there are no others.
  std::function<bool(std::uint32_t block)> watch_process = {};
  std::function<std::vector<std::uint32_t>()> ended_processes = {};
  // A place in the program's code as people know it. Empty where there is no program.
  std::function<std::string(std::uint64_t)> name_of_place = {};
  std::string interface = {};  // as people know the cable
  // Whether who calls now may send and receive whole Ethernet frames.
  std::function<bool()> may_use_raw_packets = [] { return true; };
  link::FramePort* frames = nullptr;   // null: those frames stay in the device
  faults::Injector* faults = nullptr;  // a plan of faults; null: none
  transport::CongestionSettings congestion = {};
  nic::SameHost* neighbours = nullptr;  // null: nobody else is on this host
};

}  // namespace softhca::driver
