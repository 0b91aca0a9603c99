// RootPort: where the bus meets the host. Every access of the device to memory passes here.
//
// resolve  bus master on? -> each page through the IOTLB or the IOMMU's tables -> spans of frames.
//          This *is* the DMA: it is counted, cut into TLPs and charged with its time here, whether
//          its bytes are then moved by read() or write(), or handed to sendmsg.
// read, write  move bytes between resolved spans and a buffer. They add no time.
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

#include "base/clock.h"
#include "base/range.h"
#include "host/iommu.h"
#include "host/iotlb.h"
#include "host/ram.h"
#include "pcie/config_space.h"
#include "pcie/port.h"
#include "pcie/tlp.h"
#include "trace/journal.h"

namespace softhca::host {

struct HostCosts {
  Duration read_latency{};       // request out, first data back
  Duration write_latency{};      // posted write out, visible in memory; also an interrupt's
  Duration iotlb_miss{};         // one walk of the tables
  Duration tlp_overhead{};       // link time of a TLP's header and framing
  std::int64_t ps_per_byte = 0;  // link time of a byte of payload, each direction
};

class RootPort final : public pcie::DmaPort, public pcie::InterruptTarget {
 public:
  using InterruptSink = std::function<void(std::uint32_t vector, Time arrives_at)>;

  // What it stands between; all outlive it.
  struct Parts {
    Ram& ram;
    Iommu& iommu;
    Iotlb& iotlb;
    const pcie::ConfigSpace& config;  // the device's
    trace::Tracer& tracer;
  };
  explicit RootPort(Parts parts, const HostCosts& costs = {}, const pcie::LinkLimits& limits = {});

  // DmaPort. After a fault the spans of the part that resolved are in the list: not to be used.
  // REQUIRES: the list has room (an access of 63 pages always fits an empty one).
  pcie::Outcome resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) override;
  pcie::Outcome read(std::span<const pcie::Span> from, Bytes to, Time now) override;
  pcie::Outcome write(std::span<const pcie::Span> to, ConstBytes from, Time now) override;

  // InterruptTarget. Without bus master no message leaves the device: refused in the trace.
  void interrupt(std::uint32_t vector, Time now) override;
  void set_interrupt_sink(InterruptSink sink) { sink_ = std::move(sink); }

  // After Iommu::unmap: the device must not reach the range by a remembered translation.
  void invalidate(Range<BusSpace> range) { parts_.iotlb.invalidate(range); }

 private:
  Result<Translation, TranslationFault> translate(BusAddr at, pcie::Direction direction, Time now,
                                                  std::uint64_t& walks);
  Time charge(const pcie::Access& access, const pcie::TlpCount& tlps, std::uint64_t walks,
              Time now);
  pcie::Outcome refuse(const trace::Reason& reason, std::uint64_t done_bytes, Time now);
  void emit_tlps(const pcie::Access& access, Time now);

  Parts parts_;
  HostCosts costs_;
  pcie::LinkLimits limits_;
  InterruptSink sink_;
  Time upstream_busy_{};    // device to host: writes, read requests, interrupts
  Time downstream_busy_{};  // host to device: completions
  Time walker_busy_{};
};

}  // namespace softhca::host
