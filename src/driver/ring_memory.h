// RingMemory: memory for a queue that driver and device share: pages of their own, mapped in the
// device's IOMMU domain for as long as it lives.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"

namespace softhca::driver {

// What a ring of so many bytes takes: whole pages.
constexpr std::uint64_t ring_pages(std::uint64_t bytes) {
  return (bytes + kPage4K - 1) / kPage4K * kPage4K;
}

class RingMemory {
 public:
  RingMemory() = default;
  // `release` undoes allocation and mapping.
  RingMemory(Bytes bytes, BusAddr bus, std::function<void()> release)
      : bytes_(bytes), bus_(bus), release_(std::move(release)) {}
  RingMemory(RingMemory&& other) noexcept { *this = std::move(other); }
  RingMemory& operator=(RingMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(bus_, other.bus_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~RingMemory() {
    if (release_) release_();
  }

  Bytes bytes() const { return bytes_; }  // as the CPU sees it
  BusAddr bus() const { return bus_; }    // as the device sees it

 private:
  Bytes bytes_;
  BusAddr bus_;
  std::function<void()> release_;
};

}  // namespace softhca::driver
