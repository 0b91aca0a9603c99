// DeviceMemory: memory on the NIC itself. Keys may point into it; no bus lies on the way.
//
// Threads     owned by the device
// Invariants  what is allocated overlaps nothing else that is, and begins as zeros
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "nic/limits.h"

namespace softhca::nic {

class DeviceMemory {
 public:
  // Where `bytes` lie from now on, at a multiple of `alignment`; nothing if there is no room.
  // REQUIRES: bytes > 0; alignment a power of two.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t alignment);
  // REQUIRES: what allocate() gave.
  void release(std::uint64_t at);

  // REQUIRES: within one allocation.
  void read(std::uint64_t at, Bytes to) const;
  void write(std::uint64_t at, ConstBytes from);

  std::uint64_t bytes_in_use() const { return in_use_; }

 private:
  bool is_allocated(std::uint64_t at, std::uint64_t bytes) const;

  std::vector<std::byte> store_;                  // empty until something is allocated
  std::map<std::uint64_t, std::uint64_t> taken_;  // where -> bytes
  std::uint64_t in_use_ = 0;
};

}  // namespace softhca::nic
