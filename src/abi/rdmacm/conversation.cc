// Connections and resolutions: asked for, answered, ended.
#include <algorithm>
#include <cerrno>
#include <span>
#include <string>

#include "abi/entry.h"
#include "abi/rdmacm/multicast.h"
#include "abi/rdmacm/queue_pair.h"
#include "abi/rdmacm/tell.h"

namespace softhca::abi {
namespace {

constexpr std::uint8_t kRetriesMax = 7;

// What a program asks for, with what it left out.
struct Parameters {
  std::uint8_t responder_resources{};
  std::uint8_t initiator_depth{};
  std::uint8_t retry_count = kRetriesMax;
  std::uint8_t rnr_retry_count = kRetriesMax;
  bool flow_control{};
  bool srq{};
  wire::Qpn qpn{};
  std::vector<std::byte> private_bytes{};
};

Errno too_many(const char* field, std::uint8_t wanted, std::uint8_t limit) {
  return refuse("rdma_conn_param",
                {.id = trace::ReasonId::AttributeOutOfRange, .length = wanted, .high = limit},
                std::string(" This is ") + field + ".");
}

// `offered`: by a request, which bounds what may be left out.
Outcome<Parameters> parameters_of(Id& id, const rdma_conn_param* wanted, const cm::Terms* offered) {
  Parameters p;
  if (id.qp == nullptr && wanted == nullptr) return Errno{EINVAL};
  p.responder_resources = id.device->reads_answered_max();
  p.initiator_depth = id.device->reads_asked_max();
  if (wanted != nullptr && !id.is_datagram()) {
    const bool says_resources = wanted->responder_resources != RDMA_MAX_RESP_RES;
    const bool says_depth = wanted->initiator_depth != RDMA_MAX_INIT_DEPTH;
    if (says_resources && wanted->responder_resources > p.responder_resources)
      return too_many("responder_resources", wanted->responder_resources, p.responder_resources);
    if (says_depth && wanted->initiator_depth > p.initiator_depth)
      return too_many("initiator_depth", wanted->initiator_depth, p.initiator_depth);
    if (says_resources) p.responder_resources = wanted->responder_resources;
    if (says_depth) p.initiator_depth = wanted->initiator_depth;
    p.retry_count = wanted->retry_count;
    p.rnr_retry_count = wanted->rnr_retry_count;
    p.flow_control = wanted->flow_control != 0;
  }
  if (offered != nullptr) {
    p.responder_resources = std::min(p.responder_resources, offered->responder_resources);
    p.initiator_depth = std::min(p.initiator_depth, offered->initiator_depth);
  }
  p.srq = id.qp != nullptr ? id.qp->srq != nullptr : wanted->srq != 0;
  p.qpn = {(id.qp != nullptr ? id.qp->qp_num : wanted->qp_num) & wire::kMask24};
  p.private_bytes = id.connect_bytes;
  if (wanted != nullptr && wanted->private_data != nullptr) {
    const std::span said(static_cast<const std::byte*>(wanted->private_data),
                         wanted->private_data_len);
    p.private_bytes.insert(p.private_bytes.end(), said.begin(), said.end());
  }
  return p;
}

cm::Transport transport_of(ibv_qp_type type) {
  switch (type) {
    case IBV_QPT_UC:
      return cm::Transport::Uc;
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return cm::Transport::Xrc;
    default:
      return cm::Transport::Rc;
  }
}

wire::IpAddresses addresses_of(const Id& id) {
  return {.source_port = id.source.port, .source = id.path.local, .destination = id.path.remote};
}

Connections::Id begin(Id& id, const Parameters& p) {
  const wire::ServiceId service =
      wire::service_of(static_cast<wire::PortSpace>(id.ps), id.destination.port);
  if (id.is_datagram())
    return id.connections().resolve({.service = service,
                                     .addresses = addresses_of(id),
                                     .path = id.path,
                                     .private_bytes = p.private_bytes},
                                    id);
  return id.connections().connect({.transport = transport_of(id.qp_side().type),
                                   .service = service,
                                   .addresses = addresses_of(id),
                                   .path = id.path,
                                   .qpn = p.qpn,
                                   .srq = p.srq,
                                   .responder_resources = p.responder_resources,
                                   .initiator_depth = p.initiator_depth,
                                   .retry_count = p.retry_count,
                                   .rnr_retry_count = p.rnr_retry_count,
                                   .flow_control = p.flow_control,
                                   .ece = id.ece,
                                   .private_bytes = p.private_bytes},
                                  id);
}

// To the next stage, if it is the turn of the call.
bool advance(Id& id, Stage from, Stage to) {
  const std::scoped_lock held(id.registry.lock);
  if (id.stage != from) return false;
  id.stage = to;
  return true;
}

Outcome<void> connect(Id& id, const rdma_conn_param* wanted) {
  // The number of a queue pair that serves datagrams need not be said.
  static constexpr rdma_conn_param kNothing{};
  if (id.is_datagram() && wanted == nullptr) wanted = &kNothing;
  if (id.device == nullptr) return wrong_turn("rdma_connect");
  const auto parameters = parameters_of(id, wanted, nullptr);
  if (!parameters) return parameters.error();
  if (!advance(id, Stage::Routed, Stage::Conversing)) return wrong_turn("rdma_connect");
  const auto begun = told("rdma_connect", begin(id, *parameters));
  const std::scoped_lock held(id.registry.lock);
  if (!begun) {
    id.stage = Stage::Routed;
    return begun.error();
  }
  id.conversation = *begun;
  return {};
}

Outcome<void> accept_connection(Id& id, const Parameters& p, cm::Terms terms) {
  terms.responder_resources = p.responder_resources;
  terms.initiator_depth = p.initiator_depth;
  if (const auto ready = make_ready(id, terms); !ready) return ready;
  return told("rdma_accept", id.connections().accept(id.conversation,
                                                     {.qpn = p.qpn,
                                                      .srq = p.srq,
                                                      .responder_resources = p.responder_resources,
                                                      .initiator_depth = p.initiator_depth,
                                                      .rnr_retry_count = p.rnr_retry_count,
                                                      .flow_control = p.flow_control,
                                                      .ece = id.ece,
                                                      .private_bytes = p.private_bytes}));
}

Outcome<void> accept(Id& id, const rdma_conn_param* wanted) {
  const auto terms = id.terms_now();
  if (!terms) return wrong_turn("rdma_accept");
  const auto parameters = parameters_of(id, wanted, &*terms);
  if (!parameters) return parameters.error();
  if (!advance(id, Stage::Asked, Stage::Conversing)) return wrong_turn("rdma_accept");
  const auto accepted =
      id.is_datagram()
          ? told("rdma_accept", id.connections().answer(
                                    id.conversation, {.qpn = parameters->qpn,
                                                      .qkey = RDMA_UDP_QKEY,
                                                      .ece = id.ece,
                                                      .private_bytes = parameters->private_bytes}))
          : accept_connection(id, *parameters, *terms);
  if (accepted) return accepted;
  [[maybe_unused]] const auto stopped = stop(id);
  static_cast<void>(advance(id, Stage::Conversing, Stage::Asked));
  return accepted;
}

Outcome<void> reject(Id& id, const void* bytes, std::size_t length) {
  if (id.conversation == wire::CommId{}) return wrong_turn("rdma_reject");
  const ConstBytes said(static_cast<const std::byte*>(bytes), bytes != nullptr ? length : 0);
  return told("rdma_reject", id.connections().reject(id.conversation, said));
}

// The peer accepts: the queue pair is made ready, and the peer told so.
void take_up(TakenEvent& event) {
  Id& id = *event.from.about;
  if (id.qp == nullptr) return;  // the program does it
  const auto terms = id.terms_now();
  auto ready = terms ? make_ready(id, *terms) : Outcome<void>(Errno{EINVAL});
  if (ready) ready = told("rdma_get_cm_event", id.connections().establish(id.conversation, {}));
  event.event = ready ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_ERROR;
  if (ready) return;
  event.status = -ready.error().code;
  [[maybe_unused]] const auto stopped = stop(id);
  [[maybe_unused]] const auto rejected = id.connections().reject(id.conversation, {});
}

}  // namespace

bool carry_out(TakenEvent& event) {
  Id& id = *event.from.about;
  switch (event.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      id.pd = id.device->domain();
      // That of a synchronous listener is synchronous, too.
      if (event.from.listener->is_synchronous && !migrate(id, nullptr)) {
        destroy(id);
        return false;
      }
      break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      take_up(event);
      break;
    case RDMA_CM_EVENT_REJECTED: {
      [[maybe_unused]] const auto stopped = stop(id);
      break;
    }
    case RDMA_CM_EVENT_ESTABLISHED:
      if (id.is_datagram()) event.param.ud.ah_attr = address_of_path(id.path, id.qp_side());
      break;
    case RDMA_CM_EVENT_MULTICAST_JOIN:
      describe_join(event);
      break;
    default:
      break;
  }
  return true;
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_connect, (rdma_cm_id * verbs, rdma_conn_param* wanted)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto begun = connect(**id, wanted);
    if (!begun) return begun.error();
    return finish(**id, place);
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_accept, (rdma_cm_id * verbs, rdma_conn_param* wanted)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto accepted = accept(**id, wanted);
    if (!accepted) return accepted.error();
    if ((*id)->is_datagram()) return 0;
    return finish(**id, place);
  });
}

