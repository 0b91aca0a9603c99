// RootPort: where the bus meets the host. Every access of the device to memory passes here.
//
// resolve  bus master on? -> context entry of the device? -> each page through the IOTLB or the
//          IOMMU's tables -> spans of frames. This *is* the DMA: it is counted, cut into TLPs and
//          charged with its time here, whether its bytes are then moved by read() or write(), or
//          handed to sendmsg.
// read, write  move bytes between resolved spans and a buffer. They add no time.
//
// What a live device does not have (deferred invalidation, pass-through, structure caches, a cache
// in the device, a plan of faults) is a path of its own; the plain one pays a branch for it.
//
// Time     A HostCosts of zeros makes everything instantaneous: ready_at equals now. Otherwise the
//          two directions of the link and the table walker are busy until they have done their
//          work, one access after the other. A read does not pass a write before it, and neither
//          does an interrupt.
// Threads  owned by the device's owner
// See also pcie/port.h for the contract; ARCHITECTURE.md, "The life of one WRITE"
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/range.h"
#include "faults/injector.h"
#include "host/context_table.h"
#include "host/iommu.h"
#include "host/iotlb.h"
#include "host/ram.h"
#include "host/structure_cache.h"
#include "pcie/config_space.h"
#include "pcie/fabric.h"
#include "pcie/msix.h"
#include "pcie/port.h"
#include "pcie/tlp.h"
#include "trace/journal.h"

namespace softhca::host {

class DmaDomain;

struct HostCosts {
  Duration read_latency{};   // request out, first data back
  Duration write_latency{};  // posted write out, visible in memory; also an interrupt's
  Duration iotlb_miss{};     // one walk of the tables, whatever it reads
  Duration table_read{};     // each entry that a walk, or a look for the context, reads
  Duration ats_request{};    // the device asks for a translation and waits for it
  // Memory of another device: a read's and a write's way through the switch, instead of those to
  // RAM; and what going up to the root complex and down again adds to those to RAM.
  Duration peer_read_latency{};
  Duration peer_write_latency{};
  Duration redirect_latency{};
  Duration tlp_overhead{};       // link time of a TLP's header and framing
  std::int64_t ps_per_byte = 0;  // link time of a byte of payload, each direction

  friend bool operator==(const HostCosts&, const HostCosts&) = default;
};

// LeafOnly: no table was given back, so what is known of tables stays.
enum class InvalidationHint : std::uint8_t { Full, LeafOnly };

class RootPort final : public pcie::DmaPort, public pcie::InterruptTarget {
 public:
  using InterruptSink = std::function<void(std::uint32_t vector, Time arrives_at)>;
  // A translation failed: a page request of the device to the kernel, if the address is one whose
  // pages are mapped on demand. None: the page is mapped, the access is tried again. A reason: it
  // cannot be. Nothing: it is no such address.
  using OnDemand =
      std::function<std::optional<trace::Reason>(BusAddr at, pcie::Direction direction, Time now)>;

  // What it stands between; all outlive it.
  struct Parts {
    Ram& ram;
    Iommu& iommu;
    Iotlb& iotlb;
    const pcie::ConfigSpace& config;  // the device's
    trace::Tracer& tracer;
    // Null: there is none.
    const ContextTable* contexts = nullptr;
    StructureCache* structures = nullptr;
    Iotlb* device_tlb = nullptr;  // ATS: translations that the device keeps and uses by itself
    const pcie::Fabric* fabric = nullptr;  // with other devices on it
    pcie::MsixTable* msix = nullptr;       // the device's; null: its vectors always go through
    faults::Injector* faults = nullptr;    // a plan of faults
  };
  explicit RootPort(Parts parts, const HostCosts& costs = {}, const pcie::LinkLimits& limits = {});

  // DmaPort. After a fault the spans of the part that resolved are in the list: not to be used.
  // REQUIRES: the list has room (an access of 63 pages always fits an empty one).
  pcie::Outcome resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) override;
  pcie::Outcome read(std::span<const pcie::Span> from, Bytes to, Time now) override;
  pcie::Outcome write(std::span<const pcie::Span> to, ConstBytes from, Time now) override;
  pcie::Outcome read(std::span<const pcie::Span> from, std::span<const Bytes> to,
                     Time now) override;
  pcie::Outcome write(std::span<const pcie::Span> to, std::span<const ConstBytes> from,
                      Time now) override;

