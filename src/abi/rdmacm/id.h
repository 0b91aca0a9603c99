// Id: what a program connects with, listens with or joins groups with.
//
// The public structure is filled in as librdmacm's is. Members below are the program's, one call at
// a time, but for those that a device changes when it tells of an event.
//
// Threads  any; what is marked so is under the registry's lock
// See also abi/rdmacm/registry.h (why nothing of a device is called under it)
#pragma once
#include <rdma/rdma_cma.h>

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "abi/rdmacm/channel.h"
#include "abi/rdmacm/devices.h"
#include "abi/rdmacm/qp_terms.h"
#include "abi/rdmacm/socket_address.h"
#include "cm/event.h"
#include "local/service_port.h"

namespace softhca::abi {

static_assert(sizeof(rdma_cm_id) == 416);

// A group that an id has joined.
struct Membership {
  sockaddr_storage address{};
  void* context{};
  ibv_gid group{};
  bool only_sends{};
  ibv_qp* attached{};  // null: no queue pair hears the group through it
  Acknowledged acknowledged{};
};

// An id's ear at one device.
struct Listening final : cm::ConnectionSink {
  Listening(Id& owner, CmDevice& at) : id(owner), device(at) {}
  cm::ConnectionSink* on_event(const cm::Event& event) override;

  Id& id;
  CmDevice& device;
  cm::ListenerId number{};
};

enum class Stage : std::uint8_t {
  Idle,
  Bound,
  Resolving,  // the address
  Resolved,
  Routed,
  Listening,
  Asked,       // a peer's request: accept or reject
  Conversing,  // since the call that begins or answers
};

struct Id final : rdma_cm_id, cm::ConnectionSink {
  Id(EventChannel& channel, void* context, rdma_port_space ps, ibv_qp_type type);
  ~Id();
  static Id& of(rdma_cm_id* id) { return static_cast<Id&>(*id); }

  // From a device.
  cm::ConnectionSink* on_event(const cm::Event& event) override;
  // What became of its address. REQUIRES: the registry's lock
  void on_resolved(int status) noexcept;
  // REQUIRES: the registry's lock
  void post(News&& news, Id* listener = nullptr, Membership* membership = nullptr) noexcept;

  bool is_datagram() const { return qp_type == IBV_QPT_UD; }
  EventChannel& events() { return EventChannel::of(channel); }
  Connections& connections() { return device->connections(); }
  wire::ServiceId service() const {
    return wire::service_of(static_cast<wire::PortSpace>(ps), source.port);
  }
  // From now on it is on the device, with addresses that the program sees.
  void settle(CmDevice& at);
  void show_addresses();
  void show_path();
  QpSide qp_side();
  // What a queue pair is told now; nothing before there is a conversation.
  std::optional<cm::Terms> terms_now();

  Registry& registry;
  Stage stage = Stage::Idle;  // under the lock
  CmDevice* device{};
  SocketAddress source{};
  bool is_source_chosen{};  // by the route, not by the program
  SocketAddress destination{};
  std::optional<local::ServicePort> port{};
  cm::Path path{};
  ibv_sa_path_rec path_record{};
  // Options.
  std::uint8_t type_of_service{};
  bool reuses_address{};
  bool only_ipv6{};
  std::optional<std::uint8_t> ack_timeout{};
  cm::Ece ece{};
  // The conversation.
  wire::CommId conversation{};       // under the lock; 0: none
  std::optional<cm::Terms> terms{};  // under the lock
  bool is_established{};             // under the lock: it was told so
  bool is_closing{};                 // under the lock
  std::vector<std::unique_ptr<Listening>> ears{};
  std::list<Membership> memberships{};
  // Synchronous operation: the channel is the id's own.
  bool is_synchronous{};
  bool srq_has_queue{};  // recv_cq was made for it
  // Of rdma_create_ep.
  std::optional<ibv_qp_init_attr> qp_of_requests{};
  std::vector<std::byte> connect_bytes{};  // in front of those of rdma_connect
  Acknowledged acknowledged{};
};

// The id, or null if it is none, or not this process's.
Id* live(rdma_cm_id* id);
// The same. FAILS WITH EINVAL; EPERM: its owner is the process that this one was forked from
Outcome<Id*> usable(rdma_cm_id* id);

// Synchronous ids: waits for the event that ends the call, and is what it says.
Outcome<int> finish(Id& id, std::uintptr_t place);

// `channel` null: a synchronous one. FAILS WITH EINVAL (no such port space), EPERM, EMFILE
Outcome<Id*> create_id(rdma_event_channel* channel, void* context, rdma_port_space ps,
                       ibv_qp_type type);

// `channel` null: to one of its own. Waits until the events that were taken are acknowledged.
// FAILS WITH EMFILE
Outcome<void> migrate(Id& id, EventChannel* channel);

// Ends everything of the id, but for its queue pair.
void destroy(Id& id);

// What the event asks for. False: the program shall not see it.
bool carry_out(TakenEvent& event);

}  // namespace softhca::abi
