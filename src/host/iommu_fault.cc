#include "host/iommu_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace softhca::host {
namespace {

std::string_view vtd_text(VtdReason reason) {
  switch (reason) {
    case VtdReason::None:
      return "Software";
    case VtdReason::NoRootEntry:
      return "Present bit in root entry is clear";
    case VtdReason::NoContextEntry:
      return "Present bit in context entry is clear";
    case VtdReason::BadContextEntry:
      return "Invalid context entry";
    case VtdReason::BeyondWidth:
      return "Access beyond MGAW";
    case VtdReason::NoWrite:
      return "PTE Write access is not set";
    case VtdReason::NoRead:
      return "PTE Read access is not set";
    case VtdReason::BadTable:
      return "Next page table ptr is invalid";
  }
  return "Unknown";
}

}  // namespace

std::string fault_text(const FaultRecord& record) {
  const unsigned id = record.requester.value;
  return fmt::format(
      "DMAR: [DMA {}] Request device [{:02x}:{:02x}.{}] fault addr {:#x} [fault reason {:#04x}] {}",
      record.direction == pcie::Direction::Read ? "Read" : "Write", id >> 8, (id >> 3) & 0x1f,
      id & 7, record.page.value, static_cast<unsigned>(record.vtd), vtd_text(record.vtd));
}

std::vector<FaultRecord> FaultLog::records() const {
  std::vector<FaultRecord> out;
  const std::uint64_t kept = std::min<std::uint64_t>(total_, kCapacity);
  for (std::uint64_t i = total_ - kept; i < total_; ++i) out.push_back(ring_[i % kCapacity]);
  return out;
}

}  // namespace softhca::host
