// Memory that the peer reaches by offsets: riomap, riounmap.
#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "abi/rsocket/stream_socket.h"

namespace softhca::abi {

Outcome<off_t> StreamSocket::map(void* memory, std::size_t bytes, int protection, off_t offset) {
  const Lock lock(mutex_);
  if (!stream_ || !memory_domain_ || (protection & ~PROT_WRITE) != 0 || bytes > UINT32_MAX)
    return Errno{EINVAL};
  Mapped mapped;
  unsigned access = IBV_ACCESS_LOCAL_WRITE;
  if (protection != PROT_NONE) {
    if (!stream_->is_open()) return Errno{ENOTCONN};
    const auto is_taken = [&](std::uint32_t entry) {
      return std::ranges::any_of(mapped_, [&](const Mapped& m) { return m.entry == entry; });
    };
    std::uint32_t entry = 0;
    while (is_taken(entry)) ++entry;
    if (entry >= stream_->peer_mappings()) return Errno{ENOMEM};
    mapped.entry = entry;
    access |= IBV_ACCESS_REMOTE_WRITE;
  }
  mapped.region = ::ibv_reg_mr(memory_domain_.get(), memory, bytes, access);
  if (mapped.region == nullptr) return Errno{errno};
  mapped_.push_back(mapped);
  if (offset == -1) offset = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(memory));
  if (mapped.entry)
    stream_->map(*mapped.entry,
                 {.offset = static_cast<std::uint64_t>(offset),
                  .buffer = {reinterpret_cast<std::uintptr_t>(memory), mapped.region->rkey,
                             static_cast<std::uint32_t>(bytes)}});
  return offset;
}

Outcome<void> StreamSocket::unmap(const void* memory, std::size_t bytes) {
  const Lock lock(mutex_);
  const auto found = std::ranges::find_if(mapped_, [&](const Mapped& m) {
    return m.region->addr == memory && m.region->length == bytes;
  });
  if (found == mapped_.end()) return Errno{EINVAL};
  if (const int error = ::ibv_dereg_mr(found->region); error != 0) return Errno{error};
  mapped_.erase(found);
  return {};
}

}  // namespace softhca::abi
