// FaultLog: what the IOMMU blocked lately, as its fault recording registers would keep it.
//
// Spec  Intel VT-d, 7.2.3 and 10.4.14; the text has the form that Linux prints
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/clock.h"
#include "host/iommu_table.h"
#include "pcie/port.h"

namespace softhca::host {

using pcie::RequesterId;

struct FaultRecord {
  Time at_time;
  BusAddr page;  // 4 KiB aligned, as hardware records it
  RequesterId requester;
  VtdReason vtd{};
  pcie::Direction direction{};
};

// "DMAR: [DMA Write] Request device [01:00.0] fault addr 0x7f5000 [fault reason 0x05] PTE Write
// access is not set"
std::string fault_text(const FaultRecord& record);

class FaultLog {
 public:
  static constexpr std::size_t kCapacity = 64;

  void add(const FaultRecord& record) { ring_[total_++ % kCapacity] = record; }

  // The newest kCapacity, oldest first.
  std::vector<FaultRecord> records() const;
  std::uint64_t total() const { return total_; }

 private:
  std::array<FaultRecord, kCapacity> ring_{};
  std::uint64_t total_ = 0;
};

}  // namespace softhca::host
