// PortTable: in which order the kernel keeps the sockets that share one port.
//
// The kernel appends a socket when it is bound; when one is closed, the last one moves into its
// place. Sockets come and go unseen (kill -9), so a place may be unknown for a while; it is never
// wrong. Records lie in memory that all members share; they are changed under a lock (PortGroup).
//
// Invariants  a known place is the kernel's, provided that `settle` saw the kernel's own list
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "os/udp_socket.h"

namespace softhca::local {

inline constexpr std::uint32_t kMaxPortMembers = 512;
inline constexpr std::uint32_t kNoBlock = 0;
inline constexpr std::uint32_t kUnknownPlace = 0xffff'ffff;

struct PortMember {
  std::uint64_t inode{};           // the socket
  std::uint32_t block = kNoBlock;  // whose it is; kNoBlock: not said
  std::uint32_t place = kUnknownPlace;
  friend bool operator==(const PortMember&, const PortMember&) = default;
};

struct PortRecord {
  std::uint32_t magic{};
  std::uint32_t changing{};  // not 0: its writer died half-way, nothing in it holds
  std::uint32_t count{};
  std::uint32_t unused{};
  std::array<PortMember, kMaxPortMembers> members{};
};

// What the members become when the kernel lists exactly the sockets `live`: the dead are dropped,
// strangers are added without a block, and places are kept, moved, found out or forgotten.
std::vector<PortMember> settle(std::span<const PortMember> members,
                               std::span<const std::uint64_t> live);

// Adds a socket that was bound when the group had exactly these members.
void append(std::vector<PortMember>& members, std::uint64_t inode, std::uint32_t block);

// For all members whose block is known. A member without a place is given one of those that nobody
// is known to have; `guess` says which: one in there forwards what is not its own, unless it is
// stopped, so the next attempt guesses differently.
std::vector<os::SteeringRule> steering_rules(std::span<const PortMember> members,
                                             std::uint32_t guess = 0);

}  // namespace softhca::local
