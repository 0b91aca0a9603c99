// MsixTable: a function's interrupt vectors: where each message is written, and which wait.
//
// An interrupt is a memory write of 4 bytes to an address that the host chose. A masked vector
// keeps it as a pending bit until it is unmasked. Real functions keep the table in one of their
// BARs; here it is the object itself.
//
// Spec  PCI Express Base, 7.7.2 (MSI-X), 6.1.4.6 (pending bits)
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "pcie/config_space.h"

namespace softhca::pcie {

struct MsixMessage {
  std::uint64_t address = 0;
  std::uint32_t payload = 0;
  friend bool operator==(const MsixMessage&, const MsixMessage&) = default;
};

class MsixTable {
 public:
  // All vectors are masked, as after reset. `config` outlives this.
  MsixTable(const ConfigSpace& config, std::uint32_t vectors)
      : config_(config), entries_(vectors) {}

  std::uint32_t vectors() const { return static_cast<std::uint32_t>(entries_.size()); }
  void set(std::uint32_t vector, const MsixMessage& message) { at(vector).message = message; }

  // What a vector that waited sends when it is unmasked.
  std::optional<MsixMessage> set_masked(std::uint32_t vector, bool masked);

  // The function has something to say: the message that leaves, or nothing. Masked: it waits.
  std::optional<MsixMessage> signal(std::uint32_t vector);

  bool masked(std::uint32_t vector) const { return entries_[vector].masked; }
  bool pending(std::uint32_t vector) const { return entries_[vector].pending; }

 private:
  struct Entry {
    MsixMessage message;
    bool masked = true;
    bool pending = false;
  };
  Entry& at(std::uint32_t vector);

  const ConfigSpace& config_;
  std::vector<Entry> entries_;
};

}  // namespace softhca::pcie
