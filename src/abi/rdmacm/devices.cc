#include "abi/rdmacm/devices.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "abi/entry.h"
#include "abi/gid.h"
#include "abi/rdmacm/id.h"
#include "abi/rdmacm/registry.h"

namespace softhca::abi {
namespace {

constexpr std::size_t kGidsMax = 256;

std::uint8_t clamped(int value) { return static_cast<std::uint8_t>(std::clamp(value, 0, 255)); }

}  // namespace

CmDevice::CmDevice(Registry& registry, ibv_context* context)
    : registry_(registry), context_(context), connections_(*ibv_softhca_connections(context)) {
  ibv_device_attr attributes{};
  if (ibv_query_device(context_, &attributes) != 0) return;
  reads_answered_max_ = clamped(attributes.max_qp_rd_atom);
  reads_asked_max_ = clamped(attributes.max_qp_init_rd_atom);
}

// Those of the port, with their places.
std::vector<ibv_gid_entry> CmDevice::gids() {
  std::vector<ibv_gid_entry> entries(kGidsMax);
  const auto found = ibv_query_gid_table(context_, entries.data(), entries.size(), 0);
  entries.resize(found < 0 ? 0 : static_cast<std::size_t>(found));
  return entries;
}

std::optional<std::uint8_t> CmDevice::index_of(const wire::Gid& gid) {
  for (const ibv_gid_entry& entry : gids())
    if (gid_of(entry.gid) == gid) return static_cast<std::uint8_t>(entry.gid_index);
  return std::nullopt;
}

std::optional<wire::Gid> CmDevice::first_gid(bool ipv4) {
  for (const ibv_gid_entry& entry : gids())
    if (gid_of(entry.gid).is_ipv4() == ipv4) return gid_of(entry.gid);
  return std::nullopt;
}

std::uint8_t CmDevice::mtu() {
  ibv_port_attr port{};
  if (ibv_query_port(context_, kPort, &port) != 0) return IBV_MTU_1024;
  return static_cast<std::uint8_t>(port.active_mtu);
}

// Addresses that were opened for a listener stay open.
void CmDevice::open_port() {
  struct Deaf final : cm::ConnectionSink {
    cm::ConnectionSink* on_event(const cm::Event&) override { return nullptr; }
  } deaf;
  watch();
  const std::scoped_lock held(lock_);
  if (is_port_open_) return;
  is_port_open_ = true;
  if (const auto nobody = connections_.listen({}, deaf); nobody) connections_.close(*nobody);
}

void CmDevice::watch() {
  const std::scoped_lock held(lock_);
  if (!std::exchange(is_watched_, true)) connections_.watch_removal(*this);
}

// Who listens at every device is on none, and not told of one of them, as in Linux.
cm::ConnectionSink* CmDevice::on_event(const cm::Event& event) {
  const auto news = news_of(event, false);
  if (!news || news->type != RDMA_CM_EVENT_DEVICE_REMOVAL) return nullptr;
  const std::scoped_lock held(registry_.lock);
  for (Id* const id : ids_)
    if (!id->is_closing) id->post(News(*news));
  return nullptr;
}

ibv_pd* CmDevice::domain() {
  const std::scoped_lock held(lock_);
  if (domain_ == nullptr) domain_ = ibv_alloc_pd(context_);
  return domain_;
}

ibv_xrcd* CmDevice::xrc_domain() {
  const std::scoped_lock held(lock_);
  if (xrc_domain_ == nullptr) {
    ibv_xrcd_init_attr wanted{};
    wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    wanted.fd = -1;
    wanted.oflags = O_CREAT;
    xrc_domain_ = ibv_open_xrcd(context_, &wanted);
  }
  return xrc_domain_;
}

std::vector<CmDevice*> CmDevices::list() {
  const std::scoped_lock held(lock_);
  int count = 0;
  ibv_device** present = ibv_get_device_list(&count);
  std::vector<CmDevice*> listed;
  for (int i = 0; i < count; ++i) {
    auto it = std::ranges::find_if(
        open_, [&](const auto& one) { return one->context()->device == present[i]; });
    if (it == open_.end()) {
      ibv_context* context = ibv_open_device(present[i]);
      if (context == nullptr) continue;
      open_.push_back(std::make_unique<CmDevice>(registry_, context));
      it = std::prev(open_.end());
    }
    listed.push_back(it->get());
  }
  ibv_free_device_list(present);
  return listed;
}

CmDevice* CmDevices::of_address(const wire::Gid& gid) {
  for (CmDevice* device : list())
    if (device->index_of(gid)) return device;
  return nullptr;
}

std::optional<CmDevices::Loopback> CmDevices::loopback(const wire::Gid& address) {
  if (CmDevice* const device = of_address(address)) return Loopback{device, address};
  for (CmDevice* device : list())
    if (const auto gid = device->first_gid(address.is_ipv4())) return Loopback{device, *gid};
  return std::nullopt;
}

VERB("RDMACM_1.0", ibv_context**, rdma_get_devices, (int* num_devices)) {
  if (num_devices != nullptr) *num_devices = 0;
  return answer_pointer([&]() -> Outcome<ibv_context**> {
    const std::vector<CmDevice*> devices = Registry::only().devices.list();
    auto** list = static_cast<ibv_context**>(std::calloc(devices.size() + 1, sizeof(void*)));
    if (list == nullptr) return Errno{ENOMEM};
    for (std::size_t i = 0; i < devices.size(); ++i) list[i] = devices[i]->context();
    if (num_devices != nullptr) *num_devices = static_cast<int>(devices.size());
    return list;
  });
}

VERB("RDMACM_1.0", void, rdma_free_devices, (ibv_context * *list)) { std::free(list); }

}  // namespace softhca::abi