  // InterruptTarget. Without bus master no message leaves the device: refused in the trace.
  void interrupt(std::uint32_t vector, Time now) override;
  // As the CPU writes to the vector's mask bit: a message that waited leaves. REQUIRES:
  // Parts::msix.
  void set_masked(std::uint32_t vector, bool masked, Time now);
  void set_interrupt_sink(InterruptSink sink) { sink_ = std::move(sink); }
  void set_on_demand(OnDemand ask) { on_demand_ = std::move(ask); }

  // The domain that the device is attached to; null: none, translations are the tables' alone.
  void attach(DmaDomain* domain);

  // After Iommu::unmap: neither the unit nor the device may remember the range.
  void invalidate(Range<BusSpace> range, InvalidationHint hint = InvalidationHint::Full);
  void invalidate_all();
  // After a change of the device's context entry.
  void invalidate_context();

  // Does the switch hand all requests for these frames to a peer, past this port?
  bool reaches_directly(Range<PhysSpace> frames) const;

  bool has_device_tlb() const { return parts_.device_tlb != nullptr; }

 private:
  // What an access took beside its bytes.
  struct Work {
    std::uint64_t walks = 0;
    std::uint64_t entries_read = 0;
    std::uint64_t ats_requests = 0;
    Duration longer{};  // than to RAM
    const pcie::Endpoint* peer = nullptr;
    bool redirected = false;
    // The table of leaves that the last walk ended in, and which 2 MiB it maps; level 0: none.
    WalkStart leaves{.level = 0, .table = 0, .rights = 0};
    std::uint64_t leaves_of = 0;
  };
  using Found = Result<Translation, TranslationFault>;
  // Where a byte lies, and how many from it on; 0: none, and why.
  struct Place {
    PhysAddr phys;
    std::uint64_t bytes = 0;
    TranslationFault fault{};
  };
  static Place place_of(const Translation& found, BusAddr at);
  static Place place_of(const Found& found, BusAddr at);

  pcie::Outcome resolve_modelled(const pcie::Access& access, Time now, pcie::SpanList& spans);
  pcie::Outcome block_by_plan(const trace::Reason& why, const pcie::Access& access, Time now);
  template <class Translate>
  pcie::Outcome resolve_by(const pcie::Access& access, Time now, pcie::SpanList& spans, Work& work,
                           Translate translate);
  Place translate(BusAddr at, pcie::Direction direction, Time now, Work& work);
  Place walk_plain(BusAddr at, pcie::Direction direction, Time now, Work& work);

  // root_port_modelled.cc
  std::optional<TranslationFault> find_context(Work& work);
  bool is_plain() const;
  Found translate_modelled(BusAddr at, pcie::Direction direction, Time now, Work& work);
  Found translate_by_unit(BusAddr at, pcie::Direction direction, Time now, Work& work);
  Found walk(BusAddr at, pcie::Direction direction, Work& work);
  Found find_target(BusAddr at, const Found& found, Work& work) const;
  void watch_stale(BusAddr at, pcie::Direction direction, const Translation& used, Time now);
  IommuView view() const;

  Time charge(const pcie::Access& access, const pcie::TlpCount& tlps, const Work& work, Time now);
  std::optional<trace::Reason> request_page(BusAddr at, pcie::Direction direction, Time now);
  pcie::Outcome block(const TranslationFault& fault, const pcie::Access& access, std::uint64_t done,
                      Time now);
  pcie::Outcome refuse(const trace::Reason& reason, std::uint64_t done_bytes, Time now);
  void send_message(std::uint32_t vector, Time now, const pcie::MsixMessage* message);

  Parts parts_;
  HostCosts costs_;
  bool is_free_;  // nothing costs anything
  pcie::LinkLimits limits_;
  InterruptSink sink_;
  OnDemand on_demand_;
  DmaDomain* domain_ = nullptr;
  std::optional<ContextEntry> context_;  // what the unit remembers of it
  // The context was found and asks for nothing but a translation by the tables of `iommu`.
  bool plain_ = false;
  std::uint8_t next_tag_ = 0;  // of read requests, while recording
  Time upstream_busy_{};       // device to host: writes, read requests, interrupts
  Time downstream_busy_{};     // host to device: completions
  Time walker_busy_{};
};

}  // namespace softhca::host
