// Registrations: check access, pin, map for the device, write the key entry.
//
// Each step can fail and is undone if a later one does. The same code serves the program's buffers
// and the rings that driver and device share.
//
// Threads     called with the device owned
// Invariants  what is still registered when this object goes is undone by it
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "driver/attributes.h"
#include "driver/engine.h"
#include "driver/engine_parts.h"
#include "driver/on_demand_regions.h"
#include "driver/ring_memory.h"
#include "nic/key_table.h"

namespace softhca::driver {

class Registrations {
 public:
  // OWNS nothing.
  Registrations(const EngineParts& parts, nic::KeyTable& keys);
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  struct Request {
    std::uint32_t pd{};
    Range<VirtSpace> buffer;
    WireAddr io_address;
    AccessFlags access;
    std::uint64_t caller = 0;  // where the program called, for people; 0: unknown
  };
  // FAILS WITH what Engine::register_memory says.
  Result<Region, trace::Reason> add(const Request& request, Time now);
  // `at` is where the device's memory that `range` names begins. FAILS WITH
  // BadAccessFlags, ZeroBasedMissing, KeysExhausted. REQUIRES: the range, which may be empty, lies
  // in it.
  Result<Region, trace::Reason> add_on_device(std::uint32_t pd, const Engine::DeviceRange& range,
                                              std::uint64_t at, AccessFlags access, Time now);
  // Is the entry about an on-demand region of the domain, and within it?
  trace::Reason check_advice(std::uint32_t pd, Prefetch how, const Sge& about) const;
  // REQUIRES: check_advice() gave None.
  trace::Reason prefetch(Prefetch how, const Sge& about, Time now);
  // FAILS WITH KeyUnknown
  // What Engine::register_mapped says.
  Result<Region, trace::Reason> add_mapped(std::uint32_t pd, Bytes memory, WireAddr io_address,
                                           AccessFlags access, Time now);
  // The key stays; what fails changes nothing. FAILS WITH what Engine::change_memory says.
  Result<void, trace::Reason> change(wire::Key key, const Engine::RegionChange& wanted, Time now);
  // FAILS WITH KeysExhausted
  Result<wire::Key, trace::Reason> add_nothing(std::uint32_t pd);
  // FAILS WITH KeyUnknown, RegionHasWindows
  Result<void, trace::Reason> remove(wire::Key key, Time now);

  // A ring of `bytes` zeroed bytes, mapped for device reads and writes: in memory that the program
  // lends, or in the driver's own. REQUIRES: lent are whole pages, as many as ring_pages() says,
  // for as long as the ring lives.
  Result<RingMemory, trace::Reason> add_ring(std::uint64_t bytes, Time now, Bytes lent = {});

  // ", registered at PROGRAM+OFFSET", or nothing.
  std::string place_text(wire::Key key) const;
  const std::optional<Engine::RegionExample>& first() const { return first_; }
  std::size_t count() const { return regions_.size(); }
  bool uses_pd(std::uint32_t pd) const;
  bool uses_dm(std::uint32_t handle) const;
  std::vector<wire::Key> of_pd(std::uint32_t pd) const;

 private:
  struct Held {
    Request request;
    std::vector<host::PinId> pins;
    std::vector<pcie::Span> frames = {};  // that the address space holds for it
    host::DmaMapping mapping;             // without its pages, which are in the key table
    std::uint32_t dm = 0;          // handle of the device memory that it is; 0: memory of a program
    Range<PhysSpace> mapped = {};  // memory that is always there and copied to plainly; empty: none
    std::optional<BusAddr> on_demand = {};  // its pages come when they are asked for
    bool is_nothing = false;
  };

  host::PageOrder page_order() const {
    return parts_.scatter ? host::PageOrder::Permuted : host::PageOrder::InOrder;
  }
  static trace::Reason check_rights(AccessFlags access, std::uint32_t known);
  static trace::Reason check_request(const Request& request);
  trace::Reason check_pages(const Request& request);
  static nic::KeyTable::Entry entry_of(const Held& held);
  void note_for_faults(wire::Key key, const Held& held);
  // Probes, pins and maps, or makes it an on-demand region. FAILS WITH what add() says; then
  // nothing is held.
  Result<Held, trace::Reason> hold(const Request& wanted, bool& counted, Time now);
  Result<Held, trace::Reason> hold_on_demand(const Request& request);
  trace::Reason pin_all(const std::vector<pcie::Span>& frames, Held& held, bool& counted, Time now);
  Region add_key(wire::Key key, Held held, std::uint64_t bytes, Time now);
  void undo(Held& held, Time now);

  EngineParts parts_;
  nic::KeyTable& keys_;
  OnDemandRegions on_demand_;
  std::map<std::uint32_t, Held> regions_;  // by key
  std::optional<Engine::RegionExample> first_;
};

}  // namespace softhca::driver
