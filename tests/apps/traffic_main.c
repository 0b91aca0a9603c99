// traffic_main -p PORT [-s SIZE] [-w WINDOW] [-t TIMEOUT] [-r RETRIES] [-e] [-x] [SERVER]: messages
// in both directions, as many at once as the window allows, contents checked, until either side
// gets SIGTERM. Each side always has sends outstanding, so each is due an error if its peer dies.
//
// stdout  "connected", "flowing" (after a hundred messages), "N sent, M received, all as sent"
// status  0 ended as asked; 3 the connection was lost: stderr says how; 1 anything else
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rc_end.h"

enum { kLost = 3, kFlowing = 100, kLookEveryMs = 50 };

struct Settings {
  uint16_t port;
  uint32_t bytes;
  uint32_t window;
  struct Patience patience;
  int with_events;
  int misses;          // names a queue pair that the peer does not have
  const char* server;  // NULL: this is the server
};

struct Note {
  uint64_t number;
  uint64_t is_last;
};

struct Side {
  struct Settings settings;
  struct Device device;
  struct ibv_qp* pair;
  struct ibv_mr* region;
  unsigned char* memory;  // a window of messages to send, then a window of messages received
  int peer;               // TCP
  uint64_t sent, completed, received;
  int is_ending;  // no message follows the one that says so
  int has_sent_last, has_received_last;
};

static volatile sig_atomic_t is_asked_to_end;
static void on_signal(int number) {
  (void)number;
  is_asked_to_end = 1;
}

static int meet(const struct Settings* settings) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  struct sockaddr_in where;
  memset(&where, 0, sizeof(where));
  where.sin_family = AF_INET;
  where.sin_port = htons(settings->port);
  where.sin_addr.s_addr = htonl(INADDR_ANY);
  CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
  if (settings->server != NULL) {
    CHECK(inet_pton(AF_INET, settings->server, &where.sin_addr) == 1);
    CHECK(connect(fd, (struct sockaddr*)&where, sizeof(where)) == 0);
    return fd;
  }
  CHECK(bind(fd, (struct sockaddr*)&where, sizeof(where)) == 0 && listen(fd, 1) == 0);
  const int peer = accept(fd, NULL, NULL);
  CHECK(peer >= 0 && close(fd) == 0);
  return peer;
}

// False if the peer has gone. A signal does not end the wait: the peer answers or goes.
static int read_all(int fd, void* bytes, size_t count) {
  for (size_t at = 0; at < count;) {
    const ssize_t got = read(fd, (char*)bytes + at, count - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    at += (size_t)got;
  }
  return 1;
}

// Tells the peer, and waits for it to say as much.
static int barrier(int fd) {
  char word = 0;
  return send(fd, &word, 1, MSG_NOSIGNAL) == 1 && read_all(fd, &word, 1);
}

static struct ibv_sge slot_of(const struct Side* side, uint64_t number, int is_received) {
  const uint64_t slot = number % side->settings.window + (is_received ? side->settings.window : 0);
  struct ibv_sge piece = {(uintptr_t)side->memory + slot * side->settings.bytes,
                          side->settings.bytes, side->region->lkey};
  return piece;
}

static uint64_t seed_of(uint64_t number, int is_from_server) {
  return number << 1 | (uint64_t)is_from_server;
}

static void post_receive(struct Side* side, uint64_t number) {
  struct ibv_sge piece = slot_of(side, number, 1);
  struct ibv_recv_wr request = {.wr_id = number, .sg_list = &piece, .num_sge = 1};
  struct ibv_recv_wr* bad;
  CHECK(ibv_post_recv(side->pair, &request, &bad) == 0);
}

static void post_sends(struct Side* side) {
  while (!side->has_sent_last && side->sent < side->completed + side->settings.window) {
    struct ibv_sge piece = slot_of(side, side->sent, 0);
    unsigned char* const bytes = (unsigned char*)(uintptr_t)piece.addr;
    const struct Note note = {side->sent, (uint64_t)side->is_ending};
    memcpy(bytes, &note, sizeof(note));
    fill(bytes + sizeof(note), piece.length - sizeof(note),
         seed_of(side->sent, side->settings.server == NULL));
    struct ibv_send_wr request, *bad;
    memset(&request, 0, sizeof(request));
    request.wr_id = side->sent++;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    if (side->is_ending) side->has_sent_last = 1;
    CHECK(ibv_post_send(side->pair, &request, &bad) == 0);
  }
}

static void on_message(struct Side* side, const struct ibv_wc* wc) {
  const struct ibv_sge piece = slot_of(side, side->received, 1);
  const unsigned char* const bytes = (const unsigned char*)(uintptr_t)piece.addr;
  struct Note note;
  memcpy(&note, bytes, sizeof(note));
  CHECK(wc->byte_len == piece.length && note.number == side->received);
  CHECK(is_filled(bytes + sizeof(note), piece.length - sizeof(note),
                  seed_of(note.number, side->settings.server != NULL)));
  ++side->received;
  if (note.is_last) side->has_received_last = side->is_ending = 1;
  post_receive(side, side->received - 1 + side->settings.window);
  if (side->received == kFlowing) {
    puts("flowing");
    fflush(stdout);
  }
}

// False: the connection is lost.
static int on_completion(struct Side* side, const struct ibv_wc* wc) {
  if (wc->status != IBV_WC_SUCCESS) {
    fprintf(stderr, "lost: %s (vendor_err %u)\n", ibv_wc_status_str(wc->status), wc->vendor_err);
    return 0;
  }
  if (wc->opcode == IBV_WC_SEND)
    ++side->completed;
  else
    on_message(side, wc);
  return 1;
}

// Until the queue has something, or it is time to look whether a signal has come.
static void wait_for_event(struct Side* side) {
  struct pollfd ready = {.fd = side->device.channel->fd, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, kLookEveryMs) <= 0) return;
  struct ibv_cq* queue;
  void* unused;
  CHECK(ibv_get_cq_event(side->device.channel, &queue, &unused) == 0);
  ibv_ack_cq_events(queue, 1);
}

