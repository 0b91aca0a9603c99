#include "abi/rsocket/datagram_port.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "abi/rsocket/endpoint.h"
#include "abi/rsocket/rdma_calls.h"

namespace softhca::abi {
namespace {

constexpr std::uint32_t kRouteBytes = sizeof(ibv_grh);
constexpr std::uint64_t kReceiveFlag = std::uint64_t{1}
                                       << 32;  // of a work request; below, its slot
constexpr std::uint8_t kHops = 64;
constexpr int kResolveMs = 2000;

}  // namespace

DatagramPort::~DatagramPort() {
  if (id_ && id_->qp != nullptr) entry_rdma_destroy_qp(id_.get());
}

Outcome<std::unique_ptr<DatagramPort>> DatagramPort::open(const rsocket::Endpoint& local,
                                                          Shape shape) {
  std::unique_ptr<DatagramPort> port(new DatagramPort(local, shape));
  if (const auto done = port->open_id(); !done) return done.error();
  if (const auto done = port->open_queue_pair(); !done) return done.error();
  for (std::uint32_t slot = 0; slot < shape.receives; ++slot)
    if (const auto done = port->post_receive(slot); !done) return done.error();
  for (std::uint32_t slot = 0; slot < shape.sends; ++slot) port->free_sends_.push_back(slot);
  return port;
}

Outcome<void> DatagramPort::open_id() {
  events_.reset(entry_rdma_create_event_channel());
  if (!events_) return Errno{errno};
  rdma_cm_id* id = nullptr;
  if (entry_rdma_create_id(events_.get(), &id, nullptr, RDMA_PS_UDP) != 0) return Errno{errno};
  id_.reset(id);
  rsocket::Endpoint any_port = local_;
  any_port.port = 0;
  sockaddr_storage address = abi::address_of(any_port);
  auto* const own = reinterpret_cast<sockaddr*>(&address);
  if (entry_rdma_bind_addr(id, own) != 0) return Errno{errno};
  if (id->verbs != nullptr) return {};
  // Of 127.0.0.1 only a way to it has a device.
  rdma_cm_event* event = nullptr;
  if (entry_rdma_resolve_addr(id, nullptr, own, kResolveMs) != 0 ||
      entry_rdma_get_cm_event(events_.get(), &event) != 0)
    return Errno{errno};
  entry_rdma_ack_cm_event(event);
  return id->verbs != nullptr ? Outcome<void>{} : Errno{ENODEV};
}

Outcome<void> DatagramPort::open_queue_pair() {
  ibv_port_attr port{};
  if (const int error = ::ibv_query_port(id_->verbs, id_->port_num, &port); error != 0)
    return Errno{error};
  mtu_bytes_ = 128u << port.active_mtu;
  const ibv_gid local = gid_of(local_);
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    ibv_gid gid{};
    if (::ibv_query_gid(id_->verbs, id_->port_num, index, &gid) != 0) continue;
    if (std::memcmp(&gid, &local, sizeof gid) != 0) continue;
    gid_index_ = static_cast<std::uint8_t>(index);
    break;
  }
  ibv_pd* const domain = ::ibv_alloc_pd(id_->verbs);
  if (domain == nullptr) return Errno{errno};
  domain_.reset(domain);
  if (const auto done = sends_.open(domain, std::size_t{shape_.sends} * kSlotBytes, 0); !done)
    return done;
  const std::size_t received = std::size_t{shape_.receives} * kSlotBytes + kRouteBytes;
  if (const auto done = receives_.open(domain, received, IBV_ACCESS_LOCAL_WRITE); !done)
    return done;
  if (const auto done =
          completions_.open(id_->verbs, static_cast<int>(shape_.sends + shape_.receives));
      !done)
    return done;

  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_.queue();
  attributes.qp_type = IBV_QPT_UD;
  attributes.sq_sig_all = 1;
  attributes.cap = {.max_send_wr = shape_.sends,
                    .max_recv_wr = shape_.receives,
                    .max_send_sge = 1,
                    .max_recv_sge = 2,
                    .max_inline_data = shape_.inline_bytes};
  if (entry_rdma_create_qp(id_.get(), domain, &attributes) != 0) return Errno{errno};
  shape_.inline_bytes = attributes.cap.max_inline_data;
  return {};
}

