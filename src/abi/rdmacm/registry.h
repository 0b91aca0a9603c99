// Registry: what the connection manager of this process has: its devices, and the lock of all ids,
// channels and events.
//
// A forked child begins with a registry of its own. Ids and channels of its parent belong to the
// parent's, whose lock may for ever be held there; they are left behind, and nothing touches them.
//
// Threads  any. A device that tells of an event takes the lock while it is owned: so nobody who
//          holds the lock calls verbs or Connections
#pragma once
#include <cstdint>
#include <mutex>

#include "abi/rdmacm/devices.h"
#include "abi/rdmacm/resolver.h"
#include "os/self.h"

namespace softhca::abi {

struct Registry {
  static Registry& only();

  bool is_left_behind() const { return born != os::lineage(); }
  // EPERM, with a line.
  Errno left_behind() const;

  const std::uint64_t born = os::lineage();
  std::mutex lock;
  CmDevices devices;
  Resolver resolver{*this};
};

}  // namespace softhca::abi
