// How connections begin: what rdma_cm says, and what is answered.
#include <endian.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "abi/rsocket/rdma_calls.h"
#include "abi/rsocket/sleepers.h"
#include "abi/rsocket/stream_socket.h"

namespace softhca::abi {
namespace {

constexpr std::uint8_t kRetries = 7;  // of receives that are not there: without end

// What an event's status is as an errno.
int errno_of_news(rdma_cm_event_type event, int status) {
  if (event == RDMA_CM_EVENT_REJECTED) return ECONNREFUSED;
  if (status < 0) return -status;
  return event == RDMA_CM_EVENT_UNREACHABLE ? ETIMEDOUT : ECONNREFUSED;
}

std::vector<std::byte> private_bytes(const rdma_cm_event& event) {
  const rdma_conn_param& param = event.param.conn;
  const auto* const bytes = static_cast<const std::byte*>(param.private_data);
  if (bytes == nullptr) return {};
  return {bytes, bytes + param.private_data_len};
}

rdma_conn_param param_with(const std::array<std::byte, rsocket::kGreetingBytes>& greeting) {
  rdma_conn_param param{};
  param.private_data = greeting.data();
  param.private_data_len = static_cast<std::uint8_t>(greeting.size());
  param.flow_control = 1;
  param.retry_count = kRetries;
  param.rnr_retry_count = kRetries;
  return param;
}

}  // namespace

void StreamSocket::take_news() {
  rdma_cm_event* event = nullptr;
  while (stage_ != Stage::Listening && entry_rdma_get_cm_event(events_.get(), &event) == 0) {
    const rdma_cm_event_type kind = event->event;
    const int status = event->status;
    const std::vector<std::byte> bytes =
        kind == RDMA_CM_EVENT_ESTABLISHED ? private_bytes(*event) : std::vector<std::byte>{};
    entry_rdma_ack_cm_event(event);
    on_news(kind, status, bytes);
    wake_sleepers();
  }
}

void StreamSocket::on_news(rdma_cm_event_type event, int status,
                           std::span<const std::byte> greeting) {
  switch (event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (const auto done = resolve_route(); !done) fail(done.error().code);
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (const auto done = say_hello(); !done) fail(done.error().code);
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (stage_ == Stage::Connecting) {
        const auto peer = rsocket::parse_greeting(greeting);
        if (!peer) return fail(EPROTO);
        stream_->begin(*peer);
      }
      stage_ = Stage::Connected;
      look_after();
      return;
    case RDMA_CM_EVENT_DISCONNECTED:
      look_after();  // what came before
      if (stream_) stream_->on_gone();
      return;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      if (stream_) stream_->on_failure();
      return is_opening() ? fail(ENODEV) : void();
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
      return fail(errno_of_news(event, status));
    default:
      return;
  }
}

void StreamSocket::fail(int error) {
  stage_ = Stage::Refused;
  error_ = error;
  if (stream_) stream_->on_failure();
}

Outcome<void> StreamSocket::resolve_route() {
  if (!wishes_.route.empty() &&
      entry_rdma_set_option(id_.get(), RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, wishes_.route.data(),
                            wishes_.route.size()) == 0)
    return {};
  if (entry_rdma_resolve_route(id_.get(), kResolveMs) != 0) return Errno{errno};
  return {};
}

Outcome<void> StreamSocket::open_queue_pair() {
  using Done = Outcome<void>;
  ibv_device_attr device{};
  if (const int error = ::ibv_query_device(id_->verbs, &device); error != 0) return Errno{error};
  rsocket::StreamShape shape = wishes_.shape;
  const auto requests = static_cast<std::uint32_t>(std::min(device.max_qp_wr, device.max_cqe / 2));
  shape.sends = std::min(shape.sends, requests);
  shape.receives = std::min(shape.receives, requests);
  wishes_.shape = shape = rsocket::possible_shape(shape);

  ibv_pd* const domain = ::ibv_alloc_pd(id_->verbs);
  if (domain == nullptr) return Errno{errno};
  memory_domain_.reset(domain);
  const unsigned reached = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (const Done done = send_ring_.open(domain, shape.send_bytes, 0); !done) return done.error();
  if (const Done done = receive_ring_.open(domain, shape.receive_bytes, reached); !done)
    return done.error();
  if (const Done done = list_.open(domain, rsocket::list_bytes(shape), reached); !done)
    return done.error();
  if (const Done done =
          completions_.open(id_->verbs, static_cast<int>(shape.sends + shape.receives));
      !done)
    return done.error();

  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_.queue();
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.cap = {
      .max_send_wr = shape.sends,
      .max_recv_wr = shape.receives,
      .max_send_sge = 2,
      .max_recv_sge = 1,
      .max_inline_data = std::max<std::uint32_t>(wishes_.inline_bytes, rsocket::kMappingBytes)};
  if (entry_rdma_create_qp(id_.get(), domain, &attributes) != 0) return Errno{errno};
  wishes_.inline_bytes = attributes.cap.max_inline_data;
  stream_.emplace(shape, rsocket::StreamMemory{.ring_address = receive_ring_.address(),
                                               .ring_key = receive_ring_.rkey(),
                                               .list = list_.bytes(),
                                               .list_address = list_.address(),
                                               .list_key = list_.rkey()});
  return post_receives(shape.receives);
}

Outcome<void> StreamSocket::say_hello() {
  if (const auto opened = open_queue_pair(); !opened) return opened.error();
  const auto greeting = rsocket::greeting_bytes(stream_->greeting());
  rdma_conn_param param = param_with(greeting);
  if (entry_rdma_connect(id_.get(), &param) != 0) return Errno{errno};
  stage_ = Stage::Connecting;
  return {};
}

Outcome<std::shared_ptr<Socket>> StreamSocket::accept() {
  for (;;) {
    const Nap nap;
    rdma_cm_event* event = nullptr;
    int error = 0;
    {
      const Lock lock(mutex_);
      if (stage_ != Stage::Listening || is_closed_) return Errno{EINVAL};
      if (entry_rdma_get_cm_event(events_.get(), &event) != 0) error = errno;
    }
    if (error == EAGAIN && !is_non_blocking()) {
      std::array<pollfd, 2> sources{{{events_->fd, POLLIN, 0}, {nap.fd(), POLLIN, 0}}};
      if (::poll(sources.data(), sources.size(), -1) < 0) return Errno{errno};
      continue;
    }
    if (error != 0) return Errno{error};
    auto accepted = answer(event);
    if (accepted) return std::shared_ptr<Socket>(*accepted);
    if (accepted.error().code != ECONNABORTED) return accepted.error();
  }
}

Outcome<std::shared_ptr<StreamSocket>> StreamSocket::answer(rdma_cm_event* event) {
  rdma_cm_id* const id = event->id;
  const bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
  const auto peer =
      rsocket::parse_greeting(is_request ? private_bytes(*event) : std::vector<std::byte>{});
  const rdma_conn_param asked = is_request ? event->param.conn : rdma_conn_param{};
  entry_rdma_ack_cm_event(event);
  if (!is_request) return Errno{ECONNABORTED};

  auto socket = with_channel(domain_);
  if (!socket || !peer) {
    entry_rdma_reject(id, nullptr, 0);
    entry_rdma_destroy_id(id);
    return socket ? Errno{ECONNABORTED} : socket.error();
  }
  StreamSocket& end = **socket;
  end.id_.reset(id);
  end.wishes_ = wishes_;
  const Lock lock(end.mutex_);
  Outcome<void> done{};
  if (entry_rdma_migrate_id(id, end.events_.get()) != 0) done = Errno{errno};
  if (done) done = end.open_queue_pair();
  if (!done) {
    entry_rdma_reject(id, nullptr, 0);
    return done.error();
  }
  end.stream_->begin(*peer);
  const auto greeting = rsocket::greeting_bytes(end.stream_->greeting());
  rdma_conn_param param = param_with(greeting);
  param.responder_resources = asked.responder_resources;
  param.initiator_depth = asked.initiator_depth;
  end.stage_ = Stage::Accepting;
  if (entry_rdma_accept(id, &param) != 0) return Errno{ECONNABORTED};
  end.apply_keepalive();
  return *socket;
}

}  // namespace softhca::abi
