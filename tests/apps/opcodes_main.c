// opcodes_main GID-INDEX: every operation of RC, UC, UD and XRC between two queue pairs of this
// process, in messages of one, two and four packets, none of whole words; then what a responder
// refuses. Path MTU 256. Prints "through".
//
// With the plan of opcodes.sh the first RC_SEND_MIDDLE is lost and the first WRITE into the second
// region fails, so that each kind of NAK is among the answers.
#include <fcntl.h>

#include "rc_end.h"

enum { kBytes = 8192, kSend = 1, kReceive = 2, kAnyCompletion = kSend | kReceive };
enum { kRights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
static const uint32_t kSizes[] = {5, 256 + 6, 3 * 256 + 7};
static const uint32_t kQkey = 0x1234;

struct Ends {
  struct Device* device;
  enum ibv_qp_type type;
  struct ibv_qp *left, *right;  // requests go from left to right
  struct ibv_ah* handle;        // UD
  struct ibv_srq* queue;        // XRC
  struct ibv_xrcd* domain;
  uint32_t srqn;
};

static unsigned char memory[2][kBytes];
static struct ibv_mr* regions[2];
static uint8_t gid_index;

static struct ibv_qp* create(struct Ends* ends, enum ibv_qp_type type) {
  struct ibv_qp_init_attr_ex wanted;
  memset(&wanted, 0, sizeof(wanted));
  wanted.qp_type = type;
  wanted.comp_mask = type == IBV_QPT_XRC_RECV ? IBV_QP_INIT_ATTR_XRCD : IBV_QP_INIT_ATTR_PD;
  wanted.xrcd = ends->domain;
  wanted.pd = ends->device->domain;
  wanted.send_cq = wanted.recv_cq = ends->device->queue;
  wanted.cap.max_send_wr = wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_wr = wanted.cap.max_recv_sge = type != IBV_QPT_XRC_SEND;
  struct ibv_qp* pair = ibv_create_qp_ex(ends->device->context, &wanted);
  CHECK(pair != NULL);
  return pair;
}

static void modify(struct ibv_qp* pair, struct ibv_qp_attr* to, enum ibv_qp_state state, int mask) {
  to->qp_state = state;
  CHECK(ibv_modify_qp(pair, to, mask | IBV_QP_STATE) == 0);
}

static void connect_to(struct Ends* ends, struct ibv_qp* pair, uint32_t peer) {
  const enum ibv_qp_type type = pair->qp_type;
  const int is_reliable = type != IBV_QPT_UC && type != IBV_QPT_UD;
  struct ibv_qp_attr to;
  memset(&to, 0, sizeof(to));
  to.port_num = to.ah_attr.port_num = 1;
  to.qp_access_flags = type == IBV_QPT_UC ? IBV_ACCESS_REMOTE_WRITE : kRights;
  to.qkey = kQkey;
  to.path_mtu = IBV_MTU_256;
  to.dest_qp_num = peer;
  to.rq_psn = to.sq_psn = 0xfffffe;  // wraps
  to.ah_attr.is_global = 1;
  to.ah_attr.grh.dgid = ends->device->gid;
  to.ah_attr.grh.sgid_index = gid_index;
  to.max_rd_atomic = to.max_dest_rd_atomic = 4;
  to.min_rnr_timer = to.rnr_retry = 1;
  to.timeout = 14;
  to.retry_cnt = 6;
  const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (type == IBV_QPT_UD) {
    modify(pair, &to, IBV_QPS_INIT, init | IBV_QP_QKEY);
    modify(pair, &to, IBV_QPS_RTR, 0);
    modify(pair, &to, IBV_QPS_RTS, IBV_QP_SQ_PSN);
    if (ends->handle == NULL) ends->handle = ibv_create_ah(ends->device->domain, &to.ah_attr);
    CHECK(ends->handle != NULL);
    return;
  }
  const int receiver = is_reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
  const int sender =
      is_reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                  : 0;
  modify(pair, &to, IBV_QPS_INIT, init | IBV_QP_ACCESS_FLAGS);
  modify(pair, &to, IBV_QPS_RTR,
         IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | receiver);
  modify(pair, &to, IBV_QPS_RTS, IBV_QP_SQ_PSN | sender);
}

static void open_queue(struct Ends* ends) {
  struct ibv_xrcd_init_attr domain = {
      .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
  ends->domain = ibv_open_xrcd(ends->device->context, &domain);
  CHECK(ends->domain != NULL);
  struct ibv_srq_init_attr_ex queue;
  memset(&queue, 0, sizeof(queue));
  queue.attr.max_wr = queue.attr.max_sge = 1;
  queue.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  queue.srq_type = IBV_SRQT_XRC;
  queue.pd = ends->device->domain;
  queue.xrcd = ends->domain;
  queue.cq = ends->device->queue;
  ends->queue = ibv_create_srq_ex(ends->device->context, &queue);
  CHECK(ends->queue != NULL && ibv_get_srq_num(ends->queue, &ends->srqn) == 0);
}

static struct Ends connected(struct Device* device, enum ibv_qp_type type) {
  struct Ends ends = {.device = device, .type = type};
  if (type == IBV_QPT_XRC_SEND) open_queue(&ends);
  ends.left = create(&ends, type);
  ends.right = create(&ends, type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : type);
  connect_to(&ends, ends.right, ends.left->qp_num);
  connect_to(&ends, ends.left, ends.right->qp_num);
  return ends;
}

static void destroy(struct Ends* ends) {
  CHECK(ends->handle == NULL || ibv_destroy_ah(ends->handle) == 0);
  CHECK(ibv_destroy_qp(ends->left) == 0 && ibv_destroy_qp(ends->right) == 0);
  CHECK(ends->queue == NULL || ibv_destroy_srq(ends->queue) == 0);
  CHECK(ends->domain == NULL || ibv_close_xrcd(ends->domain) == 0);
}

static void receive(struct Ends* ends, uint32_t bytes) {
  struct ibv_sge piece = {(uintptr_t)memory[0] + kBytes / 2, bytes, regions[0]->lkey};
  struct ibv_recv_wr request = {.wr_id = kReceive, .sg_list = &piece, .num_sge = 1}, *bad;
  CHECK((ends->queue != NULL ? ibv_post_srq_recv(ends->queue, &request, &bad)
                             : ibv_post_recv(ends->right, &request, &bad)) == 0);
}

// Until the queue has completed these of kSend and kReceive; what it said of the sends.
static enum ibv_wc_status await(struct Ends* ends, int which) {
  enum ibv_wc_status status = IBV_WC_SUCCESS;
  while (which != 0) {
    struct ibv_wc done;
    if (ibv_poll_cq(ends->device->queue, 1, &done) != 1) continue;
    if (done.wr_id == kSend) status = done.status;
    which &= ~(int)done.wr_id;
  }
  return status;
}

static struct ibv_send_wr request_for(const struct Ends* ends, enum ibv_wr_opcode opcode,
                                      const struct ibv_mr* to) {
  struct ibv_send_wr request;
  memset(&request, 0, sizeof(request));
  request.wr_id = kSend;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  request.imm_data = 0x04030201;
  request.qp_type.xrc.remote_srqn = ends->srqn;
  if (ends->type == IBV_QPT_UD) {
    request.wr.ud.ah = ends->handle;
    request.wr.ud.remote_qpn = ends->right->qp_num;
    request.wr.ud.remote_qkey = kQkey;
  } else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.wr.atomic.remote_addr = (uintptr_t)to->addr;
    request.wr.atomic.rkey = to->rkey;
    request.wr.atomic.compare_add = 0x1122334455667788;
    request.wr.atomic.swap = 0x99aabbccddeeff00;
  } else {
    request.wr.rdma.remote_addr = (uintptr_t)to->addr;
    request.wr.rdma.rkey = to->rkey;
  }
  return request;
}

static void post(struct Ends* ends, struct ibv_send_wr request, uint32_t bytes) {
  struct ibv_sge piece = {(uintptr_t)memory[0] + kBytes / 4, bytes, regions[0]->lkey};
  struct ibv_send_wr* bad;
  request.sg_list = &piece;
  CHECK(ibv_post_send(ends->left, &request, &bad) == 0);
}

static void succeed(struct Ends* ends, enum ibv_wr_opcode opcode, uint32_t bytes) {
  const int is_received = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
                          opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (is_received) receive(ends, kBytes / 4);
  post(ends, request_for(ends, opcode, regions[0]), bytes);
  CHECK(await(ends, is_received ? kAnyCompletion : kSend) == IBV_WC_SUCCESS);
}

static void all_operations(struct Device* device, enum ibv_qp_type type) {
  static const enum ibv_wr_opcode kOpcodes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
                                                IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                                IBV_WR_RDMA_READ};
  struct Ends ends = connected(device, type);
  const int opcodes = type == IBV_QPT_UD ? 2 : type == IBV_QPT_UC ? 4 : 5;
  for (int i = 0; i < opcodes; ++i)
    for (int k = 0; k < (type == IBV_QPT_UD ? 1 : 3); ++k) succeed(&ends, kOpcodes[i], kSizes[k]);
  if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND) {
    succeed(&ends, IBV_WR_ATOMIC_CMP_AND_SWP, 8);
    succeed(&ends, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
  }
  if (type == IBV_QPT_RC) succeed(&ends, IBV_WR_ATOMIC_WRITE, 8);
  destroy(&ends);
}

