// crowd_main COUNT ROUNDS poll|events: COUNT processes, each with a queue pair to every other one.
//
// In each round a process WRITEs to every peer and then SENDs to it; whoever receives the SEND
// checks both. Contents come from (from, to, round), sizes from the round. A peer's round r is
// answered with round r + 1, so two slots in each direction are enough: when round r + 1 is
// written, the peer has looked at r - 1, whose slot it takes.
//
// Ends with 0 when every process has seen everything; prints how many messages were checked.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_end.h"

enum { kMostProcesses = 64, kSlotBytes = 16384, kNoteBytes = 256, kSlots = 2 };

static const uint32_t kSizes[] = {1, 1023, 4096, 4097, 10000, kSlotBytes};

// What lies in the region of a member for each peer.
struct Lane {
  unsigned char landing[kSlots][kSlotBytes];   // the peer WRITEs here
  unsigned char outgoing[kSlots][kSlotBytes];  // WRITTEN to the peer
  unsigned char received[kSlots][kNoteBytes];
  unsigned char note[kSlots][kNoteBytes];
};

struct Place {
  struct Address queue_pair;
  uint64_t lane;  // where the peer's part of the region lies
  uint32_t rkey;
  uint32_t unused;
};

struct Peer {
  struct ibv_qp* pair;
  struct Lane* lane;
  struct Place remote;
  uint32_t sent;       // rounds posted
  uint32_t completed;  // rounds whose SEND has completed
  uint32_t checked;    // rounds received
};

struct Member {
  struct Device device;
  struct ibv_mr* region;
  struct Lane* lanes;
  struct Peer peers[kMostProcesses];
  uint32_t self, count, rounds;
};

static uint64_t seed_of(uint32_t from, uint32_t to, uint32_t round, int is_note) {
  return ((uint64_t)from << 48) | ((uint64_t)to << 32) | ((uint64_t)round << 1) | (uint64_t)is_note;
}
static uint32_t size_of(uint32_t round) {
  return kSizes[round % (sizeof(kSizes) / sizeof(kSizes[0]))];
}

static void write_all(int fd, const void* bytes, size_t count) {
  CHECK(write(fd, bytes, count) == (ssize_t)count);
}
static void read_all(int fd, void* bytes, size_t count) {
  for (size_t at = 0; at < count;) {
    const ssize_t got = read(fd, (char*)bytes + at, count - at);
    CHECK(got > 0);
    at += (size_t)got;
  }
}

static void post_receive(struct Member* me, uint32_t peer, uint32_t round) {
  unsigned char* const room = me->peers[peer].lane->received[round % kSlots];
  struct ibv_sge piece = {(uintptr_t)room, kNoteBytes, me->region->lkey};
  struct ibv_recv_wr request = {.wr_id = peer, .sg_list = &piece, .num_sge = 1};
  struct ibv_recv_wr* bad;
  CHECK(ibv_post_recv(me->peers[peer].pair, &request, &bad) == 0);
}

static void post_round(struct Member* me, uint32_t to) {
  struct Peer* peer = &me->peers[to];
  const uint32_t round = peer->sent++;
  const uint32_t slot = round % kSlots;
  unsigned char* const bytes = peer->lane->outgoing[slot];
  unsigned char* const note = peer->lane->note[slot];
  fill(bytes, size_of(round), seed_of(me->self, to, round, 0));
  fill(note, kNoteBytes, seed_of(me->self, to, round, 1));
  struct ibv_sge pieces[2] = {{(uintptr_t)bytes, size_of(round), me->region->lkey},
                              {(uintptr_t)note, kNoteBytes, me->region->lkey}};
  struct ibv_send_wr requests[2];
  memset(requests, 0, sizeof(requests));
  requests[0].next = &requests[1];
  requests[0].sg_list = &pieces[0];
  requests[0].num_sge = 1;
  requests[0].opcode = IBV_WR_RDMA_WRITE;
  requests[0].wr.rdma.remote_addr = peer->remote.lane + slot * kSlotBytes;
  requests[0].wr.rdma.rkey = peer->remote.rkey;
  requests[1].wr_id = to;
  requests[1].sg_list = &pieces[1];
  requests[1].num_sge = 1;
  requests[1].opcode = IBV_WR_SEND;
  requests[1].send_flags = IBV_SEND_SIGNALED;
  struct ibv_send_wr* bad;
  CHECK(ibv_post_send(peer->pair, requests, &bad) == 0);
}

// Posts the rounds that are due: the peer's last one has come, and the slot is free.
static void advance(struct Member* me, uint32_t to) {
  struct Peer* peer = &me->peers[to];
  while (peer->sent < me->rounds && peer->sent <= peer->checked &&
         peer->sent < peer->completed + kSlots)
    post_round(me, to);
}

static void on_completion(struct Member* me, const struct ibv_wc* wc) {
  const uint32_t from = (uint32_t)wc->wr_id;
  struct Peer* peer = &me->peers[from];
  if (wc->status != IBV_WC_SUCCESS) {
    fprintf(stderr, "process %u, peer %u: %s (vendor_err %u)\n", me->self, from,
            ibv_wc_status_str(wc->status), wc->vendor_err);
    exit(1);
  }
  if (wc->opcode == IBV_WC_SEND) {
    ++peer->completed;
  } else {
    const uint32_t round = peer->checked++;
    const uint32_t slot = round % kSlots;
    CHECK(wc->opcode == IBV_WC_RECV && wc->byte_len == kNoteBytes);
    CHECK(is_filled(peer->lane->received[slot], kNoteBytes, seed_of(from, me->self, round, 1)));
    CHECK(is_filled(peer->lane->landing[slot], size_of(round), seed_of(from, me->self, round, 0)));
    if (round + kSlots < me->rounds) post_receive(me, from, round + kSlots);
  }
  advance(me, from);
}

