// DatagramArena: slots of memory that datagrams are received into, many with one system call.
//
// Everything is allocated when it is made; of large slots only what is used takes memory. Serves
// UDP sockets and datagram sockets of this host.
//
// Threads  owned by one
#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "os/ip_address.h"

namespace softhca::os {

struct Arrival {
  ConstBytes bytes;
  IpAddress source;              // UDP only
  std::uint16_t source_port{};   // UDP only
  std::uint8_t traffic_class{};  // UDP only
  std::size_t segment_bytes{};   // UDP only; not 0: `bytes` are datagrams of that size, the last
                                 // may be shorter
  bool truncated{};              // was longer than a slot
  std::uint32_t dropped{};       // UDP only: by this socket so far, modulo 2^32
  std::optional<std::uint32_t> uid;  // sender's, vouched for by the kernel; host sockets only
};

class DatagramArena {
 public:
  DatagramArena(std::size_t slots, std::size_t slot_bytes);
  ~DatagramArena();
  DatagramArena(const DatagramArena&) = delete;
  DatagramArena& operator=(const DatagramArena&) = delete;

  // Fills slots first, first + 1, ... with what the socket has, `most` at most and never more than
  // there are, and says how many. They keep their bytes until received into again.
  std::size_t receive(int fd, std::size_t first, std::size_t most);

  // What the last receive put into that slot.
  const Arrival& arrival(std::size_t slot) const;

  std::size_t slots() const { return slots_; }

 private:
  struct Slots;
  std::size_t slots_;
  std::unique_ptr<Slots> memory_;
};

}  // namespace softhca::os
