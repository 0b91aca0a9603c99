// Registry: what the connection manager of this process has: its devices, and the lock of all ids,
// channels and events.
//
// A forked child begins with a registry of its own. Ids and channels of its parent belong to the
// parent's, whose lock may for ever be held there; they are left behind, and nothing touches them.
//
// Programs use ids that they have destroyed, and destroy channels twice (perftest does when its
// server was not there yet): so what there is is known, and all else is not looked into.
//
// Threads  any. A device that tells of an event takes the lock while it is owned: so nobody who
//          holds the lock calls verbs or Connections
#pragma once
#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "abi/rdmacm/devices.h"
#include "abi/rdmacm/resolver.h"
#include "os/self.h"

namespace softhca::abi {

struct Registry {
  static Registry& only();

  bool is_left_behind() const { return born != os::lineage(); }
  // EPERM, with a line.
  Errno left_behind() const;

  void note(const void* known);
  void forget(const void* known);
  bool has(const void* known);

  const std::uint64_t born = os::lineage();
  bool has_parent = false;  // this process was forked from one that had ids
  std::mutex lock;
  CmDevices devices{*this};
  Resolver resolver{*this};

 private:
  std::mutex known_lock_;  // nothing else is taken under it
  std::unordered_set<const void*> known_;
};

}  // namespace softhca::abi
