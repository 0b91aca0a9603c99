// HostMemory: all that the device does to memory: by key (payload) or by bus address (rings).
//
// Each access takes the same way: key table, bus address, DMA port (IOMMU and frames behind it).
// Nothing of the host is known here but the port. A key may also name memory of the device itself.
//
// Threads  owned by the device
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "nic/device_memory.h"
#include "nic/key_table.h"
#include "pcie/port.h"
#include "trace/journal.h"

namespace softhca::nic {

class HostMemory {
 public:
  // OWNS nothing.
  HostMemory(pcie::DmaPort& port, KeyTable& keys, trace::Tracer& tracer,
             SameHost* neighbours = nullptr)
      : port_(port), keys_(keys), tracer_(tracer), neighbours_(neighbours) {}

  // Asks the key table only; counts and traces the answer.
  trace::Reason check(const KeyAccess& access, wire::Qpn qpn, Time now);

  // Checks the key and moves bytes. `access.bytes` equals the buffer's size and is not 0.
  pcie::Outcome read(const KeyAccess& access, wire::Qpn qpn, Bytes to, Time now);
  pcie::Outcome write(const KeyAccess& access, wire::Qpn qpn, ConstBytes from, Time now);
  // The same for a buffer in parts, in one access. REQUIRES: at most kMostInParts bytes.
  pcie::Outcome read(const KeyAccess& access, wire::Qpn qpn, std::span<const Bytes> to, Time now);
  pcie::Outcome write(const KeyAccess& access, wire::Qpn qpn, std::span<const ConstBytes> from,
                      Time now);
  static constexpr std::uint64_t kMostInParts = (pcie::SpanList::kCapacity - 2) * kPage4K;

  // Where the bytes of an access lie, for whoever moves them elsewhere: the first ones, as many as
  // `spans` surely has room for. Gives how many. REQUIRES: check() gave None.
  pcie::Outcome resolve(const KeyAccess& access, pcie::Direction direction, pcie::SpanList& spans,
                        Time now);

  // Reads, changes and writes the eight bytes at a multiple of eight; gives what lay there before
  // in `original`. Nothing else of this device comes between, since one caller at a time owns it,
  // and no peer of this host.
  // What processors and other devices do to the bytes meanwhile is not excluded.
  struct Change {
    bool is_swap{};  // if they equal `compare`; else `swap_or_add` is added
    std::uint64_t swap_or_add{};
    std::uint64_t compare{};
  };
  pcie::Outcome change(const KeyAccess& access, wire::Qpn qpn, const Change& how,
                       std::uint64_t& original, Time now);

  // By bus address: rings and records that the driver mapped for the device.
  pcie::Outcome read_bus(BusAddr at, Bytes to, Time now);
  pcie::Outcome write_bus(BusAddr at, ConstBytes from, Time now);

  KeyTable& keys() { return keys_; }
  // By a key of the device's own memory, or of none.
  bool is_off_bus(const KeyAccess& access) const;
  DeviceMemory& on_device() { return on_device_; }

  // Where pieces are put together, so that they move as one.
  Bytes staging() { return staging_; }
  // Which part of a send request has been read before its packets were made, and to where: `step`
  // bytes, the last ones perhaps fewer, in each of the rooms.
  struct Staged {
    wire::Qpn qpn;
    std::uint32_t work{};
    std::uint64_t offset{};
    std::uint64_t step{};
    std::size_t count{};  // of rooms; 0: nothing
    std::array<const std::byte*, 64> rooms{};
  };
  void set_staged(const Staged& what) { staged_ = what; }
  void forget_staged() { staged_.count = 0; }
  const Staged& staged() const { return staged_; }

 private:
  static constexpr std::size_t kStagingBytes = 8192;

  // Resolves as much of the access as one span list holds; advances it. Gives the outcome.
  pcie::Outcome resolve_some(KeyAccess& access, pcie::Direction direction, pcie::SpanList& spans,
                             Time now);

  template <class Buffer>
  pcie::Outcome move(std::span<const pcie::Span> spans, Buffer buffer, Time now);
  template <class Buffer>
  pcie::Outcome move_at_once(const KeyAccess& access, Buffer buffer, Time now);
  template <class Buffer>
  pcie::Outcome move_by_key(const KeyAccess& access, wire::Qpn qpn, Buffer buffer, Time now);
  template <class Part>
  pcie::Outcome move_parts(const KeyAccess& access, wire::Qpn qpn, std::span<const Part> parts,
                           Time now);
  template <class Buffer>
  pcie::Outcome move_off_bus(const KeyAccess& access, Buffer buffer, Time now);
  pcie::Outcome move_on_device(const KeyAccess& access, Bytes to, Time now);
  pcie::Outcome move_on_device(const KeyAccess& access, ConstBytes from, Time now);
  void tell_on_device(const KeyAccess& access, std::uint64_t place, pcie::Direction direction,
                      Time now);
  template <class Buffer>
  pcie::Outcome move_by_bus(BusAddr at, Buffer buffer, Time now);

  pcie::DmaPort& port_;
  KeyTable& keys_;
  trace::Tracer& tracer_;
  SameHost* neighbours_;  // null: none
  DeviceMemory on_device_;
  Staged staged_;
  std::vector<std::byte> staging_ = std::vector<std::byte>(kStagingBytes);
};

}  // namespace softhca::nic
