// CmDevice: a device as rdma_cm uses it: one context for all ids, which stays open, since programs
// go on using it when their id is gone; and the default domains that ids share.
//
// Threads  any. Verbs are called, so none of the connection manager's locks may be held but where
// it
//          is said
#pragma once
#include <rdma/rdma_cma.h>

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "abi/connections.h"
#include "wire/gid.h"

namespace softhca::abi {

struct Id;
struct Registry;

class CmDevice final : cm::ConnectionSink {
 public:
  static constexpr std::uint8_t kPort = 1;

  CmDevice(Registry& registry, ibv_context* context);
  CmDevice(const CmDevice&) = delete;
  CmDevice& operator=(const CmDevice&) = delete;

  ibv_context* context() { return context_; }
  Connections& connections() { return connections_; }

  // Where it is in the port's table now; nothing if the port does not have the address.
  std::optional<std::uint8_t> index_of(const wire::Gid& gid);
  // The first one of the port that is of IPv4, or of IPv6.
  std::optional<wire::Gid> first_gid(bool ipv4);
  // Number of the largest MTU that the port can carry now: 1 is 256, 5 is 4096.
  std::uint8_t mtu();
  // READs and atomics at a time.
  std::uint8_t reads_answered_max() const { return reads_answered_max_; }
  std::uint8_t reads_asked_max() const { return reads_asked_max_; }

  // What takes long of hearing requests, which is done once. What fails is told by who listens.
  void open_port();

  // From now on those that are on it hear of its removal.
  void watch();
  // REQUIRES: the registry's lock
  void add(Id& id) { ids_.insert(&id); }
  void remove(Id& id) { ids_.erase(&id); }

  // The default ones, made when they are first asked for; null and errno if they cannot be.
  ibv_pd* domain();
  ibv_xrcd* xrc_domain();

 private:
  cm::ConnectionSink* on_event(const cm::Event& event) override;
  std::vector<ibv_gid_entry> gids();

  Registry& registry_;
  std::set<Id*> ids_;  // under the registry's lock
  ibv_context* const context_;
  Connections& connections_;
  std::uint8_t reads_answered_max_{};
  std::uint8_t reads_asked_max_{};
  std::mutex lock_;  // of what follows
  bool is_port_open_ = false;
  bool is_watched_ = false;
  ibv_pd* domain_ = nullptr;
  ibv_xrcd* xrc_domain_ = nullptr;
};

// Those of this process, opened as they are found.
class CmDevices {
 public:
  explicit CmDevices(Registry& registry) : registry_(registry) {}

  // In the order of ibv_get_device_list.
  std::vector<CmDevice*> list();
  // Null: no device has the address.
  CmDevice* of_address(const wire::Gid& gid);

  struct Loopback {
    CmDevice* device{};
    wire::Gid gid{};
  };
  // Who serves a loopback address: the device that has it, else the first one that has an address
  // of its family.
  std::optional<Loopback> loopback(const wire::Gid& address);

 private:
  Registry& registry_;
  std::mutex lock_;
  std::vector<std::unique_ptr<CmDevice>> open_;  // never closed
};

}  // namespace softhca::abi
