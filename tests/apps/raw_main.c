// raw_main receive COUNT MAC PORT [VLAN]: a raw packet queue pair with a flow rule: frames to the
// address that are UDP to that port, with that VLAN tag. Sleeps on its completion channel. Prints
// "ready", then so many frames, in hexadecimal.
// raw_main send FRAME...: sends them, and prints "sent".
#include <arpa/inet.h>

#include "rc_end.h"

enum { kSlots = 16, kSlotBytes = 2048 };

struct Side {
  struct Device device;
  struct ibv_qp* pair;
  struct ibv_mr* region;
  unsigned char* memory;
};

static struct ibv_qp* make_raw_pair(struct Device* device) {
  struct ibv_qp_init_attr wanted;
  memset(&wanted, 0, sizeof(wanted));
  wanted.send_cq = wanted.recv_cq = device->queue;
  wanted.qp_type = IBV_QPT_RAW_PACKET;
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = kSlots;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  struct ibv_qp* pair = ibv_create_qp(device->domain, &wanted);
  CHECK(pair != NULL);
  struct ibv_qp_attr attributes;
  memset(&attributes, 0, sizeof(attributes));
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  CHECK(ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_PORT) == 0);
  attributes.qp_state = IBV_QPS_RTR;
  CHECK(ibv_modify_qp(pair, &attributes, IBV_QP_STATE) == 0);
  attributes.qp_state = IBV_QPS_RTS;
  CHECK(ibv_modify_qp(pair, &attributes, IBV_QP_STATE) == 0);
  return pair;
}

static struct ibv_sge slot(const struct Side* side, uint64_t number, uint32_t bytes) {
  struct ibv_sge piece = {(uintptr_t)side->memory + number % kSlots * kSlotBytes, bytes,
                          side->region->lkey};
  return piece;
}

// The two digits of each byte; how many bytes.
static uint32_t parse_hex(const char* text, unsigned char* bytes, uint32_t room) {
  const size_t count = strlen(text) / 2;
  CHECK(count <= room);
  for (size_t i = 0; i < count; ++i) {
    unsigned value;
    CHECK(sscanf(text + 2 * i, "%2x", &value) == 1);
    bytes[i] = (unsigned char)value;
  }
  return (uint32_t)count;
}

static void send_frame(struct Side* side, const char* text) {
  struct ibv_sge piece = slot(side, 0, parse_hex(text, side->memory, kSlotBytes));
  struct ibv_send_wr request, *bad;
  memset(&request, 0, sizeof(request));
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  CHECK(ibv_post_send(side->pair, &request, &bad) == 0);
  struct ibv_wc done;
  while (ibv_poll_cq(side->device.queue, 1, &done) == 0) {
  }
  CHECK(done.status == IBV_WC_SUCCESS);
}

static struct ibv_flow* steer(struct Side* side, char** arguments) {
  struct {
    struct ibv_flow_attr attr;
    struct ibv_flow_spec_eth eth;
    struct ibv_flow_spec_tcp_udp udp;
  } rule;
  memset(&rule, 0, sizeof(rule));
  rule.attr.size = sizeof(rule);
  rule.attr.num_of_specs = 2;
  rule.attr.port = 1;
  rule.eth.type = IBV_FLOW_SPEC_ETH;
  rule.eth.size = sizeof(rule.eth);
  CHECK(parse_hex(arguments[0], rule.eth.val.dst_mac, 6) == 6);
  memset(rule.eth.mask.dst_mac, 0xff, 6);
  if (arguments[2] != NULL) {
    rule.eth.val.vlan_tag = htons((uint16_t)atoi(arguments[2]));
    rule.eth.mask.vlan_tag = htons(0xfff);
  }
  rule.udp.type = IBV_FLOW_SPEC_UDP;
  rule.udp.size = sizeof(rule.udp);
  rule.udp.val.dst_port = htons((uint16_t)atoi(arguments[1]));
  rule.udp.mask.dst_port = 0xffff;
  return ibv_create_flow(side->pair, &rule.attr);
}

static void post_receive(struct Side* side, uint64_t number) {
  struct ibv_sge piece = slot(side, number, kSlotBytes);
  struct ibv_recv_wr request = {.wr_id = number, .sg_list = &piece, .num_sge = 1};
  struct ibv_recv_wr* bad;
  CHECK(ibv_post_recv(side->pair, &request, &bad) == 0);
}

static void wait_for_event(struct Side* side) {
  struct ibv_cq* queue;
  void* context;
  CHECK(ibv_get_cq_event(side->device.channel, &queue, &context) == 0);
  ibv_ack_cq_events(queue, 1);
  CHECK(ibv_req_notify_cq(queue, 0) == 0);
}

static void receive_frames(struct Side* side, int count, char** rule) {
  for (uint64_t i = 0; i < kSlots; ++i) post_receive(side, i);
  CHECK(ibv_req_notify_cq(side->device.queue, 0) == 0);
  struct ibv_flow* flow = steer(side, rule);
  CHECK(flow != NULL);
  puts("ready");
  fflush(stdout);
  while (count > 0) {
    wait_for_event(side);
    struct ibv_wc done;
    for (; count > 0 && ibv_poll_cq(side->device.queue, 1, &done) == 1; --count) {
      CHECK(done.status == IBV_WC_SUCCESS && done.opcode == IBV_WC_RECV);
      const struct ibv_sge piece = slot(side, done.wr_id, done.byte_len);
      for (uint32_t i = 0; i < piece.length; ++i)
        printf("%02x", ((const unsigned char*)(uintptr_t)piece.addr)[i]);
      puts("");
      post_receive(side, done.wr_id);
    }
  }
  CHECK(ibv_destroy_flow(flow) == 0);
}

int main(int argc, char** argv) {
  CHECK(argc >= 3);
  struct Side side;
  side.device = open_first_device(2 * kSlots);
  side.memory = calloc(kSlots, kSlotBytes);
  side.region =
      ibv_reg_mr(side.device.domain, side.memory, kSlots * kSlotBytes, IBV_ACCESS_LOCAL_WRITE);
  CHECK(side.memory != NULL && side.region != NULL);
  side.pair = make_raw_pair(&side.device);
  if (strcmp(argv[1], "receive") == 0) {
    CHECK(argc >= 5);
    receive_frames(&side, atoi(argv[2]), argv + 3);
  } else {
    for (int i = 2; i < argc; ++i) send_frame(&side, argv[i]);
    puts("sent");
  }
  CHECK(ibv_destroy_qp(side.pair) == 0);
  CHECK(ibv_dereg_mr(side.region) == 0);
  free(side.memory);
  close_device(&side.device);
  return 0;
}
