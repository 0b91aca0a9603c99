#include "local/service_port.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "os/bound_sockets.h"
#include "os/test_child.h"

namespace softhca::local {
namespace {

using Wish = ServicePort::Wish;

os::IpAddress at(const char* text) { return os::parse_address(text).value_or(os::IpAddress{}); }

// A space of this process alone, so that tests that run at once do not meet.
std::uint16_t own_space() { return static_cast<std::uint16_t>(0x4000 + getpid() % 0x4000); }

Wish wish(std::uint16_t port, const char* address = "::") {
  return {.space = own_space(), .port = port, .address = at(address)};
}

int error_of(const Wish& wanted) {
  const auto port = ServicePort::reserve(wanted);
  return port ? 0 : port.error().number;
}

ServicePort reserved(const Wish& wanted) {
  auto port = ServicePort::reserve(wanted);
  EXPECT_TRUE(port) << error_text(port.error());
  return std::move(*port);
}

TEST(ServicePort, BelongsToOneAtATime) {
  {
    const ServicePort port = reserved(wish(7174));
    EXPECT_EQ(port.port(), 7174);
    EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
    EXPECT_EQ(error_of(wish(7175)), 0);
  }
  EXPECT_EQ(error_of(wish(7174)), 0);
}

TEST(ServicePort, IsAnotherInEachSpace) {
  const ServicePort port = reserved(wish(7174));
  Wish other = wish(7174);
  ++other.space;
  EXPECT_EQ(error_of(other), 0);
}

TEST(ServicePort, StaysWithItsHolderWhenItIsMoved) {
  ServicePort port = reserved(wish(7174));
  const ServicePort moved = std::move(port);
  EXPECT_EQ(moved.port(), 7174);
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
}

TEST(ServicePort, ConflictsIfAnAddressIsInBoth) {
  struct Case {
    const char* one;
    const char* other;
    bool conflict;
  };
  for (const auto& [one, other, conflict] : {Case{"192.0.2.1", "192.0.2.1", true},
                                             {"192.0.2.1", "192.0.2.2", false},
                                             {"192.0.2.1", "0.0.0.0", true},
                                             {"192.0.2.1", "::", true},
                                             {"192.0.2.1", "fd00::1", false},
                                             {"fd00::1", "fd00::1", true},
                                             {"fd00::1", "fd00::2", false},
                                             {"fd00::1", "0.0.0.0", false},
                                             {"fd00::1", "::", true},
                                             {"0.0.0.0", "0.0.0.0", true},
                                             {"0.0.0.0", "::", true},
                                             {"::", "::", true}}) {
    const int expected = conflict ? EADDRINUSE : 0;
    const ServicePort first = reserved(wish(7174, one));
    EXPECT_EQ(error_of(wish(7174, other)), expected) << one << " " << other;
    const ServicePort second = reserved(wish(7175, other));
    EXPECT_EQ(error_of(wish(7175, one)), expected) << other << " " << one;
  }
}

TEST(ServicePort, OfIpv6OnlyLeavesIpv4ToOthers) {
  Wish six = wish(7174);
  six.only_ipv6 = true;
  const ServicePort port = reserved(six);
  EXPECT_EQ(error_of(wish(7174, "0.0.0.0")), 0);
  EXPECT_EQ(error_of(wish(7174, "192.0.2.1")), 0);
  EXPECT_EQ(error_of(wish(7174, "fd00::1")), EADDRINUSE);
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
}

TEST(ServicePort, IsSharedIfBothMayBeReused) {
  Wish shared = wish(7174);
  shared.reuse = true;
  const ServicePort first = reserved(shared);
  const ServicePort second = reserved(shared);
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
  EXPECT_EQ(error_of(wish(7174, "192.0.2.1")), EADDRINUSE);
}

TEST(ServicePort, IsNotSharedByWhoListens) {
  Wish shared = wish(7174);
  shared.reuse = true;
  ServicePort listener = reserved(shared);
  {
    const ServicePort other = reserved(shared);
    const auto listens = listener.listen();
    ASSERT_FALSE(listens);
    EXPECT_EQ(listens.error().number, EADDRINUSE);
    EXPECT_EQ(error_of(shared), 0);  // as before
  }
  EXPECT_TRUE(listener.listen());
  EXPECT_TRUE(listener.listen());
  EXPECT_EQ(listener.port(), 7174);
  EXPECT_EQ(error_of(shared), EADDRINUSE);
}

TEST(ServicePort, ListensAtOnceIfItWasNeverShared) {
  ServicePort listener = reserved(wish(7174));
  EXPECT_TRUE(listener.listen());
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
}

Wish client_at(const char* address) {
  Wish wanted = wish(0, address);
  wanted.is_of_client = true;
  return wanted;
}

TEST(ServicePort, OfAClientIsNobodyElses) {
  const ServicePort client = reserved(client_at("192.0.2.1"));
  for (const char* const address : {"192.0.2.1", "192.0.2.2", "fd00::1", "0.0.0.0", "::"})
    EXPECT_EQ(error_of(wish(client.port(), address)), EADDRINUSE) << address;
}

TEST(ServicePort, IsSharedByALimitedNumber) {
  Wish shared = wish(7174);
  shared.reuse = true;
  std::vector<ServicePort> held;
  for (int i = 0; i < 32; ++i) held.push_back(reserved(shared));
  EXPECT_EQ(error_of(shared), EADDRINUSE);
  held.pop_back();
  EXPECT_EQ(error_of(shared), 0);
}

TEST(ServicePort, OfNoNumberIsAnyThatTheSystemGivesOut) {
  const os::PortRange range = os::ephemeral_ports();
  std::set<std::uint16_t> seen;
  std::vector<ServicePort> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(reserved(wish(0)));
    EXPECT_GE(held.back().port(), range.first);
    EXPECT_LE(held.back().port(), range.last);
    EXPECT_EQ(error_of(wish(held.back().port(), "192.0.2.1")), EADDRINUSE);
    seen.insert(held.back().port());
  }
  EXPECT_EQ(seen.size(), held.size());
}

// body() in a network of its own that gives out these ports. True if there is none; false: it has
// been done.
template <class Body>
bool lacks_network(const char* ports, std::uint16_t last, Body&& body) {
  const int status = os::run_in_child([&] {
    const int own = ::geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET;
    if (::unshare(own) != 0) return os::kChildSkips;
    std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << ports;
    if (os::ephemeral_ports().last != last) return os::kChildSkips;
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == os::kChildSkips) return true;
  EXPECT_EQ(status, 0);
  return false;
}

TEST(ServicePort, OfNoNumberIsTheLastThatIsLeft) {
  for (const bool is_of_client : {false, true}) {
    const auto take_all = [is_of_client] {
      Wish wanted = wish(0);
      wanted.is_of_client = is_of_client;
      const ServicePort other = reserved(wish(40001, "192.0.2.1"));
      std::set<std::uint16_t> seen;
      std::vector<ServicePort> held;
      for (int i = 0; i < 3; ++i) {
        held.push_back(reserved(wanted));
        seen.insert(held.back().port());
      }
      EXPECT_EQ(seen, (std::set<std::uint16_t>{40000, 40002, 40003}));
      EXPECT_EQ(error_of(wanted), EADDRNOTAVAIL);
    };
    if (lacks_network("40000 40003", 40003, take_all))
      GTEST_SKIP() << "no namespace of its own, or no way to set its range";
  }
}

TEST(ServicePort, OfAClientWasNobodysBefore) {
  const auto ask = [] {
    Wish shared = wish(40001, "192.0.2.1");
    shared.reuse = true;
    std::vector<ServicePort> held;
    for (int i = 0; i < 3; ++i) held.push_back(reserved(shared));
    EXPECT_EQ(error_of(wish(0, "192.0.2.2")), 0) << "who may listen can have it elsewhere";
    for (; !held.empty(); held.erase(held.begin()))
      EXPECT_EQ(error_of(client_at("192.0.2.2")), EADDRNOTAVAIL);
    EXPECT_EQ(error_of(client_at("192.0.2.2")), 0);
  };
  if (lacks_network("40001 40001", 40001, ask))
    GTEST_SKIP() << "no namespace of its own, or no way to set its range";
}

TEST(ServicePort, IsHadThoughOneWhoIsStoppedKeepsTheLock) {
  const auto lock =
      os::HostName::take("softhca/1/rdma-port-lock/" + std::to_string(own_space()) + "/7174");
  ASSERT_TRUE(lock);
  const ServicePort port = reserved(wish(7174));
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
}

TEST(ServicePort, DoesNotBelieveNamesOfAnotherForm) {
  const std::string prefix = "softhca/1/rdma-port/" + std::to_string(own_space()) + "/7174/";
  const auto one = os::HostName::take(prefix);
  const auto other = os::HostName::take(prefix + "alone/nowhere/0");
  ASSERT_TRUE(one && other);
  EXPECT_EQ(error_of(wish(7174)), 0);
}

// A pipe that many wait at until it is closed.
struct Start {
  Start() { EXPECT_EQ(::pipe(ends.data()), 0); }
  Start(const Start&) = delete;
  ~Start() {
    give();
    close(ends[0]);
  }
  void give() {
    if (ends[1] >= 0) close(std::exchange(ends[1], -1));
  }
  std::array<int, 2> ends{};
};

// A process with one port, until it is ended.
class Holder {
 public:
  Holder(const Wish& wanted, uid_t uid, Start* start = nullptr) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    pid_ = fork();
    if (pid_ == 0) live(wanted, uid, start, pipe[1]);
    close(pipe[1]);
    answer_ = pipe[0];
  }
  Holder(Holder&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)), answer_(std::exchange(other.answer_, -1)) {}
  Holder& operator=(Holder&&) = delete;
  ~Holder() {
    if (pid_ > 0) end(SIGKILL);
    if (answer_ >= 0) close(answer_);
  }