std::size_t DatagramPort::bytes_at_most() const {
  return std::min(mtu_bytes_, std::uint32_t{kSlotBytes}) - rsocket::kSourceBytesMax;
}

Outcome<PeerAddress> DatagramPort::address_of_peer(const rsocket::Endpoint& peer) {
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  attributes.port_num = id_->port_num;
  attributes.grh.dgid = gid_of(peer);
  attributes.grh.sgid_index = gid_index_;
  attributes.grh.hop_limit = kHops;
  ibv_ah* const address = ::ibv_create_ah(domain_.get(), &attributes);
  if (address == nullptr) return Errno{errno};
  return PeerAddress(address, ::ibv_destroy_ah);
}

Outcome<void> DatagramPort::post_receive(std::uint32_t slot) {
  const std::uint64_t route = receives_.address() + std::uint64_t{shape_.receives} * kSlotBytes;
  std::array<ibv_sge, 2> parts{
      {{route, kRouteBytes, receives_.lkey()},
       {receives_.address() + std::uint64_t{slot} * kSlotBytes, kSlotBytes, receives_.lkey()}}};
  ibv_recv_wr request{
      .wr_id = kReceiveFlag | slot, .next = nullptr, .sg_list = parts.data(), .num_sge = 2};
  ibv_recv_wr* bad = nullptr;
  const int error = ::ibv_post_recv(id_->qp, &request, &bad);
  return error == 0 ? Outcome<void>{} : Errno{error};
}

std::optional<PortDatagram> DatagramPort::poll() {
  ibv_wc wc;
  while (::ibv_poll_cq(completions_.queue(), 1, &wc) > 0) {
    const auto slot = static_cast<std::uint32_t>(wc.wr_id);
    if ((wc.wr_id & kReceiveFlag) == 0) {
      free_sends_.push_back(slot);
      continue;
    }
    if (wc.status != IBV_WC_SUCCESS || wc.byte_len < kRouteBytes) continue;
    const auto all =
        receives_.bytes().subspan(std::size_t{slot} * kSlotBytes, wc.byte_len - kRouteBytes);
    if (const auto source = rsocket::parse_source(all))
      return PortDatagram{slot, source->endpoint, all.subspan(source->bytes)};
    if (!post_receive(slot)) continue;  // of nobody who speaks so
  }
  return {};
}

Outcome<void> DatagramPort::send(Parts parts, ibv_ah* to, std::uint32_t qpn) {
  const std::uint32_t slot = free_sends_.back();
  const auto memory = sends_.bytes().subspan(std::size_t{slot} * kSlotBytes, kSlotBytes);
  const std::size_t head = rsocket::store_source(memory.first<rsocket::kSourceBytesMax>(), local_);
  const std::size_t bytes = total_bytes(parts);
  PartCursor(parts).copy_out(memory.subspan(head, bytes));
  ibv_sge part{reinterpret_cast<std::uintptr_t>(memory.data()),
               static_cast<std::uint32_t>(head + bytes), sends_.lkey()};
  ibv_send_wr request{};
  request.wr_id = slot;
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = part.length <= shape_.inline_bytes ? unsigned{IBV_SEND_INLINE} : 0;
  request.wr.ud = {.ah = to, .remote_qpn = qpn, .remote_qkey = RDMA_UDP_QKEY};
  ibv_send_wr* bad = nullptr;
  const int error = ::ibv_post_send(id_->qp, &request, &bad);
  if (error != 0) return Errno{error};
  free_sends_.pop_back();
  return {};
}

}  // namespace softhca::abi
