// ConfigSpace: the configuration registers of a function: what it is, whether it may speak, where
// it is found.
//
// 256 bytes, as 32-bit registers: a type 0 header with three memory BARs of 64 bits, the PCI
// Express capability (payload and read request sizes) and, if the function has vectors, MSI-X.
//
//   bus master    with the bit clear the function issues no memory requests, and since MSI-X
//                 messages are memory writes, no interrupts. Clear after reset; drivers set it.
//   memory space  with the bit clear the function claims none of its BARs
//   BAR           all ones written, the size can be read back
//
// Spec      PCI Express Base, 7.5.1.1.3 (Command), 7.5.1.2.1 (BAR), 7.5.3 (capability), 7.7.2
// (MSI-X) See also  pcie/msix.h, pcie/fabric.h
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "base/address.h"
#include "base/clock.h"
#include "base/range.h"
#include "pcie/port.h"
#include "pcie/tlp.h"
#include "trace/journal.h"

namespace softhca::pcie {

inline constexpr std::size_t kBars = 3;

// Where registers are: bytes from the start.
namespace config {
inline constexpr std::uint16_t kIdentity = 0x00;  // device << 16 | vendor
inline constexpr std::uint16_t kCommand = 0x04;
inline constexpr std::uint16_t kClass = 0x08;
inline constexpr std::uint16_t kBar0 = 0x10;  // two registers for each of kBars
inline constexpr std::uint16_t kCapabilities = 0x34;
inline constexpr std::uint16_t kExpress = 0x40;
inline constexpr std::uint16_t kDeviceControl = kExpress + 8;
inline constexpr std::uint16_t kMsix = 0xb0;  // upper half: message control
}  // namespace config

struct BarShape {
  std::uint64_t bytes = 0;  // 0: none; a power of two, at least 4 KiB (smaller ones share pages)
  bool prefetchable = false;
};

struct FunctionShape {
  std::uint16_t vendor = 0x5348;  // "SH"; assigned to nobody
  std::uint16_t device = 1;
  std::uint32_t class_code = 0x020000;  // Ethernet controller
  std::array<BarShape, kBars> bars{};
  std::uint16_t vectors = 0;  // of MSI-X, at most 2048; 0: no such capability
  std::uint32_t largest_payload = 512;
};

class ConfigSpace {
 public:
  static constexpr std::uint16_t kMemorySpace = 1u << 1;
  static constexpr std::uint16_t kBusMaster = 1u << 2;
  static constexpr std::uint16_t kIntxDisable = 1u << 10;

  // Writes show in the trace of `tracer`, which outlives this; null: nowhere.
  explicit ConfigSpace(const FunctionShape& shape = {}, RequesterId id = {},
                       trace::Tracer* tracer = nullptr);

  // REQUIRES: a multiple of 4 below 256.
  std::uint32_t read(std::uint16_t offset) const { return registers_[offset / 4u]; }
  // Keeps the bits that can be written.
  void write(std::uint16_t offset, std::uint32_t value, Time now);

  std::uint16_t command() const { return static_cast<std::uint16_t>(registers_[1]); }
  void write_command(std::uint16_t value, Time now = {}) { write(config::kCommand, value, now); }
  bool bus_master() const { return (registers_[1] & kBusMaster) != 0; }
  void set_bus_master(bool on, Time now = {}) { set_command_bit(kBusMaster, on, now); }
  bool memory_space() const { return (registers_[1] & kMemorySpace) != 0; }
  void set_memory_space(bool on, Time now = {}) { set_command_bit(kMemorySpace, on, now); }

  // REQUIRES: the BAR exists; aligned to its size.
  void place_bar(std::size_t bar, PhysAddr at, Time now);
  // What the function claims now; nothing without the BAR or with memory space off.
  std::optional<Range<PhysSpace>> bar(std::size_t bar) const;

  // As far as this function goes; the smallest payload along a path counts.
  LinkLimits limits(std::uint32_t rcb = 64) const;
  // REQUIRES: powers of two from 128 to 4096; payload within FunctionShape::largest_payload.
  void set_sizes(std::uint32_t payload, std::uint32_t read_request, Time now);

  bool msix_enabled() const { return (read(config::kMsix) >> 31 & 1) != 0; }
  bool msix_all_masked() const { return (read(config::kMsix) >> 30 & 1) != 0; }
  // REQUIRES: FunctionShape::vectors > 0.
  void enable_msix(bool on, bool all_masked, Time now);

  RequesterId id() const { return id_; }

 private:
  void set_command_bit(std::uint16_t bit, bool on, Time now);
  void add_capabilities(const FunctionShape& shape);

  static constexpr std::size_t kRegisters = 64;
  std::array<std::uint32_t, kRegisters> registers_{};
  std::array<std::uint32_t, kRegisters> writable_{};
  std::array<std::uint64_t, kBars> bar_bytes_{};
  RequesterId id_;
  trace::Tracer* tracer_;
};

}  // namespace softhca::pcie
