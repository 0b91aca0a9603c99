// Multicast groups. The LID means nothing on RoCE, where the GID is the group's address.
#include <cstring>

#include "abi/entry.h"
#include "abi/ibverbs/qp.h"

namespace softhca::abi {
namespace {

wire::Gid group_of(const ibv_gid& verbs) {
  wire::Gid gid;
  std::memcpy(gid.bytes.data(), verbs.raw, sizeof verbs.raw);
  return gid;
}

}  // namespace

VERB("IBVERBS_1.1", int, ibv_attach_mcast, (ibv_qp * verbs, const ibv_gid* gid, std::uint16_t)) {
  return answer_errno([&] {
    Qp& qp = Qp::of(verbs);
    return qp.owner().command([&](driver::Engine& engine, Time) {
      return engine.attach_multicast(qp.pair(), group_of(*gid));
    });
  });
}

VERB("IBVERBS_1.1", int, ibv_detach_mcast, (ibv_qp * verbs, const ibv_gid* gid, std::uint16_t)) {
  return answer_errno([&] {
    Qp& qp = Qp::of(verbs);
    return qp.owner().take_off([&](driver::Engine& engine, Time) {
      return engine.detach_multicast(qp.pair(), group_of(*gid));
    });
  });
}

}  // namespace softhca::abi
