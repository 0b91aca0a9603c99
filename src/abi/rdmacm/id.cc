#include "abi/rdmacm/id.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "abi/entry.h"
#include "abi/gid.h"
#include "abi/rdmacm/multicast.h"
#include "abi/rdmacm/tell.h"
#include "base/bytes.h"

namespace softhca::abi {

namespace {

constexpr std::uint8_t kIsExactly = 2;  // a selector of a path record, as the subnet's manager says

}  // namespace

Id::Id(EventChannel& events, void* own_context, rdma_port_space space, ibv_qp_type type)
    : rdma_cm_id{}, registry(events.registry()) {
  channel = &events;
  context = own_context;
  ps = space;
  qp_type = type;
  registry.note(static_cast<rdma_cm_id*>(this));
}

Id::~Id() {
  registry.forget(static_cast<rdma_cm_id*>(this));
  if (device != nullptr) {
    const std::scoped_lock held(registry.lock);
    device->remove(*this);
  }
  if (is_synchronous) delete &events();
}

void Id::settle(CmDevice& at) {
  at.watch();
  {
    const std::scoped_lock held(registry.lock);
    if (device != nullptr) device->remove(*this);
    at.add(*this);
  }
  device = &at;
  verbs = at.context();
  port_num = CmDevice::kPort;
  if (pd == nullptr) pd = at.domain();
}

void Id::show_addresses() {
  store(source, route.addr.src_storage);
  if (destination != SocketAddress{}) store(destination, route.addr.dst_storage);
  if (device == nullptr) return;
  route.addr.addr.ibaddr.sgid = as_verbs(path.local);
  route.addr.addr.ibaddr.dgid = as_verbs(path.remote);
  route.addr.addr.ibaddr.pkey = byte_swapped(path.pkey);
}

void Id::show_path() {
  path_record = {};
  path_record.sgid = as_verbs(path.local);
  path_record.dgid = as_verbs(path.remote);
  path_record.flow_label = byte_swapped(path.flow_label);
  path_record.hop_limit = path.hop_limit;
  path_record.traffic_class = path.traffic_class;
  path_record.reversible = 1;
  path_record.numb_path = 1;
  path_record.pkey = byte_swapped(path.pkey);
  path_record.sl = path.service_level;
  path_record.mtu_selector = path_record.rate_selector = kIsExactly;
  path_record.mtu = path.mtu;
  path_record.rate = path.packet_rate;
  path_record.packet_life_time_selector = kIsExactly;
  path_record.packet_life_time = static_cast<std::uint8_t>(std::max<int>(path.ack_timeout, 1) - 1);
  route.path_rec = &path_record;
  route.num_paths = 1;
}

QpSide Id::qp_side() {
  return {.type = qp != nullptr ? qp->qp_type : qp_type,
          .port = CmDevice::kPort,
          .gid_index = device->index_of(path.local).value_or(0),
          .ack_timeout = ack_timeout};
}

std::optional<cm::Terms> Id::terms_now() {
  const std::scoped_lock held(registry.lock);
  return terms;
}

void Id::post(News&& news, Id* listener, Membership* membership) noexcept {
  events().post(
      {.about = this, .listener = listener, .membership = membership, .news = std::move(news)});
}

void Id::on_resolved(int status) noexcept {
  stage = status == 0 ? Stage::Resolved : Stage::Bound;
  post({.type = status == 0 ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR,
        .status = status});
}

cm::ConnectionSink* Id::on_event(const cm::Event& event) {
  try {
    auto news = news_of(event, is_datagram());
    const std::scoped_lock held(registry.lock);
    if (!news || is_closing) return nullptr;
    // Before the call that has begun it gives its number back.
    if (conversation == wire::CommId{}) conversation = event.id;
    terms = event.terms;
    is_established |= event.kind == cm::EventKind::Established;
    post(std::move(*news));
  } catch (const std::bad_alloc&) {  // lost, as in a queue of the kernel's
  }
  return nullptr;
}

namespace {

// An id for the peer's request, as the program finds it in the event.
std::unique_ptr<Id> id_of_request(Listening& from, const cm::Event& event) {
  Id& listener = from.id;
  auto id =
      std::make_unique<Id>(listener.events(), listener.context, listener.ps, listener.qp_type);
  const cm::Terms& terms = event.terms;
  id->stage = Stage::Asked;
  from.device.add(*id);
  id->device = &from.device;  // it leaves what it is on, under the lock, so nothing may fail now
  id->verbs = from.device.context();
  id->port_num = CmDevice::kPort;
  id->path = terms.path;
  id->conversation = event.id;
  id->terms = terms;
  const auto end = [&](const wire::Gid& gid, std::uint16_t port) {
    return SocketAddress{.address = {gid.bytes}, .port = port, .is_ipv6 = !gid.is_ipv4()};
  };
  id->source = end(terms.addresses.destination, listener.source.port);
  id->destination = end(terms.addresses.source, terms.addresses.source_port);
  id->show_addresses();
  id->show_path();
  return id;
}

}  // namespace

cm::ConnectionSink* Listening::on_event(const cm::Event& event) {
  try {
    auto news = news_of(event, id.is_datagram());
    if (!news || news->type != RDMA_CM_EVENT_CONNECT_REQUEST) return nullptr;
    const std::scoped_lock held(id.registry.lock);
    if (id.is_closing) return nullptr;
    auto fresh = id_of_request(*this, event);
    fresh->post(std::move(*news), &id);
    return fresh.release();
  } catch (const std::bad_alloc&) {
    return nullptr;  // rejected
  }
}

Id* live(rdma_cm_id* id) { return Registry::only().has(id) ? &Id::of(id) : nullptr; }

Outcome<Id*> usable(rdma_cm_id* id) {
  if (id == nullptr) return Errno{EINVAL};
  if (Id* const one = live(id)) return one;
  const Registry& here = Registry::only();
  if (here.has_parent) return here.left_behind();
  return refuse("rdma_cm", {.id = trace::ReasonId::IdGone});
}

Outcome<int> finish(Id& id, std::uintptr_t place) {
  if (!id.is_synchronous) return 0;
  if (id.event != nullptr) acknowledge(&TakenEvent::of(std::exchange(id.event, nullptr)));
  const auto taken = id.events().take(place);
  if (!taken) return taken.error();
  id.event = *taken;
  const int status = id.event->status;
  if (status == 0) return 0;
  return Errno{status < 0 ? -status : ECONNREFUSED};  // what is not negative is the peer's reason
}

void destroy(Id& id) {
  wire::CommId conversation{};
  {
    const std::scoped_lock held(id.registry.lock);
    id.is_closing = true;
    conversation = id.conversation;
    id.registry.resolver.forget(id);
  }
  for (const auto& ear : id.ears) ear->device.connections().close(ear->number);
  if (conversation != wire::CommId{}) id.connections().destroy(conversation);
  std::deque<Pending> unread;
  {
    const std::scoped_lock held(id.registry.lock);
    unread = id.events().remove(id);
  }
  // Requests that the program has not seen: their ids are nobody's.
  for (const Pending& one : unread)
    if (one.listener == &id) destroy(*one.about);
  leave_all(id);
  if (id.event != nullptr) acknowledge(&TakenEvent::of(std::exchange(id.event, nullptr)));
  id.acknowledged.wait("rdma_destroy_id");
  delete &id;
}

namespace {

Outcome<ibv_qp_type> qp_type_of(rdma_port_space ps) {
  switch (ps) {
    case RDMA_PS_TCP:
    case RDMA_PS_IB:
      return IBV_QPT_RC;
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
      return IBV_QPT_UD;
  }
  return Errno{EINVAL};
}

}  // namespace

Outcome<Id*> create_id(rdma_event_channel* channel, void* context, rdma_port_space ps,
                       ibv_qp_type type) {
  if (const auto known = qp_type_of(ps); !known) return known.error();
  if (channel != nullptr) {
    EventChannel& events = EventChannel::of(channel);
    if (events.registry().is_left_behind()) return events.registry().left_behind();
    return new Id(events, context, ps, type);
  }
  const auto own = EventChannel::open(Registry::only());
  if (!own) return own.error();
  std::unique_ptr<EventChannel> events(*own);
  Id* const id = new Id(*events, context, ps, type);
  static_cast<void>(events.release());
  id->is_synchronous = true;
  return id;
}

VERB("RDMACM_1.0", int, rdma_create_id,
     (rdma_event_channel * channel, rdma_cm_id** id, void* context, rdma_port_space ps)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto type = qp_type_of(ps);
    if (!type) return type.error();
    const auto created = create_id(channel, context, ps, *type);
    if (!created) return created.error();
    *id = *created;
    return 0;
  });
}

