// What one would take instead of the device, with plain sockets, over loopback or between two
// network namespaces.
//
//   raw_net MODE BYTES|COUNT [NAMESPACE ADDRESS NAMESPACE ADDRESS]
//
//   raw_net udp-spin BYTES      one-way latency, both ends spin on recv; median, us
//   raw_net udp-block BYTES     the same, both ends sleep in recv
//   raw_net udp-passive BYTES   the same, a thread sleeps in recv and the program watches memory:
//                               what a target of RDMA WRITEs is
//   raw_net tcp-spin BYTES      one-way latency over TCP, both ends spin; median, us
//   raw_net tcp-stream BYTES    one way, messages of this size; GB/s
//   raw_net tcp-accept COUNT    so many connections, which all stay open: socket, connect, accept,
//                               until the last one is accepted; connections per second
//   raw_net udp-stream BYTES    one way, datagrams of this size in bursts that leave and arrive
//                               whole (UDP_SEGMENT, UDP_GRO); GB/s. Nothing is acknowledged: a
//                               shared counter keeps the sender from overrunning the receiver
//
// Prints the number alone; for a stream also the processor time of both ends, in seconds for each
// GB, the sender's first.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kRounds = 10'000;
constexpr int kWarmUp = 500;
constexpr std::uint64_t kStreamBytes = std::uint64_t{2} << 30;

using Clock = std::chrono::steady_clock;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  _exit(1);
}

// Where an end is.
struct Place {
  std::string netns;  // "": here
  std::string address = "127.0.0.1";
};

// A connected pair.
struct Pair {
  int ends[2];
};

void enter(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) give_up(path.c_str());
  close(fd);
}

// A socket stays in the namespace that it was made in.
int socket_at(const Place& place, int type) {
  static const std::string home = "/proc/" + std::to_string(getpid()) + "/ns/net";
  const int back = open(home.c_str(), O_RDONLY | O_CLOEXEC);
  if (!place.netns.empty()) enter("/var/run/netns/" + place.netns);
  const int fd = socket(AF_INET, type, 0);
  if (fd < 0) give_up("socket");
  if (!place.netns.empty() && setns(back, CLONE_NEWNET) != 0) give_up("setns");
  close(back);
  return fd;
}