// False: the connection is lost.
static int run(struct Side* side) {
  struct ibv_wc completions[16];
  int is_armed = 0;
  for (;;) {
    if (is_asked_to_end) side->is_ending = 1;
    post_sends(side);
    if (side->has_sent_last && side->completed == side->sent && side->has_received_last) return 1;
    const int got = ibv_poll_cq(side->device.queue, 16, completions);
    CHECK(got >= 0);
    for (int i = 0; i < got; ++i)
      if (!on_completion(side, &completions[i])) return 0;
    if (got > 0 || !side->settings.with_events) continue;
    if (is_armed) wait_for_event(side);
    if (!is_armed) CHECK(ibv_req_notify_cq(side->device.queue, 0) == 0);
    is_armed = !is_armed;
  }
}

static void set_up(struct Side* side) {
  const uint32_t window = side->settings.window;
  const size_t bytes = (size_t)side->settings.bytes * window * 2;
  side->device = open_first_device((int)(2 * window));
  side->memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  CHECK(side->memory != NULL);
  memset(side->memory, 0, bytes);
  side->region = ibv_reg_mr(side->device.domain, side->memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  CHECK(side->region != NULL);
  side->pair = make_queue_pair(&side->device, window);
  for (uint64_t i = 0; i < window; ++i) post_receive(side, i);
}

static void take_down(struct Side* side) {
  CHECK(ibv_destroy_qp(side->pair) == 0);
  CHECK(ibv_dereg_mr(side->region) == 0);
  close_device(&side->device);
  free(side->memory);
  close(side->peer);
}

static struct Settings settings_of(int argc, char** argv) {
  struct Settings settings = {0, 4096, 16, {14, 7}, 0, 0, NULL};
  int option;
  while ((option = getopt(argc, argv, "p:s:w:t:r:ex")) != -1) {
    const unsigned number = optarg == NULL ? 0 : (unsigned)atoi(optarg);
    if (option == 'p') settings.port = (uint16_t)number;
    if (option == 's') settings.bytes = number;
    if (option == 'w') settings.window = number;
    if (option == 't') settings.patience.timeout = (uint8_t)number;
    if (option == 'r') settings.patience.retries = (uint8_t)number;
    if (option == 'e') settings.with_events = 1;
    if (option == 'x') settings.misses = 1;
  }
  if (optind < argc) settings.server = argv[optind];
  CHECK(settings.port != 0 && settings.window > 0 && settings.bytes >= sizeof(struct Note));
  return settings;
}

int main(int argc, char** argv) {
  struct Side side;
  struct Address own, remote;
  memset(&side, 0, sizeof(side));
  side.settings = settings_of(argc, argv);
  const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  CHECK(sigaction(SIGTERM, &action, NULL) == 0);
  side.peer = meet(&side.settings);
  set_up(&side);
  own = address_of(&side.device, side.pair);
  CHECK(send(side.peer, &own, sizeof(own), MSG_NOSIGNAL) == (ssize_t)sizeof(own));
  CHECK(read_all(side.peer, &remote, sizeof(remote)));
  if (side.settings.misses) remote.qpn ^= 1;  // it has one
  connect_queue_pair(&side.device, side.pair, &remote, side.settings.patience);
  CHECK(barrier(side.peer));
  puts("connected");
  fflush(stdout);
  int status = 0;
  // The peer may still need an answer when this side has all.
  if (!run(&side) || !barrier(side.peer)) status = kLost;
  take_down(&side);
  if (status == 0)
    printf("%llu sent, %llu received, all as sent\n", (unsigned long long)side.sent,
           (unsigned long long)side.received);
  return status;
}
