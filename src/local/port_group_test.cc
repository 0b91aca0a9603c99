#include "local/port_group.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "os/bound_sockets.h"
#include "os/datagram_arena.h"

namespace softhca::local {
namespace {

const os::IpAddress kLoopback = os::IpAddress::of_ipv4({127, 0, 0, 1});

// A port that nobody has now.
Domain free_domain() {
  auto socket = os::UdpSocket::open({.address = kLoopback}, os::UdpUse::Shared);
  return {.interface_index = 1, .port = socket ? socket->port() : std::uint16_t{0}};
}

struct Tally {
  std::uint32_t block = 0;
  std::uint32_t right = 0;  // packets for the own block, at the own socket
  std::uint32_t wrong = 0;  // packets for others
  bool steered = false;
  bool joined = false;
  bool lodging = false;
};

// Counts what has arrived. Loopback delivers before the sender's call returns.
void drain(PortGroup& group, Tally& tally) {
  if (group.is_lodging()) return;
  os::DatagramArena arena(64, 128);
  while (const std::size_t n = arena.receive(group.socket().fd(), 0, 64))
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t qpn = load_be<std::uint32_t>(arena.arrival(i).bytes, 4);
      ++(block_of(qpn) == tally.block ? tally.right : tally.wrong);
    }
}

// Another process that joins and then answers questions: 't' tally, 'r' repair and tally, 'n' look
// whether the port is free now and tally, 'q' leave and end.
class Member {
 public:
  Member(const Domain& domain, std::uint64_t seed, bool steering = true, uid_t uid = getuid()) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      // Who becomes another user is hidden from its neighbours until it says otherwise.
      if (uid != getuid() && (setresuid(uid, uid, uid) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0))
        _exit(1);
      live(ends[1], domain, seed, steering);
      _exit(0);
    }
    close(ends[1]);
    fd_ = ends[0];
    tally_ = hear();
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() { end(SIGKILL); }

  void end(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
    close(fd_);
  }
  void stop() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() const { kill(pid_, SIGCONT); }
  void leave() {
    EXPECT_EQ(write(fd_, "q", 1), 1);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
    close(fd_);
  }
  void say(char question) const { EXPECT_EQ(write(fd_, &question, 1), 1); }
  Tally hear() const {
    Tally tally;
    EXPECT_EQ(read(fd_, &tally, sizeof tally), ssize_t{sizeof tally});
    return tally;
  }
  Tally ask(char question) const {
    say(question);
    return hear();
  }
  std::uint32_t block() const { return tally_.block; }
  bool joined() const { return tally_.joined; }

 private:
  static void live(int fd, const Domain& domain, std::uint64_t seed, bool steering) {
    auto block = QpnBlock::allocate(domain, seed);
    Tally tally;
    if (!block) return;
    tally.block = block->number();
    auto group = PortGroup::join(
        {.address = kLoopback, .domain = domain, .block = block->number(), .steering = steering});
    tally.joined = static_cast<bool>(group);
    char question = 't';
    Time now{};
    while (group && question != 'q') {
      if (question == 'r') group->repair();
      if (question == 'n') group->take_if_free(now = now + seconds(1), true);
      tally.lodging = group->is_lodging();
      tally.right = tally.wrong = 0;
      drain(*group, tally);
      tally.steered = group->is_steered();
      if (write(fd, &tally, sizeof tally) != sizeof tally) return;
      if (read(fd, &question, 1) != 1) return;
    }
  }

  pid_t pid_ = 0;
  int fd_ = -1;
  Tally tally_;
};

using Members = std::vector<std::unique_ptr<Member>>;

