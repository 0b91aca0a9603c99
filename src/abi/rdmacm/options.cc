// Options of an id.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "abi/entry.h"
#include "abi/rdmacm/id.h"
#include "base/bytes.h"
#include "wire/time_code.h"

namespace softhca::abi {
namespace {

// The option's value, if that is what its length says. FAILS WITH EINVAL
template <class T>
Outcome<T> value_of(const void* value, std::size_t length) {
  if (value == nullptr || length != sizeof(T)) return Errno{EINVAL};
  T read;
  std::memcpy(&read, value, sizeof read);
  return read;
}

Outcome<void> set_of_id(Id& id, int name, const void* value, std::size_t length) {
  switch (name) {
    case RDMA_OPTION_ID_TOS: {
      const auto wanted = value_of<std::uint8_t>(value, length);
      if (!wanted) return wanted.error();
      id.type_of_service = id.path.traffic_class = *wanted;
      return {};
    }
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY: {
      const auto wanted = value_of<int>(value, length);
      if (!wanted) return wanted.error();
      if (id.stage != Stage::Idle) return Errno{EINVAL};
      (name == RDMA_OPTION_ID_REUSEADDR ? id.reuses_address : id.only_ipv6) = *wanted != 0;
      return {};
    }
    case RDMA_OPTION_ID_ACK_TIMEOUT: {
      const auto wanted = value_of<std::uint8_t>(value, length);
      if (!wanted) return wanted.error();
      const bool waits = id.qp_type == IBV_QPT_RC || id.qp_type == IBV_QPT_XRC_SEND;
      if (!waits || *wanted > wire::kMaxTimeCode) return Errno{EINVAL};
      id.ack_timeout = id.path.ack_timeout = *wanted;
      return {};
    }
    default:
      return Errno{ENOSYS};
  }
}

// The way that the program has found by itself: of several, the one that is for data both ways.
Outcome<void> set_path(Id& id, const void* value, std::size_t length) {
  constexpr std::uint32_t kWanted =
      IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  if (value == nullptr || length == 0 || length % sizeof(ibv_path_data) != 0) return Errno{EINVAL};
  const std::span paths(static_cast<const ibv_path_data*>(value), length / sizeof(ibv_path_data));
  const auto found = std::ranges::find_if(
      paths, [](const ibv_path_data& one) { return (one.flags & kWanted) == kWanted; });
  if (found == paths.end()) return Errno{EINVAL};
  const std::scoped_lock held(id.registry.lock);
  if (id.stage != Stage::Resolved) return Errno{EINVAL};
  const ibv_path_record& record = found->path;
  id.path.flow_label = byte_swapped(record.flowlabel_hoplimit) >> 8 & 0xfffff;
  id.path.traffic_class = record.tclass;
  id.path.service_level = static_cast<std::uint8_t>(byte_swapped(record.qosclass_sl) & 0xf);
  id.show_path();
  id.stage = Stage::Routed;
  id.post({.type = RDMA_CM_EVENT_ROUTE_RESOLVED});
  return {};
}

}  // namespace

VERB("RDMACM_1.0", int, rdma_set_option,
     (rdma_cm_id * verbs, int level, int name, void* value, std::size_t length)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(verbs);
    if (!known) return known.error();
    const bool is_path = level == RDMA_OPTION_IB && name == RDMA_OPTION_IB_PATH;
    if (level != RDMA_OPTION_ID && !is_path) return Errno{ENOSYS};
    const auto set =
        is_path ? set_path(**known, value, length) : set_of_id(**known, name, value, length);
    if (!set) return set.error();
    return 0;
  });
}

}  // namespace softhca::abi
