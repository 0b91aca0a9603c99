// ConfigSpace: the part of a function's configuration registers that decides whether it may speak.
//
// With bus master clear the function issues no memory requests, and since MSI-X messages are memory
// writes, no interrupts. It is clear after reset; the driver sets it when it starts the device.
//
// Spec  PCI Express Base, 7.5.1.1.3 (Command register)
#pragma once
#include <cstdint>

namespace softhca::pcie {

class ConfigSpace {
 public:
  static constexpr std::uint16_t kMemorySpace = 1u << 1;
  static constexpr std::uint16_t kBusMaster = 1u << 2;
  static constexpr std::uint16_t kIntxDisable = 1u << 10;

  std::uint16_t command() const { return command_; }
  void write_command(std::uint16_t value) { command_ = value & kWritable; }

  bool bus_master() const { return (command_ & kBusMaster) != 0; }
  void set_bus_master(bool on) {
    write_command(static_cast<std::uint16_t>(on ? command_ | kBusMaster : command_ & ~kBusMaster));
  }

 private:
  static constexpr std::uint16_t kWritable = kMemorySpace | kBusMaster | kIntxDisable;
  std::uint16_t command_ = 0;
};

}  // namespace softhca::pcie