class PortGroupTest : public ::testing::Test {
 protected:
  Member& add(bool steering = true, uid_t uid = getuid()) {
    members_.push_back(std::make_unique<Member>(domain_, ++seed_, steering, uid));
    EXPECT_TRUE(members_.back()->joined());
    return *members_.back();
  }
  void remove(std::size_t i) { members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i)); }

  // Sends to many QPNs of every member, from ports of all kinds.
  void send_to_all() {
    for (int port = 0; port < 4; ++port) {
      auto sender = os::UdpSocket::open({.address = kLoopback}, os::UdpUse::SendOnly);
      ASSERT_TRUE(sender);
      for (const auto& member : members_)
        for (std::uint32_t i = 0; i < kPacketsPerPort; ++i) {
          std::array<std::byte, 20> packet{};
          const std::uint32_t qpn = member->block() << kQpnBlockShift | (i * 341 & 0xfff);
          store_be(packet, 4, qpn);
          const os::OutgoingDatagram datagram{
              .bytes = packet, .destination = kLoopback, .destination_port = domain_.port};
          ASSERT_EQ(sender->send({&datagram, 1}).taken, 1u);
        }
    }
  }
  void expect_all_right() {
    send_to_all();
    for (const auto& member : members_) {
      const Tally tally = member->ask('t');
      EXPECT_EQ(tally.right, 4 * kPacketsPerPort);
      EXPECT_EQ(tally.wrong, 0u);
    }
  }
  std::uint32_t total() {
    std::uint32_t sum = 0;
    for (const auto& member : members_) {
      const Tally tally = member->ask('t');
      sum += tally.right + tally.wrong;
    }
    return sum;
  }

  std::string lock_name() const {
    return "softhca/1/lock/" + std::to_string(domain_.port) + "/1/127.0.0.1/" +
           std::to_string(os::own_uid());
  }

  static constexpr std::uint32_t kPacketsPerPort = 12;
  Domain domain_ = free_domain();
  std::uint64_t seed_ = 40;
  Members members_;
};

TEST_F(PortGroupTest, SteersEveryPacketToTheOwnerOfItsQpn) {
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(add().ask('t').steered);
  expect_all_right();
}

TEST_F(PortGroupTest, IsRightAgainWhenAnyRepairsAfterMembersLeftAndWhenTheyComeBack) {
  for (int i = 0; i < 5; ++i) add();
  for (const std::size_t leaver : {1u, 0u}) {
    members_[leaver]->leave();
    remove(leaver);
    members_[0]->ask('r');
    expect_all_right();
  }
  add();
  add();
  expect_all_right();
}

// Packets keep coming while a member leaves: they reach those who stay, wherever first.
TEST_F(PortGroupTest, LosesNothingOfTheOthersWhenAMemberLeaves) {
  for (int i = 0; i < 3; ++i) add();
  members_[0]->leave();
  remove(0);
  send_to_all();
  EXPECT_EQ(total(), 2 * 4 * kPacketsPerPort);
}

TEST_F(PortGroupTest, IsRightAgainWithTheFirstJoinAfterAKill) {
  for (int i = 0; i < 5; ++i) add();
  remove(1);  // kill -9
  add();
  expect_all_right();
}

TEST_F(PortGroupTest, IsRightAgainAfterRepair) {
  for (int i = 0; i < 5; ++i) add();
  remove(0);
  EXPECT_TRUE(members_[2]->ask('r').steered);
  expect_all_right();
}

TEST_F(PortGroupTest, NeedsNoHelpOfAStoppedMember) {
  add().stop();
  for (int i = 0; i < 3; ++i) add();
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(members_[i]->ask('t').steered);
  send_to_all();
  members_[0]->resume();
  for (const auto& member : members_) {
    const Tally tally = member->ask('t');
    EXPECT_EQ(tally.right, 4 * kPacketsPerPort);
    EXPECT_EQ(tally.wrong, 0u);
  }
}

TEST_F(PortGroupTest, DoesNotSteerWhereTheOrderOfDeathsIsUnknown) {
  for (int i = 0; i < 5; ++i) add();
  remove(0);
  remove(0);
  // The three that are left have places 0, 1 and 2, two of them in an unknown order.
  const Tally repaired = members_[0]->ask('r');
  EXPECT_TRUE(repaired.steered);  // was at place 2 and never moved
  EXPECT_FALSE(members_[1]->ask('r').steered);
  EXPECT_TRUE(add().ask('t').steered);
  send_to_all();
  const Tally unmoved = members_[0]->ask('t');
  const Tally joined = members_[3]->ask('t');
  EXPECT_EQ(unmoved.right, 4 * kPacketsPerPort);
  EXPECT_EQ(joined.right, 4 * kPacketsPerPort);
  // Nothing is lost: what is for the others is with somebody.
  EXPECT_EQ(total() + unmoved.right + unmoved.wrong + joined.right + joined.wrong,
            4 * 4 * kPacketsPerPort);
}

