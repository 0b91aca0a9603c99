#include "local/service_names.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/owned_fd.h"

namespace softhca::local {
namespace {

using Found = ServiceNames::Found;

constexpr std::uint64_t kService = 0x106'1c06;
const os::IpAddress kEvery{};
constexpr Time kNow = Time{0} + seconds(5);
constexpr Time kLater = kNow + ServiceNames::kBelievedFor;

// An interface of this process alone, so that tests that run at once do not meet.
Domain private_domain() {
  return {.interface_index = static_cast<std::uint32_t>(100'000 + getpid()), .port = 4791};
}
os::IpAddress address(std::uint8_t last) {
  os::IpAddress a;
  a.bytes[10] = a.bytes[11] = 0xff;
  a.bytes[12] = 192;
  a.bytes[15] = last;
  return a;
}

TEST(ServiceNames, LeadToWhoListens) {
  ServiceNames listener(private_domain(), 7);
  ServiceNames other(private_domain(), 8);
  EXPECT_EQ(other.find(kService, address(1), kNow).found, Found::Nobody);
  ASSERT_TRUE(listener.claim(kService, kEvery));
  const auto found = other.find(kService, address(1), kNow);
  EXPECT_EQ(found.found, Found::Block);
  EXPECT_EQ(found.block, 7u);
  EXPECT_EQ(other.find(kService + 1, address(1), kNow).found, Found::Nobody);
  ServiceNames elsewhere({private_domain().interface_index + 1, 4791}, 8);
  EXPECT_EQ(elsewhere.find(kService, address(1), kNow).found, Found::Nobody);
}

TEST(ServiceNames, PreferTheListenerOfTheAddress) {
  ServiceNames every(private_domain(), 7);
  ServiceNames one(private_domain(), 9);
  ASSERT_TRUE(every.claim(kService, kEvery));
  ASSERT_TRUE(one.claim(kService, address(1)));
  ServiceNames asks(private_domain(), 8);
  EXPECT_EQ(asks.find(kService, address(1), kNow).block, 9u);
  EXPECT_EQ(asks.find(kService, address(2), kNow).block, 7u);
}

TEST(ServiceNames, AreHadOnce) {
  ServiceNames first(private_domain(), 7);
  ServiceNames second(private_domain(), 8);
  ASSERT_TRUE(first.claim(kService, address(1)));
  EXPECT_FALSE(second.claim(kService, address(1)));
  EXPECT_TRUE(second.claim(kService, address(2)));
  first.give_back(kService, address(1));
  EXPECT_TRUE(second.claim(kService, address(1)));
}

TEST(ServiceNames, AreBelievedForAWhile) {
  ServiceNames listener(private_domain(), 7);
  ServiceNames asks(private_domain(), 8);
  ASSERT_TRUE(listener.claim(kService, kEvery));
  EXPECT_EQ(asks.find(kService, address(1), kNow).block, 7u);
  listener.give_back(kService, kEvery);
  EXPECT_EQ(asks.find(kService, address(1), kNow).found, Found::Block);
  EXPECT_EQ(asks.find(kService, address(1), kLater).found, Found::Nobody);
}

// Anybody on the network can ask for a service that nobody has.
TEST(ServiceNames, StrangersCannotMakeUsLookAllTheTime) {
  ServiceNames names(private_domain(), 8);
  for (std::uint32_t i = 0; i < ServiceNames::kLooksPerSecond; ++i)
    ASSERT_EQ(names.find(kService + i, address(1), kNow).found, Found::Nobody);
  EXPECT_EQ(names.find(kService, address(1), kNow).found, Found::Unknown);
  EXPECT_EQ(names.find(kService, address(1), kNow + seconds(1)).found, Found::Nobody);
}

TEST(ServiceNames, AreGoneWithTheirProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const os::OwnedFd reads(ready[0]);
  os::OwnedFd writes(ready[1]);
  const Domain domain = private_domain();
  const pid_t child = fork();
  if (child == 0) {
    ServiceNames listener(domain, 7);
    const bool claimed = listener.claim(kService, kEvery);
    const ssize_t n = write(writes.get(), claimed ? "y" : "n", 1);
    for (; n == 1;) pause();
    _exit(1);
  }
  char answer{};
  ASSERT_EQ(read(reads.get(), &answer, 1), 1);
  ServiceNames asks(domain, 8);
  EXPECT_EQ(asks.find(kService, address(1), kNow).block, answer == 'y' ? 7u : 0u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(asks.find(kService, address(1), kLater).found, Found::Nobody);
  EXPECT_EQ(answer, 'y');
}

}  // namespace
}  // namespace softhca::local
