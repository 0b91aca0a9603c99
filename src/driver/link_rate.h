// LinkRate: an Ethernet interface's speed in the codes and words of InfiniBand.
//
// Spec  IBTA vol. 1, 14.2.5.6 (PortInfo: LinkWidthActive, LinkSpeedActive)
#pragma once
#include <cstdint>
#include <string>

namespace softhca::driver {

// Codes of width and speed that make up the speed of an interface.
struct LinkRate {
  std::uint64_t mbps;
  std::uint8_t width;   // 1: one lane, 16: two, 2: four
  std::uint16_t speed;  // 1: 2.5 Gb/s a lane, 2: 5, 8: 10, 32: 25, 64: 50, 128: 100, 256: 200
};

// The fastest that is not faster than the interface; the slowest where its speed is not known.
const LinkRate& link_rate(std::uint64_t mbps);

// "100 Gb/sec (4X EDR)", as the kernel's sysfs has it.
std::string link_rate_text(const LinkRate& rate);

}  // namespace softhca::driver