TEST_F(PortGroupTest, DeliversToSomeMemberWithoutSteering) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(add(false).ask('t').steered);
  send_to_all();
  EXPECT_EQ(total(), 3 * 4 * kPacketsPerPort);
}

TEST_F(PortGroupTest, CountsAMemberThatDoesNotSteerWhenItGivesPlaces) {
  add(false);
  add();
  add(false);
  add();
  EXPECT_TRUE(members_[1]->ask('t').steered);
  EXPECT_TRUE(members_[3]->ask('t').steered);
  send_to_all();
  EXPECT_EQ(members_[1]->ask('t').right, 4 * kPacketsPerPort);
  EXPECT_EQ(members_[3]->ask('t').right, 4 * kPacketsPerPort);
}

TEST_F(PortGroupTest, SaysWhoHasThePort) {
  // A socket that does not share.
  auto holder =
      os::UdpSocket::open({.address = kLoopback, .port = domain_.port}, os::UdpUse::SendOnly);
  ASSERT_TRUE(holder);
  const auto group = PortGroup::join({.address = kLoopback, .domain = domain_, .block = 7});
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().reason, trace::ReasonId::UdpPortTaken);
  EXPECT_EQ(group.error().text, "UDP " + std::to_string(domain_.port) +
                                    " on 127.0.0.1 is taken by a socket of uid " +
                                    std::to_string(os::own_uid()));
}

constexpr const char* kOnlyRoot = "only root can become somebody else";
constexpr uid_t kFirstUser = 65534;
constexpr uid_t kSecondUser = 65533;
constexpr uid_t kThirdUser = 65532;

TEST_F(PortGroupTest, SaysThatAnotherUserHasThePortWithoutSoftHca) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  auto holder =
      os::UdpSocket::open({.address = kLoopback, .port = domain_.port}, os::UdpUse::Shared);
  ASSERT_TRUE(holder);
  // Somebody who is not the holder says that the holder is SoftHCA.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setuid(kFirstUser) != 0) _exit(1);
    const auto lie = os::HostName::take(beacon_prefix(domain_, kLoopback, 0) + "1/2");
    const auto group = PortGroup::join({.address = kLoopback, .domain = domain_, .block = 8});
    if (group || !lie) _exit(2);
    if (group.error().reason != trace::ReasonId::UdpPortTaken) _exit(3);
    _exit(group.error().text.ends_with("taken by a socket of uid 0") ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(PortGroupTest, LodgesWhereAnotherUserHasThePortAndTakesItWhenHeLeaves) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  add(true, kFirstUser);
  add(true, kFirstUser);
  auto group = PortGroup::join({.address = kLoopback, .domain = domain_, .block = 7});
  ASSERT_TRUE(group);
  ASSERT_TRUE(group->is_lodging());
  EXPECT_TRUE(has_beacon(domain_.port, "127.0.0.1", kFirstUser));
  EXPECT_FALSE(has_beacon(domain_.port, "127.0.0.1", kThirdUser));
  EXPECT_TRUE(group->believes(kFirstUser, Time{}));
  EXPECT_FALSE(group->believes(kSecondUser, Time{}));

  // Tries become rare.
  Time now{};
  Duration pause{};
  for (int i = 0; i < 10; ++i, now = group->next_try()) {
    group->take_if_free(now, true);
    EXPECT_GE(group->next_try() - now, pause);
    pause = group->next_try() - now;
  }
  EXPECT_EQ(pause, Lodging::kLastPause);
  EXPECT_TRUE(group->is_lodging());

  // One of his processes leaves: we look at the other one. Nobody tells, but it is noticed.
  members_[0]->leave();
  remove(0);
  members_[0]->leave();
  remove(0);
  for (int i = 0; i < 3 && group->is_lodging(); ++i) group->take_if_free(now, true);
  EXPECT_FALSE(group->is_lodging());
  EXPECT_TRUE(group->is_steered());
  EXPECT_EQ(group->next_try(), Time::never());
  EXPECT_TRUE(group->believes(kFirstUser, now + milliseconds(900))) << "his last words";
  EXPECT_FALSE(group->believes(kFirstUser, now + seconds(1)));
  EXPECT_FALSE(group->believes(kSecondUser, now));
  EXPECT_EQ(group->fd(), group->socket().fd());
}

