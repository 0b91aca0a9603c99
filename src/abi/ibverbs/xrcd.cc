#include "abi/ibverbs/xrcd.h"

#include <fcntl.h>

#include "abi/entry.h"
#include "driver/engine_parts.h"
#include "os/owned_fd.h"

namespace softhca::abi {

Outcome<Xrcd*> Xrcd::open(Context& owner, const ibv_xrcd_init_attr& wanted) {
  constexpr std::uint32_t kAll = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if ((wanted.comp_mask & ~kAll) != 0) return Errno{EOPNOTSUPP};
  if (wanted.comp_mask != kAll || (wanted.oflags & ~(O_CREAT | O_EXCL)) != 0) return Errno{EINVAL};
  std::optional<driver::FileIdentity> file;
  if (wanted.fd != -1) {
    const auto identity = os::identity_of(wanted.fd);
    if (!identity) return Errno{identity.error().number};
    file = driver::FileIdentity{identity->device, identity->inode};
  }
  const driver::Engine::XrcdOpening how{.create = (wanted.oflags & O_CREAT) != 0,
                                        .exclusive = (wanted.oflags & O_EXCL) != 0};
  std::unique_ptr<Xrcd> xrcd(new Xrcd(owner));
  const auto number =
      owner.command([&](driver::Engine& engine, Time) { return engine.open_xrcd(file, how); });
  if (!number) return number.error();
  xrcd->number_ = *number;
  owner.adopt(*xrcd);
  return xrcd.release();
}

void Xrcd::abandon(driver::Engine& engine, Time) {
  [[maybe_unused]] const auto gone = engine.close_xrcd(number_);
}

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attributes) noexcept {
  return answer_pointer([&]() -> Outcome<ibv_xrcd*> {
    const auto xrcd = Xrcd::open(Context::of(context), *attributes);
    if (!xrcd) return xrcd.error();
    return *xrcd;
  });
}

int close_xrcd(ibv_xrcd* verbs) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    Xrcd& xrcd = Xrcd::of(verbs);
    if (const auto unused =
            xrcd.owner().check_unused(xrcd.dependants.load(), "closing an XRC domain");
        !unused)
      return unused;
    const auto gone = xrcd.owner().take_off(
        [&](driver::Engine& engine, Time) { return engine.close_xrcd(xrcd.number()); });
    if (!gone) return gone;
    xrcd.owner().release(xrcd);
    delete &xrcd;
    return {};
  });
}

}  // namespace softhca::abi