  // 0, or why it has no port.
  int error() const {
    int answer = -1;
    EXPECT_EQ(read(answer_, &answer, sizeof answer), ssize_t{sizeof answer});
    return answer;
  }
  void end(int signal) {
    kill(pid_, signal);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }

 private:
  static void live(const Wish& wanted, uid_t uid, Start* start, int answer) {
    char byte = 0;
    if (uid != getuid() && setresuid(uid, uid, uid) != 0) _exit(1);
    if (start != nullptr) start->give();
    if (start != nullptr && read(start->ends[0], &byte, 1) != 0) _exit(1);
    const auto port = ServicePort::reserve(wanted);
    const int error = port ? 0 : port.error().number;
    if (write(answer, &error, sizeof error) != ssize_t{sizeof error}) _exit(1);
    for (;;) pause();
  }

  pid_t pid_ = 0;
  int answer_ = -1;
};

uid_t somebody_else() { return getuid() == 0 ? 65534 : getuid(); }

TEST(ServicePort, OfAKilledProcessOfAnotherUserIsFree) {
  Holder holder(wish(7174, "192.0.2.1"), somebody_else());
  ASSERT_EQ(holder.error(), 0);
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
  holder.stop();
  EXPECT_EQ(error_of(wish(7174)), EADDRINUSE);
  holder.end(SIGKILL);
  EXPECT_EQ(error_of(wish(7174)), 0);
}

TEST(ServicePort, GoesToOneOfManyWhoWantItAtOnce) {
  for (int round = 0; round < 10; ++round) {
    Start start;
    std::vector<Holder> holders;
    for (int i = 0; i < 8; ++i)
      holders.emplace_back(wish(7174, i % 2 == 0 ? "::" : "192.0.2.1"),
                           i % 3 == 0 ? somebody_else() : getuid(), &start);
    start.give();
    int have_it = 0;
    for (const Holder& holder : holders) have_it += holder.error() == 0 ? 1 : 0;
    EXPECT_EQ(have_it, 1);
  }
}

}  // namespace
}  // namespace softhca::local