// On a connection of its own, which ends with it.
static void fail(struct Device* device, enum ibv_qp_type type, enum ibv_wr_opcode opcode,
                 uint32_t bytes, uint32_t receive_bytes, const struct ibv_mr* to,
                 enum ibv_wc_status status) {
  struct Ends ends = connected(device, type);
  if (receive_bytes != 0) receive(&ends, receive_bytes);
  struct ibv_send_wr request = request_for(&ends, opcode, to);
  if (opcode == IBV_WR_SEND_WITH_INV) request.invalidate_rkey = to->rkey;
  post(&ends, request, bytes);
  CHECK(await(&ends, receive_bytes != 0 ? kAnyCompletion : kSend) == status);
  destroy(&ends);
}

static void invalidate_windows(struct Device* device) {
  for (int k = 0; k < 2; ++k) {
    struct Ends ends = connected(device, IBV_QPT_RC);
    struct ibv_mw* window = ibv_alloc_mw(device->domain, IBV_MW_TYPE_2);
    CHECK(window != NULL);
    struct ibv_send_wr bind, *bad;
    memset(&bind, 0, sizeof(bind));
    bind.wr_id = kSend;
    bind.opcode = IBV_WR_BIND_MW;
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_mw.mw = window;
    bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    bind.bind_mw.bind_info.mr = regions[0];
    bind.bind_mw.bind_info.addr = (uintptr_t)memory[0];
    bind.bind_mw.bind_info.length = 64;
    bind.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
    CHECK(ibv_post_send(ends.right, &bind, &bad) == 0);
    CHECK(await(&ends, kSend) == IBV_WC_SUCCESS);
    receive(&ends, kBytes / 4);
    struct ibv_send_wr request = request_for(&ends, IBV_WR_SEND_WITH_INV, regions[0]);
    request.invalidate_rkey = bind.bind_mw.rkey;
    post(&ends, request, kSizes[k]);
    CHECK(await(&ends, kAnyCompletion) == IBV_WC_SUCCESS);
    destroy(&ends);
    CHECK(ibv_dealloc_mw(window) == 0);
  }
}

