// Layout: structures that libibverbs shares with programs, as large as the newest release has them.
//
// A program compiled against any rdma-core from 39 to 64 finds its members where it expects them:
// verbs_context grew at its front, ibv_qp_ex and ibv_port_attr at their ends. Members that the
// header we compile with does not know yet are declared here.
//
// Spec  x86-64 sizes and offsets measured from the headers of rdma-core 39 ... 64
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace softhca::abi {

inline constexpr std::size_t kVerbsContextBytes = 696;
inline constexpr std::size_t kQpExBytes = 360;

// libmlx5, libmlx4 and libefa read a pointer just behind any ibv_device, and take it for one of
// theirs unless it is theirs: it has to be zero.
struct DeviceLayout {
  ibv_device verbs{};
  std::byte behind[64]{};
};
static_assert(sizeof(ibv_device) == 664 && offsetof(DeviceLayout, behind) == 664);

struct ContextLayout {
  // Slots of later headers. NULL reads as "not offered".
  void* newer[(kVerbsContextBytes - sizeof(verbs_context)) / sizeof(void*)]{};
  verbs_context known{};

  ibv_context& context() { return known.context; }
  static ContextLayout& of(ibv_context& context);
};
static_assert(sizeof(ContextLayout) == kVerbsContextBytes);
static_assert(sizeof(ibv_context) == 328 && offsetof(ibv_context, abi_compat) == 320);
static_assert(offsetof(ibv_context, ops) == 8 && sizeof(ibv_context_ops) == 256);
static_assert(offsetof(ibv_context, cmd_fd) == 264 && offsetof(ibv_context, async_fd) == 268);
static_assert(offsetof(ContextLayout, known.context) == kVerbsContextBytes - 328);
static_assert(offsetof(ContextLayout, known.sz) == offsetof(ContextLayout, known.context) - 8);
static_assert(offsetof(ContextLayout, known.query_port) ==
              offsetof(ContextLayout, known.context) - 320);

inline ContextLayout& ContextLayout::of(ibv_context& context) {
  auto* const bytes = reinterpret_cast<std::byte*>(&context);
  return *reinterpret_cast<ContextLayout*>(bytes - offsetof(ContextLayout, known.context));
}

struct QpLayout {
  ibv_qp_ex known{};
  void* newer[(kQpExBytes - sizeof(ibv_qp_ex)) / sizeof(void*)]{};
};
static_assert(sizeof(QpLayout) == kQpExBytes && sizeof(ibv_qp) == 160);
static_assert(offsetof(ibv_qp_ex, wr_start) == 320 && offsetof(ibv_qp_ex, wr_abort) == 336);
inline constexpr std::size_t kQpExKnownTo39 = 344;  // wr_atomic_write and wr_flush follow

static_assert(sizeof(ibv_cq_ex) == 288 && offsetof(ibv_cq_ex, start_poll) == 144);
static_assert(offsetof(ibv_cq_ex, read_completion_wallclock_ns) == 280 && sizeof(ibv_cq) == 128);

// ibv_port_attr: 48 bytes behind the symbol ibv_query_port, 52 in rdma-core 24 ... 44, 56 since.
inline constexpr std::size_t kCompatPortBytes = 48;
struct PortLayout {
  std::byte known[52]{};
  std::uint32_t active_speed_ex{};
};
static_assert(sizeof(PortLayout) == 56);
static_assert(offsetof(ibv_port_attr, link_layer) == 46 && offsetof(ibv_port_attr, flags) == 47);
static_assert(sizeof(ibv_port_attr) == 52 || sizeof(ibv_port_attr) == 56);

static_assert(sizeof(ibv_wc) == 48 && sizeof(ibv_send_wr) == 128 && sizeof(ibv_recv_wr) == 32);
static_assert(sizeof(ibv_device_attr) == 232 && sizeof(ibv_device_attr_ex) == 400);
static_assert(sizeof(ibv_qp_attr) == 144 && sizeof(ibv_qp_init_attr) == 64);
static_assert(sizeof(ibv_qp_init_attr_ex) == 136 && sizeof(ibv_cq_init_attr_ex) == 56);
static_assert(sizeof(ibv_srq) == 128 && sizeof(ibv_xrcd) == 8 && sizeof(ibv_srq_init_attr) == 24);
static_assert(sizeof(ibv_srq_init_attr_ex) == 64 && sizeof(ibv_qp_open_attr) == 32);
static_assert(sizeof(ibv_gid_entry) == 32 && sizeof(ibv_mr) == 48 && sizeof(ibv_pd) == 16);

}  // namespace softhca::abi
