#include "local/accessors.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "os/owned_fd.h"
#include "os/peer_memory.h"
#include "os/self.h"
#include "os/test_child.h"

namespace softhca::local {
namespace {

// A table, and a file of this process that says that it lives.
struct Room {
  os::PeerTable table = std::move(*os::PeerTable::create("softhca-test", sizeof(AccessorRecord)));
  Accessors owner{table.bytes()};
  AccessorRecord& record() { return *reinterpret_cast<AccessorRecord*>(table.bytes().data()); }
  AccessorIdentity self(std::uint32_t pid = os::own_pid()) const {
    return {.pid = pid, .file = table.fd(), .inode = os::identity_of(table.fd())->inode};
  }
};

// A process that claims a place and then does as it is told, until it is killed.
pid_t start_child(Room& room, const std::function<void(Accessor&)>& act) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto accessor = Accessor::claim(room.table.bytes(), room.self(os::own_pid()));
    if (!accessor) _exit(1);
    act(*accessor);
    static_cast<void>(!write(ready[1], "", 1));
    for (;;) pause();
  }
  char byte;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  return child;
}

void end_child(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

TEST(Accessors, WaitForNobodyWhoIsOutside) {
  Room room;
  room.owner.wait_until_left();
  auto accessor = Accessor::claim(room.table.bytes(), room.self());
  ASSERT_TRUE(accessor);
  accessor->enter();
  accessor->leave();
  room.owner.wait_until_left();
  EXPECT_EQ(room.record().slots[0].sequence, 2u);
}

TEST(Accessors, DoNotWaitForOneThatDiedInside) {
  Room room;
  const pid_t child = start_child(room, [](Accessor& accessor) { accessor.enter(); });
  EXPECT_EQ(room.record().slots[0].sequence, 1u);
  end_child(child);
  room.owner.wait_until_left();
  EXPECT_EQ(room.record().slots[0].sequence, 2u);
}

TEST(Accessors, TakeTheLockFromOneThatDied) {
  Room room;
  const pid_t child = start_child(room, [](Accessor& accessor) {
    accessor.enter();
    accessor.lock([] { return true; });
  });
  EXPECT_EQ(room.record().lock, 1u);
  end_child(child);
  room.owner.lock();
  room.owner.unlock();
  EXPECT_EQ(room.record().lock, 0u);
}

TEST(Accessor, DoesNotWaitForAnOwnerThatDiedWithTheLock) {
  Room room;
  room.owner.lock();
  auto accessor = Accessor::claim(room.table.bytes(), room.self());
  ASSERT_TRUE(accessor);
  accessor->enter();
  EXPECT_FALSE(accessor->lock([] { return false; }));
  room.owner.unlock();
  EXPECT_TRUE(accessor->lock([] { return true; }));
  accessor->unlock();
  accessor->leave();
}

// As it does between two messages: whoever used the device last may have been any thread.
TEST(Accessor, KeepsItsPlaceWhenTheThreadThatUsedItHasEnded) {
  Room room;
  auto accessor = Accessor::claim(room.table.bytes(), room.self());
  ASSERT_TRUE(accessor);
  std::thread([&] {
    accessor->enter();
    accessor->leave();
  }).join();
  const auto other = Accessor::claim(room.table.bytes(), room.self());
  ASSERT_TRUE(other);
  EXPECT_NE(other->number(), accessor->number());
}

TEST(Accessor, IsWaitedForWhileItIsInside) {
  Room room;
  auto accessor = Accessor::claim(room.table.bytes(), room.self());
  ASSERT_TRUE(accessor);
  accessor->enter();
  // The owner, a process of its own, has to see it leave before it goes on.
  auto* const passed = static_cast<std::uint32_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t owner = fork();
  if (owner == 0) {
    room.owner.wait_until_left();
    std::atomic_ref(*passed).store(room.record().slots[0].sequence);
    _exit(0);
  }
  accessor->leave();
  int status = 0;
  ASSERT_EQ(waitpid(owner, &status, 0), owner);
  EXPECT_EQ(*passed, 2u);
  munmap(passed, 4096);
}

TEST(Accessor, GivesItsPlaceBack) {
  Room room;
  {
    auto first = Accessor::claim(room.table.bytes(), room.self());
    auto second = Accessor::claim(room.table.bytes(), room.self());
    ASSERT_TRUE(first && second);
    EXPECT_EQ(room.record().used, 2u);
  }
  auto third = Accessor::claim(room.table.bytes(), room.self());
  ASSERT_TRUE(third);
  EXPECT_EQ(room.record().used, 2u) << "the first place was free";
}

TEST(Accessor, HasAPlaceAsLongAsOneIsLeft) {
  Room room;
  const pid_t child = start_child(room, [](Accessor& accessor) { accessor.enter(); });
  std::vector<Accessor> all;
  for (std::size_t i = 1; i < kAccessorSlots; ++i)
    all.push_back(std::move(*Accessor::claim(room.table.bytes(), room.self())));
  EXPECT_FALSE(Accessor::claim(room.table.bytes(), room.self()));
  end_child(child);
  EXPECT_TRUE(Accessor::claim(room.table.bytes(), room.self())) << "that of the dead";
  EXPECT_EQ(room.record().slots[0].sequence, 2u);
}

}  // namespace
}  // namespace softhca::local
