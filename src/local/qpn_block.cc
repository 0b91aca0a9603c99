#include "local/qpn_block.h"

#include <cerrno>

#include "base/prng.h"

namespace softhca::local {

std::string mailbox_name(const Domain& domain, std::uint32_t block) {
  return "softhca/1/qpn/" + std::to_string(domain.port) + "/" +
         std::to_string(domain.interface_index) + "/" + std::to_string(block);
}

std::string life_name(const Domain& domain, std::uint32_t block) {
  return mailbox_name(domain, block) + "/life";
}

Result<QpnBlock, os::SystemError> QpnBlock::allocate(const Domain& domain, std::uint64_t seed) {
  constexpr std::uint32_t kOwned = kQpnBlocks - 2;  // all but the first and the last
  const auto start = static_cast<std::uint32_t>(Prng(seed).below(kOwned));
  for (std::uint32_t i = 0; i < kOwned; ++i) {
    const std::uint32_t block = 1 + (start + i) % kOwned;
    auto mailbox = os::HostMailbox::open(mailbox_name(domain, block));
    if (!mailbox && mailbox.error().number != EADDRINUSE) return mailbox.error();
    if (!mailbox) continue;
    auto life = os::HostName::take(life_name(domain, block));
    if (life) return QpnBlock(domain, block, std::move(*mailbox), std::move(*life));
  }
  return os::SystemError{EADDRINUSE, "bind"};
}

}  // namespace softhca::local
