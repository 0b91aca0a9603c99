// QpnBlock: the 4096 queue pair numbers that belong to this process, and its mailbox.
//
// The 24-bit QPNs of an interface are 4096 blocks of 4096. A block is allocated by binding a name
// that only this network namespace sees; so two processes on one host, whatever their user, never
// have the same QPN, and a block is free as soon as its process is gone. The name is also
// where others of this host deliver packets for these QPNs (local/mailbox.h).
//
// Block 0 (management QPNs) and the last one (multicast QPN) are never handed out.
//
// Threads  owned by the device's owner
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"
#include "os/host_mailbox.h"
#include "os/host_name.h"

namespace softhca::local {

// What the processes of a host divide among themselves: the QPNs of one interface, and one port.
struct Domain {
  std::uint32_t interface_index{};
  std::uint16_t port{};
  friend bool operator==(const Domain&, const Domain&) = default;
};

inline constexpr std::uint32_t kQpnBlocks = 4096;
inline constexpr std::uint32_t kQpnsPerBlock = 4096;
inline constexpr std::uint32_t kQpnBlockShift = 12;

constexpr std::uint32_t block_of(std::uint32_t qpn) { return qpn >> kQpnBlockShift; }
// False for the blocks of QPNs 0, 1 and 0xffffff, which belong to everybody.
constexpr bool can_be_owned(std::uint32_t block) { return block > 0 && block < kQpnBlocks - 1; }

// The name of a block's mailbox.
std::string mailbox_name(const Domain& domain, std::uint32_t block);
// A name that is held as long as the block is: os::NameWatch hears of its end, for every user.
std::string life_name(const Domain& domain, std::uint32_t block);

class QpnBlock {
 public:
  // Looks for a free block from a place that `seed` chooses.
  // FAILS WITH EADDRINUSE when all are taken.
  static Result<QpnBlock, os::SystemError> allocate(const Domain& domain, std::uint64_t seed);

  const Domain& domain() const { return domain_; }
  std::uint32_t number() const { return number_; }
  std::uint32_t first_qpn() const { return number_ << kQpnBlockShift; }

  os::HostMailbox& mailbox() { return mailbox_; }
  // In the child of a fork: the block is still the parent's.
  void abandon() {
    mailbox_.close();
    life_.release();
  }

 private:
  QpnBlock(const Domain& domain, std::uint32_t number, os::HostMailbox mailbox, os::HostName life)
      : domain_(domain), number_(number), mailbox_(std::move(mailbox)), life_(std::move(life)) {}
  Domain domain_;
  std::uint32_t number_;
  os::HostMailbox mailbox_;
  os::HostName life_;
};

}  // namespace softhca::local
