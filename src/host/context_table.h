// ContextTable: which translation domain a device belongs to, by its requester id.
//
// The root table has an entry for each bus, which points at a context table with an entry for each
// device and function of that bus. Both lie in frames; entries have 128 bits, as VT-d's:
//
//   root     bit 0 P; bits 63:12 context table
//   context  bit 0 P; bits 3:2 translation type; bits 63:12 root of the domain's tables;
//            bits 66:64 address width (2: 48 bits); bits 87:72 domain id
//
// The unit keeps what it read (RootPort): whoever changes an entry invalidates it there.
//
// Spec      Intel VT-d, 3.4 (requester id to domain), 9.1 and 9.3 (entries), 7.2.3 (reasons 1 to 3)
// Threads   owned by the device's owner
// See also  host/dma_domain.h, which attaches a device
#pragma once
#include <cstdint>

#include "base/result.h"
#include "host/iommu_fault.h"
#include "host/iommu_table.h"
#include "host/table_frames.h"
#include "trace/journal.h"

namespace softhca::host {

enum class TranslationType : std::uint8_t {
  SecondLevel = 0,         // requests are translated
  SecondLevelWithAts = 1,  // and the device may ask for translations and use them itself
  PassThrough = 2,         // the bus address is the physical one
};

struct ContextEntry {
  TranslationType type = TranslationType::SecondLevel;
  std::uint8_t width = 2;  // AW; 2 is the only one that has our four levels
  std::uint16_t domain = 0;
  FrameIndex second_level = 0;  // not read for PassThrough
  friend bool operator==(const ContextEntry&, const ContextEntry&) = default;
};

class ContextTable {
 public:
  // OWNS nothing; both outlive this. REQUIRES: a frame for the root is free.
  ContextTable(TableFrames& frames, trace::Tracer& tracer);
  ~ContextTable();
  ContextTable(const ContextTable&) = delete;
  ContextTable& operator=(const ContextTable&) = delete;

  // FAILS WITH AddressesExhausted: no frame left.
  Result<void, trace::Reason> set(pcie::RequesterId device, const ContextEntry& entry);
  void clear(pcie::RequesterId device);

  // What the unit reads: two entries at most. FAILS WITH NoRootEntry, NoContextEntry,
  // BadContextEntry (a width or a type that the unit does not have, bits that are reserved)
  Result<ContextEntry, TranslationFault> find(pcie::RequesterId device) const;

  FrameIndex root() const { return root_; }

 private:
  TableFrames& frames_;
  trace::Tracer& tracer_;
  FrameIndex root_;
};

}  // namespace softhca::host
