// What the C programs of these tests share: a device with one completion queue, and RC queue pairs
// on it. Only the stock interface of libibverbs is used.
#pragma once
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

struct Device {
  struct ibv_context* context;
  struct ibv_pd* domain;
  struct ibv_comp_channel* channel;
  struct ibv_cq* queue;
  struct ibv_port_attr port;
  union ibv_gid gid;
};

// What a peer has to know of a queue pair.
struct Address {
  union ibv_gid gid;
  uint32_t qpn;
  uint32_t psn;
};

// How long a requester waits for its peer: (retries + 1) * 4.096 us * 2^timeout.
struct Patience {
  uint8_t timeout;
  uint8_t retries;
};

static inline struct Device open_first_device(int completions) {
  struct Device device;
  struct ibv_device** list = ibv_get_device_list(NULL);
  CHECK(list != NULL && list[0] != NULL);
  device.context = ibv_open_device(list[0]);
  CHECK(device.context != NULL);
  ibv_free_device_list(list);
  device.domain = ibv_alloc_pd(device.context);
  CHECK(device.domain != NULL);
  device.channel = ibv_create_comp_channel(device.context);
  CHECK(device.channel != NULL);
  device.queue = ibv_create_cq(device.context, completions, NULL, device.channel, 0);
  CHECK(device.queue != NULL);
  CHECK(ibv_query_port(device.context, 1, &device.port) == 0);
  CHECK(ibv_query_gid(device.context, 1, 0, &device.gid) == 0);
  return device;
}

static inline void close_device(struct Device* device) {
  CHECK(ibv_destroy_cq(device->queue) == 0);
  CHECK(ibv_destroy_comp_channel(device->channel) == 0);
  CHECK(ibv_dealloc_pd(device->domain) == 0);
  CHECK(ibv_close_device(device->context) == 0);
}

// In INIT: receives may be posted.
static inline struct ibv_qp* make_queue_pair(struct Device* device, uint32_t requests) {
  struct ibv_qp_init_attr wanted;
  memset(&wanted, 0, sizeof(wanted));
  wanted.send_cq = device->queue;
  wanted.recv_cq = device->queue;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = requests;
  wanted.cap.max_recv_wr = requests;
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  struct ibv_qp* pair = ibv_create_qp(device->domain, &wanted);
  CHECK(pair != NULL);
  struct ibv_qp_attr attributes;
  memset(&attributes, 0, sizeof(attributes));
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  CHECK(ibv_modify_qp(pair, &attributes,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  return pair;
}

static inline struct Address address_of(const struct Device* device, const struct ibv_qp* pair) {
  struct Address address;
  memset(&address, 0, sizeof(address));
  address.gid = device->gid;
  address.qpn = pair->qp_num;
  address.psn = (pair->qp_num * 2654435761u) & 0xffffff;
  return address;
}

// From INIT to RTS.
static inline void connect_queue_pair(const struct Device* device, struct ibv_qp* pair,
                                      const struct Address* peer, struct Patience patience) {
  struct ibv_qp_attr attributes;
  memset(&attributes, 0, sizeof(attributes));
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = device->port.active_mtu;
  attributes.dest_qp_num = peer->qpn;
  attributes.rq_psn = peer->psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = peer->gid;
  attributes.ah_attr.grh.hop_limit = 64;
  CHECK(ibv_modify_qp(pair, &attributes,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = patience.timeout;
  attributes.retry_cnt = patience.retries;
  attributes.rnr_retry = 7;
  attributes.sq_psn = address_of(device, pair).psn;
  attributes.max_rd_atomic = 1;
  CHECK(ibv_modify_qp(pair, &attributes,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

// What follows `state` in a sequence of numbers that look random (splitmix64).
static inline uint64_t next_number(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static inline void fill(unsigned char* bytes, size_t count, uint64_t seed) {
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = next_number(&seed);
    memcpy(bytes + at, &word, count - at < sizeof(word) ? count - at : sizeof(word));
  }
}

// True iff `fill` with this seed has made the bytes.
static inline int is_filled(const unsigned char* bytes, size_t count, uint64_t seed) {
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = next_number(&seed);
    if (memcmp(bytes + at, &word, count - at < sizeof(word) ? count - at : sizeof(word)) != 0)
      return 0;
  }
  return 1;
}
