// News: an event of the connection manager as programs read it, translated from what it is inside.
//
// See also  man rdma_get_cm_event. Numbers and rooms are those of Linux's rdma_cm
#pragma once
#include <rdma/rdma_cma.h>

#include <optional>
#include <vector>

#include "cm/event.h"

namespace softhca::abi {

struct News {
  rdma_cm_event_type type{};
  int status{};  // negative: an errno; positive: a reject reason or SIDR status
  // Without the program's bytes, which are here once.
  rdma_conn_param connection{};
  std::uint32_t datagram_qpn{};
  std::uint32_t datagram_qkey{};
  std::vector<std::byte> private_bytes{};
};

// Nothing for a warning. `is_datagram`: of an id of datagrams.
std::optional<News> news_of(const cm::Event& event, bool is_datagram);

}  // namespace softhca::abi
