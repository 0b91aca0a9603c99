#include "pcie/msix.h"

#include <utility>

#include "base/assert.h"

namespace softhca::pcie {

MsixTable::Entry& MsixTable::at(std::uint32_t vector) {
  ASSERT(vector < entries_.size());
  return entries_[vector];
}

std::optional<MsixMessage> MsixTable::set_masked(std::uint32_t vector, bool masked) {
  Entry& entry = at(vector);
  entry.masked = masked;
  return !masked && std::exchange(entry.pending, false) ? signal(vector) : std::nullopt;
}

std::optional<MsixMessage> MsixTable::signal(std::uint32_t vector) {
  Entry& entry = at(vector);
  if (!config_.msix_enabled()) return std::nullopt;
  if (entry.masked || config_.msix_all_masked()) {
    entry.pending = true;
    return std::nullopt;
  }
  return entry.message;
}

}  // namespace softhca::pcie