VERB("RDMACM_1.0", int, rdma_destroy_id, (rdma_cm_id * verbs)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (id)
      destroy(**id);
    else if (id.error().code != EPERM)  // a child leaves it to its parent
      return id.error();
    return 0;
  });
}

// Events that wait go along, with the ids of requests.
Outcome<void> migrate(Id& id, EventChannel* channel) {
  std::unique_ptr<EventChannel> own;
  if (channel == nullptr) {
    const auto opened = EventChannel::open(id.registry);
    if (!opened) return opened.error();
    own.reset(*opened);
    channel = own.get();
  }
  if (id.is_synchronous && id.event != nullptr)
    acknowledge(&TakenEvent::of(std::exchange(id.event, nullptr)));
  EventChannel& from = id.events();
  {
    const std::scoped_lock held(id.registry.lock);
    std::deque<Pending> waiting = from.remove(id);
    for (Pending& one : waiting) {
      Id& about = *one.about;
      about.channel = channel;
      channel->post(std::move(one));
      if (&about == &id) continue;
      for (Pending& later : from.remove(about)) channel->post(std::move(later));
    }
    id.channel = channel;
  }
  id.acknowledged.wait("rdma_migrate_id");
  if (id.is_synchronous) delete &from;
  id.is_synchronous = own != nullptr;
  static_cast<void>(own.release());
  return {};
}

VERB("RDMACM_1.0", int, rdma_migrate_id, (rdma_cm_id * verbs, rdma_event_channel* channel)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto migrated = migrate(**id, channel == nullptr ? nullptr : &EventChannel::of(channel));
    if (!migrated) return migrated.error();
    return 0;
  });
}

}  // namespace softhca::abi
