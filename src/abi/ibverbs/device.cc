#include "abi/ibverbs/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "abi/entry.h"
#include "base/bytes.h"
#include "driver/live/live_device.h"

namespace softhca::abi {
namespace {

template <std::size_t N>
void copy_text(char (&to)[N], const std::string& from) {
  const std::size_t length = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), length);
  to[length] = '\0';
}

// Never destroyed: threads of the program may still be inside when the process ends.
constinit os::ForkMutex g_lock;
constinit std::vector<std::unique_ptr<Device>>* g_known = nullptr;
constinit std::atomic<bool> g_hooked{false};

}  // namespace

os::ForkMutex& objects_lock() { return g_lock; }

Device::Device(driver::DeviceDescription description) : description_(std::move(description)) {
  const std::string uverbs = "uverbs" + std::to_string(description_.ordinal);
  verbs.node_type = IBV_NODE_CA;
  verbs.transport_type = IBV_TRANSPORT_IB;
  copy_text(verbs.name, description_.name);
  copy_text(verbs.dev_name, uverbs);
  copy_text(verbs.dev_path, "/sys/class/infiniband_verbs/" + uverbs);
  copy_text(verbs.ibdev_path, "/sys/class/infiniband/" + description_.name);
}

// Whoever opens a device has listed it before, so this comes before every other use of the lock.
std::vector<Device*> Device::list() {
  if (!g_hooked.exchange(true))
    os::on_fork({.before = [] { g_lock.lock_for_fork(); },
                 .in_parent = [] { g_lock.unlock_after_fork(); },
                 .in_child = [] { g_lock.unlock_after_fork(); }});
  std::vector<driver::DeviceDescription> present = driver::list_devices();
  std::vector<Device*> listed;
  const std::scoped_lock held(g_lock);
  if (g_known == nullptr) g_known = new std::vector<std::unique_ptr<Device>>;
  auto& known = *g_known;
  for (driver::DeviceDescription& one : present) {
    const auto same = std::ranges::find_if(known, [&](const auto& device) {
      const driver::DeviceDescription& was = device->description_;
      return was.name == one.name && was.interface == one.interface;
    });
    if (same == known.end()) {
      known.push_back(std::unique_ptr<Device>(new Device(std::move(one))));
      listed.push_back(known.back().get());
    } else {
      (*same)->description_ = std::move(one);
      listed.push_back(same->get());
    }
  }
  return listed;
}

driver::DeviceDescription Device::description() const {
  const std::scoped_lock held(g_lock);
  return description_;
}

VERB("IBVERBS_1.1", ibv_device**, ibv_get_device_list, (int* num_devices)) {
  if (num_devices != nullptr) *num_devices = 0;
  return answer_pointer([&]() -> Outcome<ibv_device**> {
    const std::vector<Device*> devices = Device::list();
    auto** list = static_cast<ibv_device**>(std::calloc(devices.size() + 1, sizeof(ibv_device*)));
    if (list == nullptr) return Errno{ENOMEM};
    for (std::size_t i = 0; i < devices.size(); ++i) list[i] = &devices[i]->verbs;
    if (num_devices != nullptr) *num_devices = static_cast<int>(devices.size());
    return list;
  });
}

VERB("IBVERBS_1.1", void, ibv_free_device_list, (ibv_device * *list)) { std::free(list); }

VERB("IBVERBS_1.1", const char*, ibv_get_device_name, (ibv_device * device)) {
  return device->name;
}

VERB("IBVERBS_1.1", __be64, ibv_get_device_guid, (ibv_device * device)) {
  __be64 guid = 0;
  const int code = answer_errno([&]() -> Outcome<void> {
    guid = byte_swapped(Device::of(device).description().guid);
    return {};
  });
  return code == 0 ? guid : 0;
}

VERB("IBVERBS_1.9", int, ibv_get_device_index, (ibv_device * device)) {
  return answer_minus_one(
      [&]() -> Outcome<int> { return static_cast<int>(Device::of(device).description().ordinal); });
}

}  // namespace softhca::abi
