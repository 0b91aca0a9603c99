// Queries: what the device says about itself. Every maximum is one that can be reached, and one
// more fails.
#include "abi/ibverbs/queries.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "abi/entry.h"
#include "abi/gid.h"
#include "abi/ibverbs/context.h"
#include "abi/ibverbs/wq.h"
#include "abi/qp_attributes.h"
#include "base/bytes.h"
#include "driver/link_rate.h"
#include "os/environment.h"

namespace softhca::abi {
namespace {

using driver::Feature;

// An OUI in the range that anybody may use locally (second bit of the first octet), so that it
// names no vendor whose devices programs have special rules for.
constexpr std::uint32_t kVendorId = 0x0250ca;
// A part that no program knows. SOFTHCA_PART_ID names one that a program has rules for.
constexpr std::uint32_t kPartId = 1;
// Pages of 4 KiB and every larger power of two.
constexpr std::uint64_t kPageSizes = ~(kPage4K - 1);
// All of a process's addresses on x86-64 (47 bits).
constexpr std::uint64_t kMaxRegionBytes = std::uint64_t{1} << 47;
// 4.096 us times 2^15, 134 ms: how long a peer that is not running may take to be scheduled.
constexpr std::uint8_t kAckDelay = 15;

// IB_UVERBS_DEVICE_ATOMIC_WRITE, which this header does not know.
constexpr std::uint64_t kAtomicWriteFlag = std::uint64_t{1} << 40;

std::uint32_t part_id() {
  const auto chosen = os::env_number("SOFTHCA_PART_ID");
  return static_cast<std::uint32_t>(chosen.value_or(kPartId));
}

ibv_device_attr attributes_of(ibv_context* context) {
  const driver::DeviceDescription& device = Device::of(context->device).description();
  const driver::Profile& profile = Context::of(context).device().profile();
  ibv_device_attr attr{};
  static_assert(sizeof SOFTHCA_VERSION <= sizeof attr.fw_ver);
  std::memcpy(attr.fw_ver, SOFTHCA_VERSION, sizeof SOFTHCA_VERSION);
  attr.node_guid = attr.sys_image_guid = byte_swapped(device.guid);
  attr.max_mr_size = kMaxRegionBytes;
  attr.page_size_cap = kPageSizes;
  attr.vendor_id = kVendorId;
  attr.vendor_part_id = part_id();
  attr.max_qp = nic::kMaxQps;
  attr.max_qp_wr = nic::kMaxQueueEntries;
  attr.device_cap_flags = IBV_DEVICE_MANAGED_FLOW_STEERING | IBV_DEVICE_RC_RNR_NAK_GEN |
                          IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID |
                          IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW |
                          IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  if (!profile.has(Feature::RawPackets))
    attr.device_cap_flags &= ~unsigned{IBV_DEVICE_MANAGED_FLOW_STEERING};
  if (!profile.has(Feature::Xrc)) attr.device_cap_flags &= ~unsigned{IBV_DEVICE_XRC};
  attr.max_sge = attr.max_sge_rd = static_cast<int>(profile.sges);
  attr.max_cq = nic::kMaxCqs;
  attr.max_cqe = static_cast<int>(profile.cqes);
  attr.max_mr = nic::kMaxKeys;
  attr.max_mcast_grp = nic::kMaxMulticastGroups;
  attr.max_mcast_qp_attach = nic::kMaxMulticastMembers;
  attr.max_total_mcast_qp_attach = nic::kMaxMulticastGroups * nic::kMaxMulticastMembers;
  attr.max_srq = nic::kMaxSrqs;
  attr.max_srq_wr = nic::kMaxQueueEntries;
  attr.max_srq_sge = static_cast<int>(profile.shared_sges);
  attr.max_mw = nic::kMaxWindows;
  attr.max_pd = nic::kMaxPds;
  attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = nic::kMaxReads;
  attr.max_res_rd_atom = static_cast<int>(nic::kMaxReads * nic::kMaxQps);
  // Among the queue pairs of one process: processors and other processes are not kept out.
  attr.atomic_cap = IBV_ATOMIC_HCA;
  attr.max_ah = nic::kMaxAhs;
  attr.max_pkeys = 1;
  attr.local_ca_ack_delay = kAckDelay;
  attr.phys_port_cnt = 1;
  return attr;
}

// Every operation of a service may use on-demand regions.
ibv_odp_caps odp_caps() {
  ibv_odp_caps caps{};
  caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  caps.per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
                                        IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
                                        IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
  caps.per_transport_caps.uc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV |
                                        IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_SRQ_RECV;
  caps.per_transport_caps.ud_odp_caps =
      IBV_ODP_SUPPORT_SRQ_RECV | IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
  return caps;
}

constexpr std::uint32_t kPort = 1;

// IBTA vol. 1, 14.2.5.6 (PortInfo): codes of PortPhysicalState.
enum class PhysicalState : std::uint8_t { Disabled = 3, LinkUp = 5 };

Outcome<PortLayout> port_of(ibv_context* context, std::uint32_t port) {
  if (port != kPort) return Errno{EINVAL};
  driver::LiveDevice& device = Context::of(context).device();
  device.refresh_port();
  return abi::as_verbs(device.look([](const driver::Engine& engine) { return engine.port(); }));
}

std::vector<driver::GidEntry> gids_of(ibv_context* context) {
  return Context::of(context).device().look([](const driver::Engine& engine) {
    return std::vector<driver::GidEntry>(engine.gids().begin(), engine.gids().end());
  });
}

// The GID at `index`, or nothing where the slot is empty. FAILS WITH EINVAL
Outcome<std::optional<wire::Gid>> gid_at(ibv_context* context, std::uint32_t port,
                                         std::uint32_t index) {
  if (port != kPort || index >= nic::kGidTableLength) return Errno{EINVAL};
  for (const driver::GidEntry& entry : gids_of(context))
    if (entry.index == index) return std::optional(entry.gid);
  return std::optional<wire::Gid>();
}

ibv_gid_entry as_verbs(ibv_context* context, std::uint32_t index, const wire::Gid& gid) {
  ibv_gid_entry entry{};
  entry.gid = abi::as_verbs(gid);
  entry.gid_index = index;
  entry.port_num = kPort;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = Device::of(context->device).description().interface_index;
  return entry;
}

}  // namespace

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attributes, std::size_t size) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    if (input != nullptr && input->comp_mask != 0) return Errno{EINVAL};
    if (size < offsetof(ibv_device_attr_ex, comp_mask) + sizeof attributes->comp_mask)
      return Errno{EINVAL};
    ibv_device_attr_ex attr{};
    const driver::Profile& profile = Context::of(context).device().profile();
    attr.orig_attr = attributes_of(context);
    attr.completion_timestamp_mask = ~std::uint64_t{0};
    attr.hca_core_clock = kClockKhz;
    attr.cq_mod_caps = {.max_cq_count = 0xffff, .max_cq_period = 0xffff};
    if (profile.has(Feature::OnDemand)) attr.odp_caps = odp_caps();
    if (profile.has(Feature::Xrc))
      attr.xrc_odp_caps =
          attr.odp_caps.per_transport_caps.rc_odp_caps & ~std::uint32_t{IBV_ODP_SUPPORT_RECV};
    if (profile.has(Feature::DeviceMemory)) attr.max_dm_size = nic::kDeviceMemoryBytes;
    attr.phys_port_cnt_ex = 1;
    if (profile.has(Feature::TagMatching))
      attr.tm_caps = {.max_rndv_hdr_size = nic::kMaxRendezvousBytes,
                      .max_num_tags = nic::kMaxTags,
                      .flags = IBV_TM_CAP_RC,
                      .max_ops = nic::kMaxTagOperations,
                      .max_sge = nic::kMaxSges};
    attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags | kAtomicWriteFlag;
    if (profile.has(Feature::RawPackets)) {
      attr.max_wq_type_rq = nic::kMaxQps;
      attr.rss_caps = {.supported_qpts = 1u << IBV_QPT_RAW_PACKET,
                       .max_rwq_indirection_tables = nic::kMaxSpreadTables,
                       .max_rwq_indirection_table_size = nic::kMaxSpread,
                       .rx_hash_fields_mask = kHashFields,
                       .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ};
    }
    std::memset(attributes, 0, size);
    std::memcpy(attributes, &attr, std::min(size, sizeof attr));
    return {};
  });
}

