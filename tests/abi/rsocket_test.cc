// The rsockets of librdmacm.so.1 as programs use them, over loopback.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace rsocket_test {
namespace {

using Chars = std::vector<char>;

sockaddr_in loopback(in_port_t port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = port;
  return address;
}
const sockaddr* plain(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// A descriptor of rsocket().
class Rsocket {
 public:
  explicit Rsocket(int fd = -1) : fd_(fd) {}
  Rsocket(Rsocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Rsocket& operator=(Rsocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Rsocket() {
    if (fd_ >= 0) {
      EXPECT_EQ(rclose(fd_), 0);
    }
  }
  int get() const { return fd_; }

  sockaddr_in local() const {
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    EXPECT_EQ(rgetsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    return address;
  }
  void set(int level, int name, int value) {
    EXPECT_EQ(rsetsockopt(fd_, level, name, &value, sizeof value), 0) << level << " " << name;
  }
  int value_of(int level, int name) const {
    int value = -1;
    socklen_t bytes = sizeof value;
    EXPECT_EQ(rgetsockopt(fd_, level, name, &value, &bytes), 0) << level << " " << name;
    return value;
  }
  void say(const std::string& text) const {
    EXPECT_EQ(rsend(fd_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  std::string hear(std::size_t bytes, int flags = MSG_WAITALL) const {
    std::string text(bytes, '\0');
    const ssize_t got = rrecv(fd_, text.data(), bytes, flags);
    EXPECT_GE(got, 0) << strerror(errno);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

 private:
  int fd_;
};

Rsocket stream() { return Rsocket(rsocket(AF_INET, SOCK_STREAM, 0)); }

Rsocket listener() {
  Rsocket socket = stream();
  const sockaddr_in any = loopback();
  EXPECT_EQ(rbind(socket.get(), plain(any), sizeof any), 0);
  EXPECT_EQ(rlisten(socket.get(), 5), 0);
  return socket;
}

struct Pair {
  template <class Prepare>
  explicit Pair(Prepare&& prepare) {
    Rsocket ear = listener();
    prepare(ear);
    prepare(client);
    std::thread acceptor([&] { server = Rsocket(raccept(ear.get(), nullptr, nullptr)); });
    const sockaddr_in to = ear.local();
    EXPECT_EQ(rconnect(client.get(), plain(to), sizeof to), 0) << strerror(errno);
    acceptor.join();
    EXPECT_GE(server.get(), 0);
  }
  Pair() : Pair([](Rsocket&) {}) {}

  Rsocket client = stream();
  Rsocket server{};
};

Chars pattern(std::size_t bytes) {
  Chars all(bytes);
  unsigned value = 1;
  for (char& one : all) one = static_cast<char>((value = value * 1664525 + 1013904223) >> 24);
  return all;
}

void send_all(int fd, const Chars& all) {
  EXPECT_EQ(rsend(fd, all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
}

Chars receive_all(int fd, std::size_t bytes, std::size_t piece) {
  Chars all(bytes);
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t now = rrecv(fd, all.data() + got, std::min(piece, bytes - got), 0);
    if (now <= 0) break;
    got += static_cast<std::size_t>(now);
  }
  EXPECT_EQ(got, bytes);
  return all;
}

TEST(RsocketCalls, KnowTheirDescriptors) {
  char byte = 0;
  EXPECT_EQ(rrecv(0, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(rclose(-1), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(rsocket(27, SOCK_STREAM, 0), -1);  // AF_IB
  EXPECT_EQ(errno, EAFNOSUPPORT);
  EXPECT_EQ(rsocket(AF_INET, SOCK_RAW, 0), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
}

TEST(RsocketCalls, AnswerBeforeThereIsAConnection) {
  const Rsocket socket = stream();
  char byte = 0;
  EXPECT_EQ(rrecv(socket.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(rsend(socket.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ENOTCONN);
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  EXPECT_EQ(rgetpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(raccept(socket.get(), nullptr, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(RsocketConnect, TellsBothEndsTheirAddresses) {
  const Pair pair;
  sockaddr_in peer{};
  socklen_t bytes = sizeof peer;
  ASSERT_EQ(rgetpeername(pair.server.get(), reinterpret_cast<sockaddr*>(&peer), &bytes), 0);
  EXPECT_EQ(bytes, sizeof peer);
  EXPECT_EQ(peer.sin_port, pair.client.local().sin_port);
  EXPECT_EQ(peer.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
}

TEST(RsocketConnect, IsRefusedWhereNobodyListens) {
  const Rsocket socket = stream();
  const sockaddr_in to = loopback(htons(9));
  EXPECT_EQ(rconnect(socket.get(), plain(to), sizeof to), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(RsocketConnect, GoesOnInPollIfItMayNotBlock) {
  const Rsocket ear = listener();
  const Rsocket client = stream();
  ASSERT_EQ(rfcntl(client.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rfcntl(client.get(), F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  std::thread acceptor([&] {
    pollfd asked{ear.get(), POLLIN, 0};
    EXPECT_EQ(rpoll(&asked, 1, -1), 1);
    const Rsocket server(raccept(ear.get(), nullptr, nullptr));
    EXPECT_EQ(server.hear(5), "hello");
  });
  const sockaddr_in to = ear.local();
  EXPECT_EQ(rconnect(client.get(), plain(to), sizeof to), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  pollfd connected{client.get(), POLLOUT, 0};
  EXPECT_EQ(rpoll(&connected, 1, -1), 1);
  EXPECT_EQ(connected.revents, POLLOUT);
  EXPECT_EQ(client.value_of(SOL_SOCKET, SO_ERROR), 0);
  client.say("hello");
  acceptor.join();
}

TEST(RsocketConnect, TellsPollOfARefusal) {
  const Rsocket client = stream();
  ASSERT_EQ(rfcntl(client.get(), F_SETFL, O_NONBLOCK), 0);
  const sockaddr_in to = loopback(htons(9));
  EXPECT_EQ(rconnect(client.get(), plain(to), sizeof to), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  pollfd refused{client.get(), POLLOUT, 0};
  EXPECT_EQ(rpoll(&refused, 1, -1), 1);
  EXPECT_NE(refused.revents & POLLERR, 0);
  EXPECT_EQ(client.value_of(SOL_SOCKET, SO_ERROR), ECONNREFUSED);
}

TEST(RsocketStream, MovesMoreThanItsRingsHold) {
  const Pair pair;
  const Chars all = pattern(3'000'001);
  std::thread sender([&] { send_all(pair.client.get(), all); });
  EXPECT_EQ(receive_all(pair.server.get(), all.size(), 10'007), all);
  sender.join();
}

TEST(RsocketStream, MovesBothWaysAtOnce) {
  const Pair pair;
  const Chars all = pattern(1'000'000);
  std::array<std::thread, 3> threads{
      std::thread([&] { send_all(pair.client.get(), all); }),
      std::thread([&] { send_all(pair.server.get(), all); }),
      std::thread([&] { EXPECT_EQ(receive_all(pair.client.get(), all.size(), 5000), all); })};
  EXPECT_EQ(receive_all(pair.server.get(), all.size(), 70'000), all);
  for (std::thread& thread : threads) thread.join();
}

TEST(RsocketStream, WorksWithSmallRingsAndQueues) {
  const Pair pair([](Rsocket& socket) {
    socket.set(SOL_SOCKET, SO_SNDBUF, 1);
    socket.set(SOL_SOCKET, SO_RCVBUF, 1);
    socket.set(SOL_RDMA, RDMA_SQSIZE, 1);
    socket.set(SOL_RDMA, RDMA_RQSIZE, 1);
    socket.set(SOL_RDMA, RDMA_INLINE, 0);
  });
  EXPECT_EQ(pair.server.value_of(SOL_RDMA, RDMA_RQSIZE), 16) << "listeners hand it on";
  const Chars all = pattern(200'000);
  std::thread sender([&] { send_all(pair.client.get(), all); });
  EXPECT_EQ(receive_all(pair.server.get(), all.size(), 999), all);
  sender.join();
}

TEST(RsocketStream, GathersAndScatters) {
  const Pair pair;
  std::string first = "one", second = "two", third = "three";
  const iovec from[] = {{first.data(), 3}, {nullptr, 0}, {second.data(), 3}, {third.data(), 5}};
  EXPECT_EQ(rwritev(pair.client.get(), from, 4), 11);
  std::string head(5, '\0'), rest(20, '\0');
  pollfd readable{pair.server.get(), POLLIN, 0};
  ASSERT_EQ(rpoll(&readable, 1, -1), 1);
  const iovec to[] = {{head.data(), 5}, {rest.data(), 20}};
  EXPECT_EQ(rreadv(pair.server.get(), to, 2), 11);
  EXPECT_EQ(head + rest.substr(0, 6), "onetwothree");
}

TEST(RsocketStream, PeeksAndDoesNotWaitIfAsked) {
  const Pair pair;
  char byte = 0;
  EXPECT_EQ(rrecv(pair.server.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  pair.client.say("abcdef");
  EXPECT_EQ(pair.server.hear(3, MSG_PEEK), "abc");
  EXPECT_EQ(pair.server.hear(6), "abcdef");
}

TEST(RsocketStream, StopsWhereThePeerDoesNotRead) {
  const Pair pair;
  ASSERT_EQ(rfcntl(pair.client.get(), F_SETFL, O_NONBLOCK), 0);
  const Chars all = pattern(1'000'000);
  std::size_t sent = 0;
  for (ssize_t now; (now = rsend(pair.client.get(), all.data() + sent, all.size() - sent, 0)) > 0;)
    sent += static_cast<std::size_t>(now);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GT(sent, 0u);
  EXPECT_LT(sent, all.size());
  const Chars got = receive_all(pair.server.get(), sent, sent);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin()));
  pollfd writable{pair.client.get(), POLLOUT, 0};
  EXPECT_EQ(rpoll(&writable, 1, -1), 1);
}

TEST(RsocketStream, AnEndThatIsShutIsReadToTheEnd) {
  const Pair pair;
  pair.client.say("last words");
  EXPECT_EQ(rshutdown(pair.client.get(), SHUT_WR), 0);
  EXPECT_EQ(pair.server.hear(10), "last words");
  EXPECT_EQ(pair.server.hear(10), "");
  EXPECT_EQ(rsend(pair.client.get(), "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
  pair.server.say("answer");
  EXPECT_EQ(pair.client.hear(6), "answer");
}

TEST(RsocketStream, WhatWasSentBeforeClosingArrives) {
  Pair pair;
  const Chars all = pattern(60'000);
  send_all(pair.client.get(), all);
  pair.client = Rsocket();
  EXPECT_EQ(receive_all(pair.server.get(), all.size(), 1000), all);
  EXPECT_EQ(pair.server.hear(1), "");
  EXPECT_EQ(rsend(pair.server.get(), "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST(RsocketStream, ClosingWakesWhoWaits) {
  Pair pair;
  std::thread reader([&] { EXPECT_EQ(pair.server.hear(1), ""); });
  pair.client = Rsocket();
  reader.join();
}

TEST(RsocketMapping, IsWrittenByOffset) {
  const Pair pair([](Rsocket& socket) { socket.set(SOL_RDMA, RDMA_IOMAPSIZE, 2); });
  Chars memory(100'000);
  EXPECT_EQ(riomap(pair.server.get(), memory.data(), memory.size(), PROT_WRITE, 0, 500), 500);
  pair.server.say("mapped");
  EXPECT_EQ(pair.client.hear(6), "mapped");
  const Chars all = pattern(90'000);
  EXPECT_EQ(riowrite(pair.client.get(), all.data(), all.size(), 600, 0), all.size());
  pair.client.say("written");
  EXPECT_EQ(pair.server.hear(7), "written");
  EXPECT_TRUE(std::equal(all.begin(), all.end(), memory.begin() + 100));
  EXPECT_EQ(riowrite(pair.client.get(), all.data(), 1, 100'500, 0), 0u)
      << "nothing is mapped there";
  EXPECT_EQ(riounmap(pair.server.get(), memory.data(), memory.size()), 0);
  EXPECT_EQ(riounmap(pair.server.get(), memory.data(), memory.size()), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(RsocketMapping, NeedsRoomInThePeersList) {
  const Pair pair;
  char byte = 0;
  EXPECT_EQ(riomap(pair.server.get(), &byte, 1, PROT_WRITE, 0, -1), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(RsocketPoll, KnowsOtherDescriptorsToo) {
  const Pair pair;
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  pollfd asked[] = {{pair.server.get(), POLLIN, 0}, {pipes[0], POLLIN, 0}, {-1, POLLIN, 7}};
  EXPECT_EQ(rpoll(asked, 3, 0), 0);
  ASSERT_EQ(write(pipes[1], "x", 1), 1);
  EXPECT_EQ(rpoll(asked, 3, -1), 1);
  EXPECT_EQ(asked[0].revents, 0);
  EXPECT_EQ(asked[1].revents, POLLIN);
  EXPECT_EQ(asked[2].revents, 0);
  pair.client.say("y");
  asked[1].events = 0;
  EXPECT_EQ(rpoll(asked, 3, -1), 1);
  EXPECT_EQ(asked[0].revents, POLLIN);
  EXPECT_EQ(rpoll(asked + 1, 1, 0), 0);
  close(pipes[0]);
  close(pipes[1]);
}

TEST(RsocketPoll, TwoSleepersAreBothWoken) {
  const Pair one;
  const Pair two;
  const auto waits = [](const Rsocket& socket, const Rsocket& other) {
    return std::thread([&] {
      pollfd both[] = {{socket.get(), POLLIN, 0}, {other.get(), 0, 0}};
      EXPECT_GE(rpoll(both, 2, -1), 1);
      EXPECT_EQ(socket.hear(1), "x");
    });
  };
  for (int round = 0; round < 20; ++round) {
    std::thread first = waits(one.server, two.server);
    std::thread second = waits(two.server, one.server);
    one.client.say("x");
    two.client.say("x");
    first.join();
    second.join();
  }
}

TEST(RsocketSelect, MarksWhatIsReady) {
  const Pair pair;
  const int fd = pair.server.get();
  fd_set readable, writable;
  FD_ZERO(&readable);
  FD_ZERO(&writable);
  FD_SET(fd, &readable);
  FD_SET(fd, &writable);
  timeval now{};
  EXPECT_EQ(rselect(fd + 1, &readable, &writable, nullptr, &now), 1);
  EXPECT_FALSE(FD_ISSET(fd, &readable));
  EXPECT_TRUE(FD_ISSET(fd, &writable));
  pair.client.say("x");
  FD_SET(fd, &readable);
  EXPECT_EQ(rselect(fd + 1, &readable, nullptr, nullptr, nullptr), 1);
  EXPECT_TRUE(FD_ISSET(fd, &readable));
}

TEST(RsocketOptions, AreKept) {
  Rsocket socket = stream();
  socket.set(SOL_SOCKET, SO_SNDBUF, 100'000);
  EXPECT_EQ(socket.value_of(SOL_SOCKET, SO_SNDBUF), 200'000);
  socket.set(SOL_SOCKET, SO_REUSEADDR, 1);
  EXPECT_EQ(socket.value_of(SOL_SOCKET, SO_REUSEADDR), 1);
  socket.set(SOL_SOCKET, SO_KEEPALIVE, 1);
  EXPECT_EQ(socket.value_of(SOL_SOCKET, SO_KEEPALIVE), 1);
  socket.set(IPPROTO_TCP, TCP_NODELAY, 1);
  EXPECT_EQ(socket.value_of(IPPROTO_TCP, TCP_NODELAY), 1);
  socket.set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  EXPECT_EQ(socket.value_of(IPPROTO_TCP, TCP_KEEPIDLE), 30);
  EXPECT_EQ(socket.value_of(SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EXPECT_EQ(socket.value_of(SOL_RDMA, RDMA_SQSIZE), 384);
  int value = 0;
  EXPECT_EQ(rsetsockopt(socket.get(), SOL_SOCKET, SO_BROADCAST, &value, sizeof value), -1);
  EXPECT_EQ(errno, ENOTSUP);
  EXPECT_EQ(rsetsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &value, 1), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(RsocketDatagrams, FindTheirWayAndAreAnswered) {
  const Rsocket server(rsocket(AF_INET, SOCK_DGRAM, 0));
  const Rsocket client(rsocket(AF_INET, SOCK_DGRAM, 0));
  const sockaddr_in any = loopback();
  ASSERT_EQ(rbind(server.get(), plain(any), sizeof any), 0);
  const sockaddr_in to = server.local();
  ASSERT_EQ(rconnect(client.get(), plain(to), sizeof to), 0);
  // The first goes by UDP, what follows from queue pair to queue pair.
  for (int round = 0; round < 5; ++round) {
    const std::string text = "datagram " + std::to_string(round);
    client.say(text);
    std::string got(100, '\0');
    sockaddr_in from{};
    socklen_t bytes = sizeof from;
    const ssize_t size = rrecvfrom(server.get(), got.data(), got.size(), 0,
                                   reinterpret_cast<sockaddr*>(&from), &bytes);
    ASSERT_EQ(size, static_cast<ssize_t>(text.size()));
    EXPECT_EQ(got.substr(0, text.size()), text);
    EXPECT_EQ(from.sin_port, client.local().sin_port);
    EXPECT_EQ(rsendto(server.get(), "ok", 2, 0, plain(from), sizeof from), 2);
    EXPECT_EQ(client.hear(10, 0), "ok");
  }
}

TEST(RsocketDatagrams, LongOnesGoByUdp) {
  const Rsocket server(rsocket(AF_INET, SOCK_DGRAM, 0));
  const Rsocket client(rsocket(AF_INET, SOCK_DGRAM, 0));
  const sockaddr_in any = loopback();
  ASSERT_EQ(rbind(server.get(), plain(any), sizeof any), 0);
  const sockaddr_in to = server.local();
  const Chars all = pattern(6000);
  EXPECT_EQ(rsendto(client.get(), all.data(), all.size(), 0, plain(to), sizeof to), 6000);
  EXPECT_EQ(receive_all(server.get(), all.size(), all.size()), all);
  EXPECT_EQ(rsendto(client.get(), all.data(), 60'000, 0, plain(to), sizeof to), -1);
  EXPECT_EQ(errno, EMSGSIZE);
}

TEST(RsocketFork, AChildHasNoShareInItsParentsSockets) {
  const Pair pair;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    const bool refused = rsend(pair.client.get(), &byte, 1, 0) == -1 && errno == EPERM;
    _exit(refused && rclose(pair.client.get()) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pair.client.say("still here");
  EXPECT_EQ(pair.server.hear(10), "still here");
}

std::ptrdiff_t open_descriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  std::ptrdiff_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(RsocketClosing, GivesEveryDescriptorBack) {
  const auto round = [] {
    const Pair pair;
    pair.client.say("x");
    EXPECT_EQ(pair.server.hear(1), "x");
    const Rsocket datagrams(rsocket(AF_INET, SOCK_DGRAM, 0));
    const sockaddr_in to = loopback(htons(9));
    EXPECT_EQ(rsendto(datagrams.get(), "x", 1, 0, plain(to), sizeof to), 1);
  };
  round();
  // The device keeps the sockets that it sends from: one for each of some source ports.
  constexpr std::ptrdiff_t kSourcePorts = 32;
  const std::ptrdiff_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) round();
  EXPECT_LE(open_descriptors(), before + kSourcePorts);
}

}  // namespace
}  // namespace rsocket_test
