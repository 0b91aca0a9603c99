#include "local/qpn_block.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <vector>

namespace softhca::local {
namespace {

// A port of this process alone, so that tests that run at once do not meet.
Domain own_domain() {
  return {.interface_index = 77, .port = static_cast<std::uint16_t>(20000 + getpid() % 20000)};
}

TEST(QpnBlock, GivesEveryCallerABlockOfItsOwn) {
  std::vector<QpnBlock> blocks;
  std::set<std::uint32_t> numbers;
  for (int i = 0; i < 100; ++i) {
    auto block = QpnBlock::allocate(own_domain(), 5);
    ASSERT_TRUE(block) << error_text(block.error());
    numbers.insert(block->number());
    blocks.push_back(std::move(*block));
  }
  EXPECT_EQ(numbers.size(), 100u);
}

TEST(QpnBlock, NeverGivesQpnsThatBelongToEverybody) {
  EXPECT_FALSE(can_be_owned(block_of(0)));
  EXPECT_FALSE(can_be_owned(block_of(1)));
  EXPECT_FALSE(can_be_owned(block_of(0xff'ffff)));
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    const auto block = QpnBlock::allocate(own_domain(), seed);
    ASSERT_TRUE(block) << error_text(block.error());
    ASSERT_TRUE(can_be_owned(block->number()));
    ASSERT_EQ(block_of(block->first_qpn()), block->number());
    ASSERT_EQ(block_of(block->first_qpn() + kQpnsPerBlock - 1), block->number());
  }
}

TEST(QpnBlock, MayBeTheSameOnAnotherInterfaceOrPort) {
  const Domain here = own_domain();
  const Domain there{.interface_index = here.interface_index + 1, .port = here.port};
  const auto first = QpnBlock::allocate(here, 9);
  const auto second = QpnBlock::allocate(there, 9);
  ASSERT_TRUE(first);
  ASSERT_TRUE(second);
  EXPECT_EQ(first->number(), second->number());
}

// Also where it is another user's, if this one may become one.
TEST(QpnBlock, IsFreeAgainAsSoonAsItsHolderIsKilled) {
  const Domain domain = own_domain();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(1);
    const auto block = QpnBlock::allocate(domain, 3);
    const std::uint32_t number = block ? block->number() : 0;
    if (write(ready[1], &number, sizeof number) != sizeof number) _exit(1);
    pause();
    _exit(0);
  }
  std::uint32_t taken = 0;
  ASSERT_EQ(read(ready[0], &taken, sizeof taken), ssize_t{sizeof taken});
  ASSERT_TRUE(can_be_owned(taken));
  {
    const auto other = QpnBlock::allocate(domain, 3);
    ASSERT_TRUE(other);
    EXPECT_NE(other->number(), taken);
  }
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto again = QpnBlock::allocate(domain, 3);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->number(), taken);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace softhca::local
