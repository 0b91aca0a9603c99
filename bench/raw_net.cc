// What one would take instead of the device, over loopback, with plain sockets.
//
//   raw_net udp-spin BYTES      one-way latency, both ends spin on recv; median, us
//   raw_net udp-block BYTES     the same, both ends sleep in recv
//   raw_net udp-passive BYTES   the same, a thread sleeps in recv and the program watches memory:
//                               what a target of RDMA WRITEs is
//   raw_net tcp-spin BYTES      one-way latency over TCP, both ends spin; median, us
//   raw_net tcp-stream BYTES    one way, messages of this size; GB/s
//
// Prints the number alone.
#include <netinet/in.h>
#include <netinet/tcp.h>
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

// A connected pair on loopback.
struct Pair {
  int ends[2];
};

int bound(int type, sockaddr_in& name) {
  const int fd = socket(AF_INET, type, 0);
  name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof name;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&name), length) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    give_up("bind");
  return fd;
}

Pair udp_pair() {
  sockaddr_in names[2];
  Pair pair{{bound(SOCK_DGRAM, names[0]), bound(SOCK_DGRAM, names[1])}};
  for (int i = 0; i < 2; ++i)
    if (connect(pair.ends[i], reinterpret_cast<sockaddr*>(&names[1 - i]), sizeof names[0]) != 0)
      give_up("connect");
  return pair;
}

Pair tcp_pair() {
  sockaddr_in name;
  const int listener = bound(SOCK_STREAM, name);
  const int dialer = socket(AF_INET, SOCK_STREAM, 0);
  if (listen(listener, 1) != 0 ||
      connect(dialer, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0)
    give_up("connect");
  Pair pair{{accept(listener, nullptr, nullptr), dialer}};
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

double measure(const std::string& mode, int fd, bool first, std::size_t bytes) {
  if (mode == "udp-spin" || mode == "tcp-spin")
    return spin_or_block(fd, first, bytes, MSG_DONTWAIT);
  if (mode == "udp-block") return spin_or_block(fd, first, bytes, 0);
  if (mode == "udp-passive") return passive(fd, first, bytes);
  if (mode == "tcp-stream") return stream(fd, first, bytes);
  std::fprintf(stderr, "raw_net: no mode '%s'; see the head of bench/raw_net.cc\n", mode.c_str());
  _exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const long bytes = argc == 3 ? std::strtol(argv[2], nullptr, 10) : 0;
  if (bytes <= 0) {
    std::fprintf(stderr, "usage: raw_net MODE BYTES; see the head of bench/raw_net.cc\n");
    return 2;
  }
  const std::string mode = argv[1];
  const auto size = static_cast<std::size_t>(bytes);
  const Pair pair = mode.starts_with("udp") ? udp_pair() : tcp_pair();
  alarm(60);  // a lost datagram ends the run, and its partner's
  const pid_t other = fork();
  if (other == 0) {
    measure(mode, pair.ends[1], false, size);
    _exit(0);
  }
  const double result = measure(mode, pair.ends[0], true, size);
  int status = 0;
  waitpid(other, &status, 0);
  if (status != 0) return 1;
  std::printf("%.3f\n", result);
}
