#include "trace/event.h"

namespace softhca::trace {

namespace {

constexpr std::array<EventInfo, kEventKindCount> all_events() {
  using enum EventKind;
  return {{
      {None, "none", "", {}},
      {Register, "register", "key", {"virtual", "bytes", "rights", "bus", "domain"}},
      {Deregister, "deregister", "key", {"virtual", "bytes", "", "", ""}},
      {Pin, "pin", "", {"virtual", "pages", "backend", "", ""}},
      {Unpin, "unpin", "", {"virtual", "pages", "backend", "", ""}},
      {IommuMap, "iommu_map", "", {"bus", "physical", "leaf_bytes", "leaves", "rights"}},
      {IommuUnmap, "iommu_unmap", "", {"bus", "bytes", "leaves", "", ""}},
      {IotlbHit, "iotlb_hit", "", {"bus", "physical", "leaf_bytes", "in_device", ""}},
      {IotlbMiss, "iotlb_miss", "", {"bus", "physical", "leaf_bytes", "levels_read", ""}},
      {IommuFault, "iommu_fault", "", {"bus", "bytes", "write", "vtd_reason", "requester"}},
      {DmaRead, "dma_read", "", {"bus", "bytes", "spans", "tlps", "ready_at_ps"}},
      {DmaWrite, "dma_write", "", {"bus", "bytes", "spans", "tlps", "ready_at_ps"}},
      {Tlp, "tlp", "request", {"kind", "bus", "bytes", "byte_count", "status"}},
      {Doorbell, "doorbell", "qpn", {"queue", "producer", "", "", ""}},
      {WqeFetch, "wqe_fetch", "qpn", {"queue", "index", "bus", "bytes", ""}},
      {KeyCheck, "key_check", "key", {"address", "bytes", "rights", "bus", "qpn"}},
      {KeyRefusal, "key_refusal", "key", {"address", "bytes", "rights", "reason", "qpn"}},
      {Cqe, "cqe", "cqn", {"qpn", "wqe", "status", "bytes", "bus"}},
      {Eqe, "eqe", "object", {"type", "", "", "", ""}},
      {Interrupt, "interrupt", "vector", {"", "", "", "", ""}},
      {PacketSent, "packet_sent", "qpn", {"opcode", "psn", "payload", "nth", "dest_qpn"}},
      {PacketReceived, "packet_received", "qpn", {"opcode", "psn", "payload", "", ""}},
      {PacketDropped, "packet_dropped", "qpn", {"opcode", "psn", "reason", "", ""}},
      {Retransmit, "retransmit", "qpn", {"packets", "", "", "", ""}},
      {Timeout, "timeout", "qpn", {"times", "", "", "", ""}},
      {QpState, "qp_state", "qpn", {"from", "to", "", "", ""}},
      {Refusal, "refusal", "object", {"reason", "address", "bytes", "low", "high"}},
      {CpuCopy, "cpu_copy", "qpn", {"bytes", "why", "", "", ""}},
      {MmuWalk, "mmu_walk", "pid", {"virtual", "physical", "leaf_bytes", "levels_read", "write"}},
      {TlbHit, "tlb_hit", "pid", {"virtual", "physical", "leaf_bytes", "", ""}},
      {TlbShootdown, "tlb_shootdown", "pid", {"virtual", "bytes", "entries", "", ""}},
      {PageFault, "page_fault", "pid", {"virtual", "error_code", "physical", "answer", ""}},
      {FrameMoved, "frame_moved", "pid", {"virtual", "from", "to", "why", ""}},
      {FrameKept, "frame_kept", "pid", {"virtual", "physical", "wanted", "pins", ""}},
      {FrameOrphaned, "frame_orphaned", "pid", {"virtual", "physical", "pins", "", ""}},
      {SwapOut, "swap_out", "pid", {"virtual", "physical", "slot", "", ""}},
      {SwapIn, "swap_in", "pid", {"virtual", "physical", "slot", "", ""}},
      {PageCopied, "page_copied", "pid", {"virtual", "from", "to", "why", ""}},
      {SystemCall, "system_call", "pid", {"call", "bytes", "ready_at_ps", "", ""}},
      {IotlbInvalidate, "iotlb_invalidate", "", {"bus", "bytes", "deferred", "open_for_ps", ""}},
      {StaleTranslation, "stale_translation", "", {"bus", "physical", "unmapped_at_ps", "", ""}},
      {PeerAccess, "peer_access", "endpoint", {"bus", "bytes", "write", "redirected", ""}},
      {ConfigWrite, "config_write", "requester", {"offset", "value", "", "", ""}},
      {DeviceMemory, "device_memory", "key", {"place", "bytes", "write", "", ""}},
      {PageRequest, "page_request", "", {"bus", "virtual", "bytes", "write", "reason"}},
      {RnrWait, "rnr_wait", "qpn", {"waited_ps", "", "", "", ""}},
      {Told, "told", "how", {"reason", "bytes", "bytes_about", "", ""}},
      {ToldText, "told_text", "piece", {"text", "text", "text", "text", "text"}},
      {FaultInjected, "fault_injected", "fault", {"line", "what", "qpn", "at", "opcode"}},
      {Direct, "direct", "qpn", {"opcode", "wqe", "address", "bytes", "key"}},
      {Placed, "placed", "qpn", {"wqe", "bytes"}},
  }};
}

}  // namespace

const std::array<EventInfo, kEventKindCount> kEvents = all_events();

}  // namespace softhca::trace