VERB("RDMACM_1.0", int, rdma_reject,
     (rdma_cm_id * verbs, const void* private_data, std::uint8_t length)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    const auto rejected = reject(**id, private_data, length);
    if (!rejected) return rejected.error();
    return 0;
  });
}

VERB("RDMACM_1.3", int, rdma_reject_ece,
     (rdma_cm_id * verbs, const void* private_data, std::uint8_t length)) {
  return entry_rdma_reject(verbs, private_data, length);
}

VERB("RDMACM_1.2", int, rdma_establish, (rdma_cm_id * verbs)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(verbs);
    if (!known) return known.error();
    Id& id = **known;
    if (id.qp != nullptr || id.conversation == wire::CommId{}) return wrong_turn("rdma_establish");
    const auto done = told("rdma_establish", id.connections().establish(id.conversation, {}));
    if (!done) return done.error();
    return 0;
  });
}

VERB("RDMACM_1.0", int, rdma_notify, (rdma_cm_id * verbs, ibv_event_type event)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(verbs);
    if (!known) return known.error();
    Id& id = **known;
    if (event != IBV_EVENT_COMM_EST || id.conversation == wire::CommId{})
      return wrong_turn("rdma_notify");
    {
      const std::scoped_lock held(id.registry.lock);
      if (id.is_established) return Errno{EISCONN};  // programs may ignore it
    }
    const auto done = told("rdma_notify", id.connections().establish(id.conversation, {}));
    if (!done) return done.error();
    return 0;
  });
}

