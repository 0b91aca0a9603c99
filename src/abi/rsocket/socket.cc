#include "abi/rsocket/socket.h"

#include <algorithm>
#include <cstring>

namespace softhca::abi {

socklen_t bytes_of_address(const sockaddr& address) {
  return address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool is_foreign(const sockaddr& address, socklen_t bytes) {
  return bytes < sizeof(sockaddr_in) ||
         (address.sa_family != AF_INET && address.sa_family != AF_INET6) ||
         bytes < bytes_of_address(address);
}

std::size_t total_bytes(Parts parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

template <class Move>
void PartCursor::advance(std::size_t bytes, Move&& move) {
  for (std::size_t done = 0; done < bytes;) {
    const iovec& part = parts_[part_];
    const std::size_t now = std::min(bytes - done, part.iov_len - offset_);
    move(static_cast<std::byte*>(part.iov_base) + offset_, done, now);
    done += now;
    offset_ += now;
    if (offset_ < part.iov_len) continue;
    ++part_;
    offset_ = 0;
  }
}

void PartCursor::copy_out(std::span<std::byte> to) {
  advance(to.size(), [&](const std::byte* part, std::size_t done, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to.data() + done, part, bytes);
  });
}

void PartCursor::copy_in(std::span<const std::byte> from) {
  advance(from.size(), [&](std::byte* part, std::size_t done, std::size_t bytes) {
    if (bytes > 0) std::memcpy(part, from.data() + done, bytes);
  });
}

}  // namespace softhca::abi