TEST_F(PortGroupTest, GivesThePortOfAKilledUserToOneOfTheLodgers) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  add(true, kFirstUser);
  add(true, kSecondUser);
  add(true, kThirdUser);
  add(true, kSecondUser);
  EXPECT_FALSE(members_[0]->ask('n').lodging);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_TRUE(members_[i]->ask('n').lodging);
  remove(0);  // kill -9
  EXPECT_FALSE(members_[0]->ask('n').lodging);
  EXPECT_TRUE(members_[1]->ask('n').lodging);
  EXPECT_FALSE(members_[2]->ask('n').lodging);
  const auto bound = os::bound_udp_sockets(kLoopback, domain_.port);
  ASSERT_TRUE(bound);
  ASSERT_EQ(bound->size(), 2u);
  EXPECT_EQ((*bound)[0].uid, kSecondUser);
  EXPECT_EQ((*bound)[1].uid, kSecondUser);
  // Both are in order.
  members_.erase(members_.begin() + 1);
  expect_all_right();
}

TEST_F(PortGroupTest, HasOneHolderAfterLodgersOfManyUsersHaveRaced) {
  if (getuid() != 0) GTEST_SKIP() << kOnlyRoot;
  constexpr uid_t kUsers = 3;
  constexpr std::size_t kOfEach = 2;
  add(true, kFirstUser);
  for (std::size_t i = 0; i < kOfEach; ++i)
    for (uid_t user = 1; user <= kUsers; ++user) add(true, kFirstUser - user);
  remove(0);  // kill -9
  // Those of one user may keep each other waiting for a moment.
  std::size_t members = 0;
  for (int round = 0; round < 10 && members < kOfEach; ++round) {
    members = 0;
    for (const auto& member : members_) member->say('n');
    for (const auto& member : members_) members += member->hear().lodging ? 0 : 1;
  }
  EXPECT_EQ(members, kOfEach);
  const auto bound = os::bound_udp_sockets(kLoopback, domain_.port);
  ASSERT_TRUE(bound);
  ASSERT_EQ(bound->size(), kOfEach);
  EXPECT_EQ((*bound)[0].uid, (*bound)[1].uid);
}

TEST_F(PortGroupTest, SaysThatNoInterfaceHasTheAddress) {
  const auto group = PortGroup::join(
      {.address = os::IpAddress::of_ipv4({198, 51, 100, 7}), .domain = domain_, .block = 7});
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().reason, trace::ReasonId::NoInterface);
}

// SIGSTOP may come between the taking of the lock and the end of it.
TEST_F(PortGroupTest, RepairsBesideOneWhoIsStoppedWithTheLock) {
  for (int i = 0; i < 4; ++i) add();
  remove(1);  // kill -9
  const auto lock = os::HostName::take(lock_name());
  ASSERT_TRUE(lock);
  members_[0]->stop();
  members_[1]->ask('r');
  members_[1]->ask('r');
  send_to_all();
  members_[0]->resume();
  for (const auto& member : members_) EXPECT_EQ(member->ask('t').right, 4 * kPacketsPerPort);
}

TEST_F(PortGroupTest, JoinsWithoutSteeringIfSomebodyKeepsTheLock) {
  auto lock = os::HostName::take(lock_name());
  ASSERT_TRUE(lock);
  auto group = PortGroup::join({.address = kLoopback, .domain = domain_, .block = 7});
  ASSERT_TRUE(group);
  EXPECT_FALSE(group->is_steered());
  // Once the lock is free, it finds its place.
  lock->release();
  group->repair();
  EXPECT_TRUE(group->is_steered());
}

TEST_F(PortGroupTest, LeavesTheGroupToTheParentWhenAForkedChildAbandonsIt) {
  auto group = PortGroup::join({.address = kLoopback, .domain = domain_, .block = 7});
  ASSERT_TRUE(group);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    group->abandon();
    _exit(group->socket().is_open() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  add();
  send_to_all();
  EXPECT_EQ(members_[0]->ask('t').right, 4 * kPacketsPerPort);
}

}  // namespace
}  // namespace softhca::local