static int is_complete(const struct Member* me) {
  for (uint32_t i = 0; i < me->count; ++i) {
    const struct Peer* peer = &me->peers[i];
    if (i != me->self && (peer->completed < me->rounds || peer->checked < me->rounds)) return 0;
  }
  return 1;
}

static void run(struct Member* me, int with_events) {
  struct ibv_wc completions[16];
  for (uint32_t i = 0; i < me->count; ++i)
    if (i != me->self) advance(me, i);
  int is_armed = 0;
  while (!is_complete(me)) {
    const int got = ibv_poll_cq(me->device.queue, 16, completions);
    CHECK(got >= 0);
    for (int i = 0; i < got; ++i) on_completion(me, &completions[i]);
    if (got > 0 || !with_events) continue;
    if (!is_armed) {  // and look once more: a completion may have come before
      CHECK(ibv_req_notify_cq(me->device.queue, 0) == 0);
      is_armed = 1;
      continue;
    }
    struct ibv_cq* queue;
    void* unused;
    CHECK(ibv_get_cq_event(me->device.channel, &queue, &unused) == 0);
    ibv_ack_cq_events(queue, 1);
    is_armed = 0;
  }
}

static void set_up(struct Member* me, struct Place* mine) {
  const size_t bytes = me->count * sizeof(struct Lane);
  me->device = open_first_device((int)(me->count * 4 * kSlots));
  me->lanes = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  CHECK(me->lanes != NULL);
  memset(me->lanes, 0, bytes);
  me->region = ibv_reg_mr(me->device.domain, me->lanes, bytes,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  CHECK(me->region != NULL);
  for (uint32_t i = 0; i < me->count; ++i) {
    if (i == me->self) continue;
    me->peers[i].lane = &me->lanes[i];
    me->peers[i].pair = make_queue_pair(&me->device, 2 * kSlots);
    for (uint32_t round = 0; round < kSlots && round < me->rounds; ++round)
      post_receive(me, i, round);
    mine[i].queue_pair = address_of(&me->device, me->peers[i].pair);
    mine[i].lane = (uintptr_t)me->lanes[i].landing;
    mine[i].rkey = me->region->rkey;
  }
}

// One of the crowd. The parent at `fd` passes everybody's places to everybody, and is the barrier.
static void be_one(uint32_t self, uint32_t count, uint32_t rounds, int with_events, int fd) {
  static struct Member me;
  static struct Place mine[kMostProcesses], all[kMostProcesses][kMostProcesses];
  const struct Patience patience = {16, 7};
  char word = 0;
  me.self = self;
  me.count = count;
  me.rounds = rounds;
  set_up(&me, mine);
  write_all(fd, mine, sizeof(mine));
  read_all(fd, all, count * sizeof(all[0]));
  for (uint32_t i = 0; i < count; ++i) {
    if (i == self) continue;
    me.peers[i].remote = all[i][self];
    connect_queue_pair(&me.device, me.peers[i].pair, &me.peers[i].remote.queue_pair, patience);
  }
  write_all(fd, &word, 1);
  read_all(fd, &word, 1);  // everybody is connected
  run(&me, with_events);
  write_all(fd, &word, 1);
  read_all(fd, &word, 1);  // nobody needs an answer any more
  for (uint32_t i = 0; i < count; ++i)
    if (i != self) CHECK(ibv_destroy_qp(me.peers[i].pair) == 0);
  CHECK(ibv_dereg_mr(me.region) == 0);
  close_device(&me.device);
  free(me.lanes);
}

static int fds[kMostProcesses];

static void barrier(uint32_t count) {
  char word = 0;
  for (uint32_t i = 0; i < count; ++i) read_all(fds[i], &word, 1);
  for (uint32_t i = 0; i < count; ++i) write_all(fds[i], &word, 1);
}

int main(int argc, char** argv) {
  static struct Place all[kMostProcesses][kMostProcesses];
  CHECK(argc == 4);
  const uint32_t count = (uint32_t)atoi(argv[1]);
  const uint32_t rounds = (uint32_t)atoi(argv[2]);
  const int with_events = strcmp(argv[3], "events") == 0;
  CHECK(count >= 2 && count <= kMostProcesses && rounds > 0);
  for (uint32_t i = 0; i < count; ++i) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    fds[i] = ends[0];
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (uint32_t other = 0; other <= i; ++other) close(fds[other]);
      be_one(i, count, rounds, with_events, ends[1]);
      return 0;
    }
    close(ends[1]);
  }
  for (uint32_t i = 0; i < count; ++i) read_all(fds[i], all[i], sizeof(all[i]));
  for (uint32_t i = 0; i < count; ++i) write_all(fds[i], all, count * sizeof(all[0]));
  barrier(count);
  barrier(count);
  int failed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    int status = 0;
    CHECK(wait(&status) > 0);
    if (status != 0) ++failed;
  }
  printf("%u processes, %u messages checked, %d processes failed\n", count,
         count * (count - 1) * rounds * 2, failed);
  return failed == 0 ? 0 : 1;
}
