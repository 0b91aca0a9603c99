// Device: an entry of the list that programs choose from.
//
// Entries live as long as the process: a program may keep the pointer of an opened device after it
// has freed the list, and many do so with those of unopened ones. The same interface gives the same
// pointer each time.
//
// Threads  any
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi/layout.h"
#include "driver/attributes.h"
#include "os/fork.h"

namespace softhca::abi {

class Device : public DeviceLayout {
 public:
  static Device& of(ibv_device* verbs) {
    return static_cast<Device&>(*reinterpret_cast<DeviceLayout*>(verbs));
  }

  // Looks at the interfaces again.
  static std::vector<Device*> list();

  driver::DeviceDescription description() const;

  std::atomic<std::uint32_t> spread_tables{0};    // receive work queue tables of its contexts
  std::atomic<std::uint32_t> address_handles{0};  // of every context of this process

 private:
  explicit Device(driver::DeviceDescription description);

  driver::DeviceDescription description_;  // under objects_lock()
};

// Guards the list of devices, their descriptions and the objects of every context: what changes
// rarely, and has to be whole in the child of a fork.
os::ForkMutex& objects_lock();

}  // namespace softhca::abi
