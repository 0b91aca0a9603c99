// The queue pair of an id: made by rdma_create_qp, and led through its states as the conversation
// goes on.
#pragma once
#include "abi/rdmacm/id.h"

namespace softhca::abi {

// All three: nothing happens to an id without a queue pair. FAILS WITH the errno of ibv_modify_qp
// To RTR and RTS by `terms`.
Outcome<void> make_ready(Id& id, const cm::Terms& terms);
// To ERR, which flushes what is posted.
Outcome<void> stop(Id& id);

// FAILS WITH EINVAL, and the errno of the verbs that it takes
Outcome<void> create_qp(Id& id, ibv_qp_init_attr_ex& wanted);
Outcome<void> create_qp(Id& id, ibv_pd* domain, ibv_qp_init_attr& wanted);

// Nothing happens where there is none.
void destroy_qp(Id& id);
void destroy_srq(Id& id);

}  // namespace softhca::abi
