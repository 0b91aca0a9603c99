// Neighbours: the processes of this host around a live device (nic/same_host.h).
//
// As initiator it finds the process that has a peer's QPN block, looks at its tables through
// /proc/PID/fd, and moves bytes to and from its memory (process_vm_*), or writes its packets into
// a ring there. As owner it has the table in which those say that they are in this process's
// memory, and the rings for what they send.
//
// Threads  owned by the device's owner
// See also driver/peer_tables.h (what is allowed), local/accessors.h (who is inside)
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "link/ring_link.h"
#include "local/accessors.h"
#include "local/qpn_block.h"
#include "local/ring_table.h"
#include "nic/same_host.h"
#include "os/clock.h"
#include "os/peer_memory.h"
#include "trace/journal.h"

namespace softhca::driver {

class Neighbours final : public nic::SameHost {
 public:
  struct Settings {
    local::Domain domain;
    std::uint32_t block{};  // our own
    bool reaches_out{};     // this device executes requests in others' memory
    bool lets_in{};         // and others in its
    bool has_rings{};       // packets from and to others go through memory. REQUIRES: both of these
    // Whether memory of this process is the device's own, and always there.
    std::function<bool(std::span<const pcie::Span>)> is_plain;
    trace::Tracer* tracer{};
    local::AccessorIdentity self;
    // Whether an address is one of the device's own interface.
    std::function<bool(const wire::Gid&)> is_own_address;
  };
  // `clock` is that of the device, and outlives this.
  Neighbours(Settings settings, const os::Clock& clock);

  // As TableHeader has it.
  int accessors_file() const { return table_.is_open() ? table_.fd() + 1 : 0; }
  int rings_file() const { return rings_memory_.is_open() ? rings_memory_.fd() + 1 : 0; }
  // In the child of a fork: closes what is the parent's.
  void abandon();

  // For packets from others; null: they come as UDP.
  local::RingTable* rings() { return rings_ ? &*rings_ : nullptr; }
  // For packets to the process that has that block.
  link::RingLink::Found ring_to(std::uint32_t block);

  Found find(const nic::Connection& connection) override;
  void wait_until_left() override;
  void lock_atomics() override;
  void unlock_atomics() override;

 private:
  class Process;
  struct Mapped;
  static std::optional<Mapped> map(std::uint32_t pid, std::uint32_t first_qpn);
  struct Reached {
    std::shared_ptr<Process> process;
    trace::ReasonId why_not{};
  };
  Reached reach(std::uint32_t block);
  Reached open(std::uint32_t block);

  Settings settings_;
  const os::Clock& clock_;
  os::PeerTable table_;                        // not open: nobody is let in
  std::optional<local::Accessors> accessors_;  // over it
  os::PeerTable rings_memory_;
  std::optional<local::RingTable> rings_;                  // over it
  std::map<std::uint32_t, std::weak_ptr<Process>> known_;  // by QPN block
};

}  // namespace softhca::driver
