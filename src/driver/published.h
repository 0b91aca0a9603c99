// Published: what other processes may read of a device without asking it.
//
// Each open device keeps its tables in one memfd named "softhca:<device>"; any process of the same
// user finds it under /proc/<pid>/fd and maps it read-only. Records are pointer-free, so that this
// works for a process that is stopped, and leaves nothing behind one that is killed.
//
// See also  ARCHITECTURE.md, "Tables"; cli/command_stat.cc
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "driver/attributes.h"
#include "trace/counters.h"
#include "trace/qp_counters.h"

namespace softhca::driver {

struct PublishedQp {
  wire::Qpn qpn;
  wire::Qpn dest_qpn;
  transport::QpState state{};
  std::uint32_t pd{};
  wire::Gid destination;
  std::uint32_t path_mtu_bytes{};
  // One-sided requests are executed in the peer's memory; else perhaps why they go as packets.
  bool is_direct{};
  trace::ReasonId why_not_direct{};
  // Likewise its packets, through the memory of this host.
  bool is_by_ring{};
  trace::ReasonId why_not_by_ring{};
  trace::QpCounters counters;
};

struct PublishedRegion {
  wire::Key key;
  std::uint32_t pd{};
  std::uint32_t access{};  // as ibv_access_flags
  WireAddr io_address;
  std::uint64_t length{};
};

struct PublishedDevice {
  std::int32_t pid{};
  std::string program;  // comm
  std::string device;
  std::string interface;
  std::string pin_backend;              // "io_uring", "mlock", "counted"
  std::vector<std::uint64_t> counters;  // by trace::Counter
  std::vector<PublishedQp> qps;
  std::vector<PublishedRegion> regions;
  std::vector<std::string> refusals;  // the last ones, oldest first, a line each
};

// Every open device of every process that this user may look at.
std::vector<PublishedDevice> published_devices();

// What the device on an interface counted, by trace::Counter: this process's own if it has the
// device open; else the sum of those of every process of this network namespace that this user may
// look at. Empty if nobody has it open.
std::vector<std::uint64_t> published_counters(const std::string& device,
                                              const std::string& interface);

}  // namespace softhca::driver