VERB("IBVERBS_1.1", int, ibv_query_device, (ibv_context * context, ibv_device_attr* attributes)) {
  return answer_errno([&]() -> Outcome<void> {
    *attributes = attributes_of(context);
    return {};
  });
}

PortLayout as_verbs(const driver::PortAttributes& port) {
  const bool active = port.state == driver::PortState::Active;
  const driver::LinkRate& rate = driver::link_rate(port.speed_mbps);
  ibv_port_attr attr{};
  attr.state = static_cast<ibv_port_state>(port.state);
  attr.max_mtu = mtu_number(port.max_mtu);
  attr.active_mtu = mtu_number(port.active_mtu);
  attr.gid_tbl_len = static_cast<int>(port.gid_table_length);
  static_assert(driver::kPortCapabilities == IBV_PORT_IP_BASED_GIDS);
  attr.port_cap_flags = driver::kPortCapabilities;
  attr.max_msg_sz = port.max_message_bytes;
  attr.pkey_tbl_len = 1;
  attr.max_vl_num = 1;
  attr.active_width = rate.width;
  // A code that only fits active_speed_ex is told as the fastest that fits.
  attr.active_speed = static_cast<std::uint8_t>(std::min<std::uint16_t>(rate.speed, 128));
  attr.phys_state =
      static_cast<std::uint8_t>(active ? PhysicalState::LinkUp : PhysicalState::Disabled);
  attr.link_layer = IBV_LINK_LAYER_ETHERNET;
  attr.flags = IBV_QPF_GRH_REQUIRED;
  PortLayout layout;
  std::memcpy(layout.known, &attr, sizeof layout.known);
  layout.active_speed_ex = rate.speed;
  return layout;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes,
               std::size_t size) noexcept {
  return answer_errno([&]() -> Outcome<void> {
    const auto layout = port_of(context, port);
    if (!layout) return layout.error();
    std::memset(static_cast<void*>(attributes), 0, size);
    std::memcpy(static_cast<void*>(attributes), &*layout, std::min(size, sizeof *layout));
    return {};
  });
}

