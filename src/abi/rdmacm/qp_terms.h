// What a queue pair is told for a conversation, as rdma_init_qp_attr answers it.
//
// See also  Linux drivers/infiniband/core/cm.c, ib_cm_init_qp_attr (which attributes, which values)
#pragma once
#include <rdma/rdma_cma.h>

#include <optional>

#include "abi/errno_of.h"
#include "cm/terms.h"

namespace softhca::abi {

struct QpSide {
  ibv_qp_type type{};
  std::uint8_t port = 1;
  std::uint8_t gid_index{};                   // of this side's address
  std::optional<std::uint8_t> ack_timeout{};  // that the program asks for
};

// Fills in what belongs to attributes.qp_state, and gives the mask. `terms` is null where there is
// no conversation yet. FAILS WITH EINVAL where that state needs one, or is none of INIT, RTR, RTS
Outcome<int> describe_state(ibv_qp_attr& attributes, const QpSide& side, const cm::Terms* terms);

// The way to a peer, as address handles have it.
ibv_ah_attr address_of_path(const cm::Path& path, const QpSide& side);

}  // namespace softhca::abi
