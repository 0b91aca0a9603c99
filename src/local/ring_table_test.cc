#include "local/ring_table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "os/peer_memory.h"

namespace softhca::local {
namespace {

struct OwnedTable {
  os::PeerTable memory = std::move(*os::PeerTable::create("softhca-test", kRingTableBytes));
  RingTable table{memory.bytes()};
  RingTableHead& head() { return *reinterpret_cast<RingTableHead*>(memory.bytes().data()); }
  RingSender sender(std::uint32_t number) { return *RingSender::open(memory.bytes(), number); }
};

std::array<std::byte, 4> frame_of(std::uint32_t value) {
  std::array<std::byte, 4> bytes{};
  store_le(bytes, 0, value);
  return bytes;
}

TEST(RingTable, BringsTheFramesOfEveryWriter) {
  OwnedTable own;
  std::vector<RingSender> senders;
  for (const std::uint32_t number : {0u, 63u, 64u, kRings - 1}) {
    senders.push_back(own.sender(number));
    EXPECT_TRUE(senders.back().put({}, frame_of(number)));
    EXPECT_FALSE(senders.back().ring());  // the owner is awake
  }
  std::array<RingFrame, 8> out;
  ASSERT_EQ(own.table.receive(out), 4u);
  std::uint32_t sum = 0;
  for (const RingFrame& frame : std::span(out).first(4)) sum += load_le<std::uint32_t>(frame.bytes);
  EXPECT_EQ(sum, 63 + 64 + kRings - 1);
  EXPECT_EQ(own.table.receive(out), 0u);
}

TEST(RingTable, HasNoMoreRingsThanItHas) {
  OwnedTable own;
  EXPECT_FALSE(RingSender::open(own.memory.bytes(), kRings));
  EXPECT_FALSE(RingSender::open(own.memory.bytes().first(kRingBytes), 0));
}

TEST(RingTable, WhatFindsNoRoomComesWithTheNextCalls) {
  OwnedTable own;
  RingSender one = own.sender(1);
  RingSender two = own.sender(200);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(one.put({}, frame_of(i)));
    EXPECT_TRUE(two.put({}, frame_of(i)));
  }
  one.ring();
  two.ring();
  std::array<RingFrame, 3> out;
  std::size_t all = 0;
  while (const std::size_t count = own.table.receive(out)) all += count;
  EXPECT_EQ(all, 20u);
}

// Receives four frames of more that lie there, since the busy one sends faster than that. Gives how
// many of them are of `value`.
std::ptrdiff_t receive_beside(OwnedTable& own, RingSender& busy, std::uint32_t value) {
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(busy.put({}, frame_of(1)));
  busy.ring();
  std::array<RingFrame, 4> out;
  const std::size_t count = own.table.receive(out);
  EXPECT_EQ(count, out.size()) << "it is always behind";
  return std::ranges::count_if(std::span(out).first(count), [=](const RingFrame& frame) {
    return load_le<std::uint32_t>(frame.bytes) == value;
  });
}

TEST(RingTable, AWriterWhoseRingIsNeverEmptyLeavesRoomForOthers) {
  OwnedTable own;
  RingSender busy = own.sender(1);
  RingSender other = own.sender(3);
  EXPECT_TRUE(other.put({}, frame_of(7)));
  other.ring();
  std::ptrdiff_t of_other = 0;
  for (int round = 0; round < 10; ++round) of_other += receive_beside(own, busy, 7);
  EXPECT_EQ(of_other, 1u);
}

// Also while there is always more than there is room for.
TEST(RingTable, KnowsWhenAllThatLayThereWasReceived) {
  OwnedTable own;
  EXPECT_TRUE(own.table.waiting().empty());
  RingSender busy = own.sender(1);
  RingSender other = own.sender(3);
  for (std::uint32_t i = 0; i < 9; ++i) EXPECT_TRUE(other.put({}, frame_of(7)));
  other.ring();
  const std::vector<RingPlace> places = own.table.waiting();
  EXPECT_EQ(places.size(), 1u);
  std::ptrdiff_t of_other = 0;
  for (int round = 0; round < 10; ++round) {
    of_other += receive_beside(own, busy, 7);
    EXPECT_EQ(own.table.has_received(places), of_other == 9) << "round " << round;
  }
  EXPECT_EQ(of_other, 9u);
}

TEST(RingTable, WakesWhoSleepsOnce) {
  OwnedTable own;
  RingSender sender = own.sender(5);
  EXPECT_FALSE(own.table.sleep());
  EXPECT_FALSE(sender.ring());  // for nothing
  EXPECT_TRUE(sender.put({}, frame_of(1)));
  EXPECT_TRUE(sender.ring());
  EXPECT_TRUE(sender.put({}, frame_of(2)));
  EXPECT_FALSE(sender.ring());
  EXPECT_TRUE(own.table.sleep());  // something lies there
  own.table.wake_up();
  EXPECT_TRUE(sender.put({}, frame_of(3)));
  EXPECT_FALSE(sender.ring());
  std::array<RingFrame, 8> out;
  EXPECT_EQ(own.table.receive(out), 3u);
  EXPECT_FALSE(own.table.sleep());
}

// Each frame is seen by an owner that goes to sleep whenever nothing is there.
TEST(RingTable, NobodySleepsOverAFrame) {
  OwnedTable own;
  constexpr std::uint32_t kFrames = 20'000;
  std::atomic<std::uint32_t> wakes{0};
  std::thread writer([&] {
    RingSender sender = own.sender(9);
    for (std::uint32_t i = 0; i < kFrames; ++i) {
      while (!sender.put({}, frame_of(i))) std::this_thread::yield();
      if (sender.ring()) wakes.fetch_add(1);
      if (i % 8 == 0) std::this_thread::yield();
    }
  });
  std::array<RingFrame, 16> out;
  std::uint32_t expected = 0;
  while (expected < kFrames) {
    const std::size_t count = own.table.receive(out);
    for (std::size_t k = 0; k < count; ++k)
      EXPECT_EQ(load_le<std::uint32_t>(out[k].bytes), expected++);
    if (count != 0 || expected == kFrames) continue;
    const std::uint32_t before = wakes.load();
    if (!own.table.sleep())
      while (wakes.load() == before) std::this_thread::yield();
    own.table.wake_up();
  }
  writer.join();
}

TEST(RingTable, ADeadWritersFramesArriveAndItsPlaceIsAnothers) {
  OwnedTable own;
  const pid_t child = fork();
  if (child == 0) {
    RingSender sender = own.sender(3);
    sender.put({}, frame_of(1));
    sender.ring();
    sender.put({}, frame_of(2));
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  RingSender heir = own.sender(3);
  EXPECT_TRUE(heir.put({}, frame_of(3)));
  heir.ring();
  std::array<RingFrame, 8> out;
  ASSERT_EQ(own.table.receive(out), 2u);
  EXPECT_EQ(load_le<std::uint32_t>(out[0].bytes), 1u);
  EXPECT_EQ(load_le<std::uint32_t>(out[1].bytes), 3u);
}

TEST(RingTable, AnyBytesInItDoNoHarm) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    OwnedTable own;
    Prng random(seed);
    RingSender honest = own.sender(0);
    for (std::size_t at = 64; at < sizeof(RingTableHead); at += 8)
      if (random.below(3) == 0) store_le(own.memory.bytes(), at, random.next());
    std::array<RingFrame, 64> out;
    for (int i = 0; i < 100; ++i) {
      own.table.receive(out);
      if (honest.put({}, frame_of(1))) honest.ring();
      for (std::uint64_t& word : own.head().rung) std::atomic_ref(word).store(random.next());
    }
    EXPECT_TRUE(own.table.sleep());
  }
}

}  // namespace
}  // namespace softhca::local
