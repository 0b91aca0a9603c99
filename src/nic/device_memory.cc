#include "nic/device_memory.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace softhca::nic {

// The first gap that is large enough.
std::optional<std::uint64_t> DeviceMemory::allocate(std::uint64_t bytes, std::uint64_t alignment) {
  ASSERT(bytes != 0 && alignment != 0 && (alignment & (alignment - 1)) == 0);
  if (bytes > kDeviceMemoryBytes || alignment > kDeviceMemoryBytes) return std::nullopt;
  const auto aligned = [&](std::uint64_t at) { return (at + alignment - 1) & ~(alignment - 1); };
  std::uint64_t at = 0;
  for (const auto& [start, length] : taken_) {
    if (at <= start && bytes <= start - at) break;
    at = aligned(start + length);
  }
  if (at > kDeviceMemoryBytes || bytes > kDeviceMemoryBytes - at) return std::nullopt;
  if (store_.empty()) store_.resize(kDeviceMemoryBytes);
  std::fill_n(store_.begin() + static_cast<std::ptrdiff_t>(at), bytes, std::byte{0});
  taken_.emplace(at, bytes);
  in_use_ += bytes;
  return at;
}

void DeviceMemory::release(std::uint64_t at) {
  const auto found = taken_.find(at);
  ASSERT(found != taken_.end());
  in_use_ -= found->second;
  taken_.erase(found);
}

bool DeviceMemory::is_allocated(std::uint64_t at, std::uint64_t bytes) const {
  const auto above = taken_.upper_bound(at);
  if (above == taken_.begin()) return false;
  const auto& [start, length] = *std::prev(above);
  return at - start <= length && bytes <= length - (at - start);
}

void DeviceMemory::read(std::uint64_t at, Bytes to) const {
  ASSERT(is_allocated(at, to.size()));
  std::memcpy(to.data(), store_.data() + at, to.size());
}

void DeviceMemory::write(std::uint64_t at, ConstBytes from) {
  ASSERT(is_allocated(at, from.size()));
  std::memcpy(store_.data() + at, from.data(), from.size());
}

}  // namespace softhca::nic