int bound(const Place& place, int type, sockaddr_in& name) {
  const int fd = socket_at(place, type);
  name = {};
  name.sin_family = AF_INET;
  if (inet_pton(AF_INET, place.address.c_str(), &name.sin_addr) != 1) give_up("inet_pton");
  socklen_t length = sizeof name;
  if (bind(fd, reinterpret_cast<sockaddr*>(&name), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    give_up("bind");
  return fd;
}

Pair udp_pair(const Place (&places)[2]) {
  sockaddr_in names[2];
  Pair pair{{bound(places[0], SOCK_DGRAM, names[0]), bound(places[1], SOCK_DGRAM, names[1])}};
  for (int i = 0; i < 2; ++i)
    if (connect(pair.ends[i], reinterpret_cast<sockaddr*>(&names[1 - i]), sizeof names[0]) != 0)
      give_up("connect");
  return pair;
}

Pair tcp_pair(const Place (&places)[2]) {
  sockaddr_in name;
  const int listener = bound(places[1], SOCK_STREAM, name);
  const int dialer = socket_at(places[0], SOCK_STREAM);
  if (listen(listener, 1) != 0 ||
      connect(dialer, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0)
    give_up("connect");
  Pair pair{{dialer, accept(listener, nullptr, nullptr)}};
  const int one = 1;
  for (const int fd : pair.ends) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  close(listener);
  return pair;
}

void receive(int fd, std::vector<char>& buffer, int flags) {
  for (std::size_t got = 0; got < buffer.size();) {
    const ssize_t n = recv(fd, buffer.data() + got, buffer.size() - got, flags);
    if (n > 0)
      got += static_cast<std::size_t>(n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
      give_up("recv");
  }
}

void transmit(int fd, const std::vector<char>& buffer) {
  for (std::size_t sent = 0; sent < buffer.size();) {
    const ssize_t n = send(fd, buffer.data() + sent, buffer.size() - sent, 0);
    if (n <= 0) give_up("send");
    sent += static_cast<std::size_t>(n);
  }
}

// One end of a ping-pong; `wait` returns when a message is there. Gives the median one-way time.
double ping_pong(int fd, bool first, std::vector<char>& buffer, const std::function<void()>& wait) {
  std::vector<double> times;
  for (int i = 0; i < kRounds + kWarmUp; ++i) {
    const auto start = Clock::now();
    if (first) transmit(fd, buffer);
    wait();
    if (!first) transmit(fd, buffer);
    if (i >= kWarmUp)
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / 2);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

double spin_or_block(int fd, bool first, std::size_t bytes, int flags) {
  std::vector<char> buffer(bytes);
  return ping_pong(fd, first, buffer, [&] { receive(fd, buffer, flags); });
}

double passive(int fd, bool first, std::size_t bytes) {
  std::vector<char> buffer(bytes);
  std::atomic<int> arrived{0};
  std::thread listener([&] {
    std::vector<char> incoming(bytes);
    for (int i = 0; i < kRounds + kWarmUp; ++i) {
      receive(fd, incoming, 0);
      arrived.fetch_add(1, std::memory_order_release);
    }
  });
  int seen = 0;
  const double median = ping_pong(fd, first, buffer, [&] {
    while (arrived.load(std::memory_order_acquire) == seen) {
    }
    ++seen;
  });
  listener.join();
  return median;
}

// What both ends of a stream see.
struct Shared {
  std::atomic<std::uint64_t> received;
  double receiver_cpu;  // seconds
};

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double stream(int fd, bool first, std::size_t bytes) {
  std::vector<char> buffer(bytes, 1);
  const std::uint64_t messages = kStreamBytes / bytes;
  const auto start = Clock::now();
  std::vector<char> last(1);
  if (first) {
    for (std::uint64_t i = 0; i < messages; ++i) transmit(fd, buffer);
    receive(fd, last, 0);
  } else {
    for (std::uint64_t i = 0; i < messages; ++i) receive(fd, buffer, 0);
    transmit(fd, last);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(messages * bytes) / seconds / 1e9;
}

// As large as allowed; how much.
std::uint64_t receive_room(int fd) {
  constexpr int kWanted = 8 << 20;
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kWanted, sizeof kWanted) != 0)
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kWanted, sizeof kWanted);
  int granted = 0;
  socklen_t length = sizeof granted;
  getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &granted, &length);
  return static_cast<std::uint64_t>(granted) / 4;  // the kernel's overhead counts too
}

double burst_stream(int fd, bool first, std::size_t bytes, Shared& shared, std::uint64_t room) {
  constexpr std::size_t kMostBytes = 65'000, kMostSegments = 64;
  const std::size_t burst = std::min(kMostBytes / bytes, kMostSegments) * bytes;
  std::vector<char> buffer(first ? burst : 65'536, 1);
  const std::uint64_t total = kStreamBytes / burst * burst;
  const int segment = static_cast<int>(bytes), on = 1;
  if (first && setsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment) != 0)
    give_up("UDP_SEGMENT");
  if (!first && setsockopt(fd, SOL_UDP, UDP_GRO, &on, sizeof on) != 0) give_up("UDP_GRO");
  if (!first) shared.received.store(1);  // it listens
  while (shared.received.load() == 0) sched_yield();
  const auto start = Clock::now();
  if (first) {
    for (std::uint64_t sent = 0; sent < total; sent += burst) {
      while (sent + burst > shared.received.load() + room) sched_yield();
      transmit(fd, buffer);
    }
    while (shared.received.load() < total) sched_yield();
  } else {
    for (std::uint64_t got = 0; got < total;) {
      const ssize_t n = recv(fd, buffer.data(), buffer.size(), 0);
      if (n <= 0) give_up("recv");
      got += static_cast<std::uint64_t>(n);
      shared.received.store(got);
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(total) / seconds / 1e9;
}

// Connections per second. The acceptor tells by its last one that it has them all.
double accepted(const Place (&places)[2], std::size_t count) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  sockaddr_in name;
  const int listener = bound(places[1], SOCK_STREAM, name);
  if (listen(listener, SOMAXCONN) != 0) give_up("listen");
  constexpr unsigned kLimitSeconds = 60;
  const pid_t acceptor = fork();
  alarm(kLimitSeconds);
  if (acceptor == 0) {
    int last = -1;
    for (std::size_t i = 0; i < count; ++i)
      if ((last = accept(listener, nullptr, nullptr)) < 0) give_up("accept");
    transmit(last, {1});
    _exit(0);
  }
  if (!places[0].netns.empty()) enter("/var/run/netns/" + places[0].netns);
  int last = -1;
  std::vector<char> word(1);
  const auto start = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    last = socket(AF_INET, SOCK_STREAM, 0);
    if (last < 0 || connect(last, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0)
      give_up("connect");
  }
  receive(last, word, 0);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  waitpid(acceptor, nullptr, 0);
  return static_cast<double>(count) / seconds;
}

double measure(const std::string& mode, int fd, bool first, std::size_t bytes, Shared& shared,
               std::uint64_t room) {
  if (mode == "udp-spin" || mode == "tcp-spin")
    return spin_or_block(fd, first, bytes, MSG_DONTWAIT);
  if (mode == "udp-block") return spin_or_block(fd, first, bytes, 0);
  if (mode == "udp-passive") return passive(fd, first, bytes);
  if (mode == "tcp-stream") return stream(fd, first, bytes);
  if (mode == "udp-stream") return burst_stream(fd, first, bytes, shared, room);
  std::fprintf(stderr, "raw_net: no mode '%s'; see the head of bench/raw_net.cc\n", mode.c_str());
  _exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const long bytes = argc == 3 || argc == 7 ? std::strtol(argv[2], nullptr, 10) : 0;
  if (bytes <= 0 || bytes > 1 << 30) {
    std::fprintf(stderr,
                 "usage: raw_net MODE BYTES|COUNT [NAMESPACE ADDRESS NAMESPACE ADDRESS]; see "
                 "the head of bench/raw_net.cc\n");
    return 2;
  }
  const std::string mode = argv[1];
  const auto size = static_cast<std::size_t>(bytes);
  const bool is_udp = mode.starts_with("udp");
  if (is_udp && size > 65'000) {
    std::fprintf(stderr, "raw_net: a datagram has at most 65000 bytes, not %zu\n", size);
    return 2;
  }
  Place places[2];
  if (argc == 7) places[0] = {argv[3], argv[4]}, places[1] = {argv[5], argv[6]};
  if (mode == "tcp-accept") {
    std::printf("%.3f\n", accepted(places, size));
    return 0;
  }
  const Pair pair = is_udp ? udp_pair(places) : tcp_pair(places);
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up("mmap");
  Shared& shared = *new (memory) Shared;
  const std::uint64_t room = is_udp ? receive_room(pair.ends[1]) : 0;
  alarm(60);  // a lost datagram ends the run, and its partner's
  const pid_t other = fork();
  if (other == 0) {
    measure(mode, pair.ends[1], false, size, shared, room);
    shared.receiver_cpu = cpu_seconds();
    _exit(0);
  }
  const double result = measure(mode, pair.ends[0], true, size, shared, room);
  int status = 0;
  waitpid(other, &status, 0);
  if (status != 0) return 1;
  constexpr double kGigabytes = static_cast<double>(kStreamBytes) / 1e9;
  if (mode.ends_with("stream"))
    std::printf("%.3f %.3f %.3f\n", result, cpu_seconds() / kGigabytes,
                shared.receiver_cpu / kGigabytes);
  else
    std::printf("%.3f\n", result);
}