VERB("IBVERBS_1.1", int, ibv_query_port,
     (ibv_context * context, std::uint8_t port, _compat_ibv_port_attr* attributes)) {
  return answer_errno([&]() -> Outcome<void> {
    const auto layout = port_of(context, port);
    if (!layout) return layout.error();
    std::memcpy(static_cast<void*>(attributes), &*layout, kCompatPortBytes);
    return {};
  });
}

VERB("IBVERBS_1.1", int, ibv_query_gid,
     (ibv_context * context, std::uint8_t port, int index, ibv_gid* gid)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto found = gid_at(context, port, static_cast<std::uint32_t>(index));
    if (!found) return found.error();
    *gid = abi::as_verbs(found->value_or(wire::Gid{}));  // an empty slot holds the zero GID
    return 0;
  });
}

VERB("IBVERBS_1.11", int, _ibv_query_gid_ex,
     (ibv_context * context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
      std::uint32_t flags, std::size_t entry_size)) {
  return answer_errno([&]() -> Outcome<void> {
    if (flags != 0) return Errno{EOPNOTSUPP};
    const auto found = gid_at(context, port, index);
    if (!found) return found.error();
    if (!*found) return Errno{ENODATA};
    const ibv_gid_entry filled = as_verbs(context, index, **found);
    std::memset(static_cast<void*>(entry), 0, entry_size);
    std::memcpy(static_cast<void*>(entry), &filled, std::min(entry_size, sizeof filled));
    return {};
  });
}

VERB("IBVERBS_1.11", ssize_t, _ibv_query_gid_table,
     (ibv_context * context, ibv_gid_entry* entries, std::size_t max_entries, std::uint32_t flags,
      std::size_t entry_size)) {
  std::size_t count = 0;
  const int code = answer_errno([&]() -> Outcome<void> {
    if (flags != 0) return Errno{EOPNOTSUPP};
    const auto gids = gids_of(context);
    if (gids.size() > max_entries) return Errno{EINVAL};
    auto* const bytes = reinterpret_cast<std::byte*>(entries);
    for (; count < gids.size(); ++count) {
      const ibv_gid_entry filled = as_verbs(context, gids[count].index, gids[count].gid);
      std::memset(bytes + count * entry_size, 0, entry_size);
      std::memcpy(bytes + count * entry_size, &filled, std::min(entry_size, sizeof filled));
    }
    return {};
  });
  return code == 0 ? static_cast<ssize_t>(count) : -code;
}

// As the kernel's attribute files have it: 0 for InfiniBand and RoCE version 1, 1 for version 2.
// An empty slot reads as 0.
SOFTHCA_PRIVATE(int, ibv_query_gid_type,
                (ibv_context * context, std::uint8_t port, unsigned index, int* type)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto found = gid_at(context, port, index);
    if (!found) return found.error();
    *type = *found ? 1 : 0;
    return 0;
  });
}

VERB("IBVERBS_1.1", int, ibv_query_pkey,
     (ibv_context*, std::uint8_t port, int index, __be16* pkey)) {
  return answer_minus_one([&]() -> Outcome<int> {
    if (port != kPort || index != 0) return Errno{EINVAL};
    *pkey = driver::kDefaultPkey;
    return 0;
  });
}

VERB("IBVERBS_1.5", int, ibv_get_pkey_index, (ibv_context*, std::uint8_t port, __be16 pkey)) {
  return answer_minus_one([&]() -> Outcome<int> {
    if (port != kPort || pkey != driver::kDefaultPkey) return Errno{EINVAL};
    return 0;
  });
}

}  // namespace softhca::abi
