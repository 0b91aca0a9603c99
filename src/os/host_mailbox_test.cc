#include "os/host_mailbox.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "os/host_name.h"
#include "os/self.h"

namespace softhca::os {
namespace {

using Sent = HostMailbox::Sent;

std::string mailbox_name(const char* what) {
  static const std::string prefix = "softhca-test/" + std::to_string(own_pid()) + "/";
  return prefix + what;
}

ConstBytes bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class HostMailboxTest : public ::testing::Test {
 protected:
  static std::unique_ptr<HostMailbox> open(const char* what) {
    auto made = HostMailbox::open(mailbox_name(what));
    EXPECT_TRUE(made) << error_text(made.error());
    return std::make_unique<HostMailbox>(std::move(*made));
  }
  // Everything that waits.
  std::vector<std::string> drain(HostMailbox& box) {
    std::vector<std::string> all;
    while (const std::size_t n = box.receive(arena_, 1, 16)) {
      for (std::size_t i = 0; i < n; ++i) {
        const Arrival& arrival = arena_.arrival(1 + i);
        EXPECT_EQ(arrival.uid, own_uid());
        all.emplace_back(reinterpret_cast<const char*>(arrival.bytes.data()), arrival.bytes.size());
      }
    }
    return all;
  }
  DatagramArena arena_{17, 5000};
};

TEST_F(HostMailboxTest, HasItsNameAlone) {
  auto box = open("a");
  const auto second = HostMailbox::open(mailbox_name("a"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().number, EADDRINUSE);
  box->close();
  EXPECT_TRUE(HostMailbox::open(mailbox_name("a")));
}

TEST_F(HostMailboxTest, JoinsHeadAndBodyToOneMessage) {
  auto a = open("a");
  auto b = open("b");
  EXPECT_EQ(a->send(mailbox_name("b"), bytes("head"), bytes("-body")), Sent::Yes);
  EXPECT_EQ(a->send(mailbox_name("b"), bytes("x"), {}), Sent::Yes);
  EXPECT_EQ(drain(*b), (std::vector<std::string>{"head-body", "x"}));
  EXPECT_TRUE(drain(*a).empty());
}

TEST_F(HostMailboxTest, HoldsABurstThatNobodyReads) {
  auto a = open("a");
  auto b = open("b");
  constexpr int kBurst = 30;
  const std::string body(4200, 'b');
  for (int i = 0; i < kBurst; ++i)
    ASSERT_EQ(a->send(mailbox_name("b"), bytes(std::to_string(i)), bytes(body)), Sent::Yes);
  const auto all = drain(*b);
  ASSERT_EQ(all.size(), std::size_t{kBurst});
  for (int i = 0; i < kBurst; ++i)
    EXPECT_EQ(all[static_cast<std::size_t>(i)], std::to_string(i) + body);
}

TEST_F(HostMailboxTest, SaysWhenNobodyHasTheNameAndWhenNoMoreFits) {
  auto a = open("a");
  EXPECT_EQ(a->send(mailbox_name("nobody"), bytes("x"), {}), Sent::Nobody);
  auto b = open("b");
  Sent last = Sent::Yes;
  for (int i = 0; i < 1'000'000 && last == Sent::Yes; ++i)
    last = a->send(mailbox_name("b"), bytes("x"), {});
  EXPECT_EQ(last, Sent::Full);
  EXPECT_GT(drain(*b).size(), 100u);
  EXPECT_EQ(a->send(mailbox_name("b"), bytes("x"), {}), Sent::Yes);
}

TEST_F(HostMailboxTest, FindsTheNextHolderOfAName) {
  auto a = open("a");
  auto b = open("b");
  ASSERT_EQ(a->send(mailbox_name("b"), bytes("1"), {}), Sent::Yes);
  b.reset();
  EXPECT_EQ(a->send(mailbox_name("b"), bytes("2"), {}), Sent::Nobody);
  b = open("b");
  EXPECT_EQ(a->send(mailbox_name("b"), bytes("3"), {}), Sent::Yes);
  EXPECT_EQ(drain(*b), std::vector<std::string>{"3"});
}

TEST_F(HostMailboxTest, DeliversWhatADeadSenderLeft) {
  auto b = open("b");
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto made = HostMailbox::open(mailbox_name("child"));
      const bool sent = made && made->send(mailbox_name("b"), bytes("last words"), {}) == Sent::Yes;
      _exit(sent ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    EXPECT_EQ(drain(*b), std::vector<std::string>{"last words"});
  }
}

// True if another user could send it.
bool send_as(uid_t uid, const std::string& to, const std::string& text) {
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(uid) != 0) _exit(1);
    auto made = HostMailbox::open(to + "-child");
    _exit(made && made->send(to, bytes(text), {}) == Sent::Yes ? 0 : 2);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

TEST_F(HostMailboxTest, KnowsWhoseANameIs) {
  const auto a = open("a");
  const auto b = open("b");
  EXPECT_TRUE(a->is_of_this_user(mailbox_name("b")));
  EXPECT_FALSE(a->is_of_this_user(mailbox_name("nobody")));
}

TEST_F(HostMailboxTest, TurnsAnotherUserAway) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  auto b = open("b");
  ASSERT_TRUE(send_as(65534, mailbox_name("b"), "forged"));
  EXPECT_TRUE(drain(*b).empty());
}

TEST_F(HostMailboxTest, LetsInWhomTheOwnerAdmitsAndSaysWhoItIs) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  auto b = open("b");
  for (const uid_t uid : {65533u, 65534u})
    ASSERT_TRUE(send_as(uid, mailbox_name("b"), "word of " + std::to_string(uid)));
  const std::size_t n = b->receive(arena_, 0, 16, [](std::uint32_t uid) { return uid == 65533; });
  ASSERT_EQ(n, 1u);
  EXPECT_EQ(arena_.arrival(0).uid, 65533u);
  EXPECT_EQ(arena_.arrival(0).bytes.size(), std::string("word of 65533").size());
}

TEST_F(HostMailboxTest, ServesMoreSendersThanItKeeps) {
  auto b = open("b");
  for (int i = 0; i < 300; ++i) {
    auto a = open("a");
    ASSERT_EQ(a->send(mailbox_name("b"), bytes(std::to_string(i)), {}), Sent::Yes);
    ASSERT_EQ(drain(*b), std::vector<std::string>{std::to_string(i)});
  }
}

}  // namespace
}  // namespace softhca::os