BLOCKING_VERB("RDMACM_1.0", int, rdma_disconnect, (rdma_cm_id * verbs)) {
  const std::uintptr_t place = caller_of_this();
  return answer_minus_one([&]() -> Outcome<int> {
    const auto known = usable(verbs);
    if (!known) return known.error();
    Id& id = **known;
    if (id.conversation == wire::CommId{}) return wrong_turn("rdma_disconnect");
    if (const auto stopped = stop(id); !stopped) return stopped.error();
    const auto done = told("rdma_disconnect", id.connections().disconnect(id.conversation, {}));
    if (!done) return done.error();
    return finish(id, place);
  });
}

VERB("RDMACM_1.3", int, rdma_set_local_ece, (rdma_cm_id * verbs, ibv_ece* ece)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    if ((*id)->qp != nullptr || ece == nullptr) return Errno{EINVAL};
    (*id)->ece = {.vendor_id = ece->vendor_id, .options = ece->options};
    return 0;
  });
}

VERB("RDMACM_1.3", int, rdma_get_remote_ece, (rdma_cm_id * verbs, ibv_ece* ece)) {
  return answer_minus_one([&]() -> Outcome<int> {
    const auto id = usable(verbs);
    if (!id) return id.error();
    if ((*id)->qp != nullptr || ece == nullptr) return Errno{EINVAL};
    const auto terms = (*id)->terms_now();
    if (!terms) return wrong_turn("rdma_get_remote_ece");
    *ece = {.vendor_id = terms->remote_ece.vendor_id,
            .options = terms->remote_ece.options,
            .comp_mask = 0};
    return 0;
  });
}

}  // namespace softhca::abi
