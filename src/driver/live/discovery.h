// What list_devices() (live_device.h) is made of.
#pragma once
#include <cstdint>
#include <optional>

#include "driver/attributes.h"

namespace softhca::driver {

// The largest path MTU whose packets fit an interface; 256 at least, which every IPv6 link carries.
std::uint32_t largest_path_mtu(std::uint32_t interface_mtu);

// The same device as its interface is now; nothing if that has gone.
std::optional<DeviceDescription> describe_interface(const DeviceDescription& known);

}  // namespace softhca::driver