int main(int count, char** arguments) {
  CHECK(count == 2);
  gid_index = (uint8_t)atoi(arguments[1]);
  struct Device device = open_first_device(16);
  CHECK(ibv_query_gid(device.context, 1, gid_index, &device.gid) == 0);
  for (int i = 0; i < 2; ++i) {
    memset(memory[i], 'a' + i, kBytes);
    regions[i] = ibv_reg_mr(device.domain, memory[i], kBytes,
                            kRights | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    CHECK(regions[i] != NULL);
  }
  all_operations(&device, IBV_QPT_RC);
  all_operations(&device, IBV_QPT_UC);
  all_operations(&device, IBV_QPT_UD);
  all_operations(&device, IBV_QPT_XRC_SEND);
  invalidate_windows(&device);

  const struct ibv_mr* const region = regions[0];
  struct ibv_mr stranger = *region;
  stranger.rkey ^= 0xff00;
  fail(&device, IBV_QPT_RC, IBV_WR_RDMA_WRITE, 5, 0, &stranger, IBV_WC_REM_ACCESS_ERR);
  fail(&device, IBV_QPT_RC, IBV_WR_SEND, 300, 64, region, IBV_WC_REM_INV_REQ_ERR);
  fail(&device, IBV_QPT_RC, IBV_WR_RDMA_WRITE, 5, 0, regions[1], IBV_WC_REM_OP_ERR);
  fail(&device, IBV_QPT_RC, IBV_WR_SEND, 5, 0, region, IBV_WC_RNR_RETRY_EXC_ERR);
  // A target of XRC can bind no window, so there is no key that may be ended by it.
  for (int k = 0; k < 2; ++k)
    fail(&device, IBV_QPT_XRC_SEND, IBV_WR_SEND_WITH_INV, kSizes[k], kBytes / 4, region,
         IBV_WC_REM_ACCESS_ERR);
  for (int i = 0; i < 2; ++i) CHECK(ibv_dereg_mr(regions[i]) == 0);
  close_device(&device);
  puts("through");
  return 0;
}
