// What programs of rdma_cm set up again and again: a channel whose events come one by one, a
// listener, a client on its way to it, a connection.
#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace cm_test {

inline sockaddr_in loopback(__be16 port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}
inline sockaddr* plain(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

// An event that is acknowledged when it goes.
struct Acknowledge {
  void operator()(rdma_cm_event* event) const { EXPECT_EQ(rdma_ack_cm_event(event), 0); }
};
using Event = std::unique_ptr<rdma_cm_event, Acknowledge>;

class Channel {
 public:
  Channel() : channel_(rdma_create_event_channel()) { EXPECT_NE(channel_, nullptr); }
  ~Channel() { rdma_destroy_event_channel(channel_); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  rdma_event_channel* get() { return channel_; }
  bool is_readable(int timeout_ms = 0) {
    pollfd ready{channel_->fd, POLLIN, 0};
    return ::poll(&ready, 1, timeout_ms) == 1;
  }
  // The next one; null after ten seconds.
  Event next() {
    rdma_cm_event* event = nullptr;
    if (!is_readable(10'000) || rdma_get_cm_event(channel_, &event) != 0) event = nullptr;
    return Event(event);
  }
  // The next one, which has to be this.
  Event next(rdma_cm_event_type wanted) {
    Event event = next();
    EXPECT_NE(event, nullptr) << rdma_event_str(wanted);
    if (event) {
      EXPECT_STREQ(rdma_event_str(event->event), rdma_event_str(wanted)) << event->status;
    }
    return event;
  }

 private:
  rdma_event_channel* channel_;
};

// An id that goes with its queue pair.
struct Destroy {
  void operator()(rdma_cm_id* id) const {
    rdma_destroy_qp(id);
    EXPECT_EQ(rdma_destroy_id(id), 0);
  }
};
using Id = std::unique_ptr<rdma_cm_id, Destroy>;

inline Id make_id(rdma_event_channel* channel, rdma_port_space ps = RDMA_PS_TCP,
                  void* context = nullptr) {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel, &id, context, ps), 0);
  return Id(id);
}

inline ibv_qp_init_attr queue_pair(ibv_qp_type type = IBV_QPT_RC) {
  ibv_qp_init_attr wanted{};
  wanted.qp_type = type;
  wanted.cap = {8, 8, 1, 1, 16};
  wanted.sq_sig_all = 1;
  return wanted;
}
inline int add_qp(rdma_cm_id* id, ibv_qp_type type = IBV_QPT_RC) {
  ibv_qp_init_attr wanted = queue_pair(type);
  return rdma_create_qp(id, nullptr, &wanted);
}

inline Id listener_on(Channel& channel, rdma_port_space ps = RDMA_PS_TCP, int backlog = 8,
                      void* context = nullptr) {
  Id id = make_id(channel.get(), ps, context);
  sockaddr_in any = loopback();
  EXPECT_EQ(rdma_bind_addr(id.get(), plain(any)), 0);
  EXPECT_EQ(rdma_listen(id.get(), backlog), 0);
  return id;
}

// An id that may connect to the port.
inline Id routed(Channel& channel, __be16 port, rdma_port_space ps = RDMA_PS_TCP) {
  Id id = make_id(channel.get(), ps);
  sockaddr_in to = loopback(port);
  EXPECT_EQ(rdma_resolve_addr(id.get(), nullptr, plain(to), 2000), 0);
  EXPECT_EQ(channel.next(RDMA_CM_EVENT_ADDR_RESOLVED)->id, id.get());
  EXPECT_EQ(rdma_resolve_route(id.get(), 2000), 0);
  channel.next(RDMA_CM_EVENT_ROUTE_RESOLVED);
  return id;
}

inline rdma_conn_param parameters(const void* bytes = nullptr, std::size_t length = 0) {
  rdma_conn_param wanted{};
  wanted.private_data = bytes;
  wanted.private_data_len = static_cast<std::uint8_t>(length);
  wanted.responder_resources = 3;
  wanted.initiator_depth = 4;
  wanted.retry_count = 5;
  wanted.rnr_retry_count = 6;
  return wanted;
}

inline std::vector<unsigned char> counted_bytes(std::size_t length) {
  std::vector<unsigned char> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<unsigned char>(i + 1);
  return bytes;
}
inline bool begins_with(const void* bytes, const std::vector<unsigned char>& wanted) {
  const auto* const first = static_cast<const unsigned char*>(bytes);
  return bytes != nullptr && std::equal(wanted.begin(), wanted.end(), first);
}

// Two ids that are connected, each with a queue pair, over a channel of its own.
struct Connection {
  Connection() : listener(listener_on(passive)) {
    client = routed(active, rdma_get_src_port(listener.get()));
    EXPECT_EQ(add_qp(client.get()), 0);
    rdma_conn_param wanted = parameters();
    EXPECT_EQ(rdma_connect(client.get(), &wanted), 0);
    const Event request = passive.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    if (!request) return;
    server.reset(request->id);
    EXPECT_EQ(add_qp(server.get()), 0);
    EXPECT_EQ(rdma_accept(server.get(), &wanted), 0);
    active.next(RDMA_CM_EVENT_ESTABLISHED);
    passive.next(RDMA_CM_EVENT_ESTABLISHED);
  }

  Channel active, passive;
  Id listener, client, server;
};

inline ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  EXPECT_EQ(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &initial), 0);
  return attributes.qp_state;
}

}  // namespace cm_test
