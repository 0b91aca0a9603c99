#include "local/port_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/prng.h"

namespace softhca::local {
namespace {

// The kernel's list: appended to, and the last one fills a hole.
class KernelList {
 public:
  void bind(std::uint64_t inode) { sockets_.push_back(inode); }
  void close(std::uint64_t inode) {
    *std::ranges::find(sockets_, inode) = sockets_.back();
    sockets_.pop_back();
  }
  std::size_t place_of(std::uint64_t inode) const {
    return static_cast<std::size_t>(std::ranges::find(sockets_, inode) - sockets_.begin());
  }
  const std::vector<std::uint64_t>& sockets() const { return sockets_; }

 private:
  std::vector<std::uint64_t> sockets_;
};

std::vector<PortMember> members_of(std::uint64_t count) {
  std::vector<PortMember> members;
  for (std::uint64_t i = 0; i < count; ++i)
    append(members, 100 + i, static_cast<std::uint32_t>(i + 1));
  return members;
}

std::uint32_t place_of(const std::vector<PortMember>& members, std::uint64_t inode) {
  const auto found = std::ranges::find(members, inode, &PortMember::inode);
  return found == members.end() ? kUnknownPlace : found->place;
}

TEST(PortTable, KeepsPlacesWhileNobodyLeaves) {
  const auto members = members_of(3);
  EXPECT_EQ(settle(members, std::vector<std::uint64_t>{102, 100, 101}), members);
}

TEST(PortTable, MovesTheLastOneIntoTheHole) {
  const auto settled = settle(members_of(4), std::vector<std::uint64_t>{100, 102, 103});
  EXPECT_EQ(settled.size(), 3u);
  EXPECT_EQ(place_of(settled, 100), 0u);
  EXPECT_EQ(place_of(settled, 103), 1u);
  EXPECT_EQ(place_of(settled, 102), 2u);
}

TEST(PortTable, ForgetsPlacesThatDependOnTheOrderOfDeaths) {
  // 100 and 101 died: 102 and 103 have their places, in an order that nobody saw.
  const auto settled = settle(members_of(4), std::vector<std::uint64_t>{102, 103});
  EXPECT_EQ(place_of(settled, 102), kUnknownPlace);
  EXPECT_EQ(place_of(settled, 103), kUnknownPlace);
}

TEST(PortTable, KnowsThePlaceOfTheOnlySurvivor) {
  EXPECT_EQ(place_of(settle(members_of(5), std::vector<std::uint64_t>{103}), 103), 0u);
}

TEST(PortTable, AddsStrangersWithoutABlock) {
  const auto settled = settle(members_of(1), std::vector<std::uint64_t>{100, 555});
  ASSERT_EQ(settled.size(), 2u);
  EXPECT_EQ(settled[1], (PortMember{.inode = 555, .block = kNoBlock, .place = 1}));
  EXPECT_EQ(steering_rules(settled).size(), 1u);
}

TEST(PortTable, GivesMembersWithoutAPlaceThoseThatAreLeft) {
  std::vector<PortMember> members = members_of(4);
  members[1].place = members[2].place = kUnknownPlace;
  for (std::uint32_t guess = 0; guess < 4; ++guess) {
    const auto rules = steering_rules(members, guess);
    ASSERT_EQ(rules.size(), 4u);
    EXPECT_EQ(rules[0].member, 0u);
    EXPECT_EQ(rules[1].member, 1 + guess % 2);
    EXPECT_EQ(rules[2].member, 2 - guess % 2);
    EXPECT_EQ(rules[3].member, 3u);
  }
}

TEST(PortTable, DoesNotTrustPlacesBeyondTheList) {
  std::vector<PortMember> members = members_of(2);
  members[1].place = 4'000'000;
  EXPECT_EQ(place_of(settle(members, std::vector<std::uint64_t>{100, 101}), 101), 1u);
}

TEST(PortTable, IsNeverWrongWhateverComesAndGoesUnseen) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Prng prng(seed);
    KernelList kernel;
    std::vector<PortMember> members;
    std::uint64_t next_inode = 1;
    for (int step = 0; step < 30; ++step) {
      // Unseen: strangers come, anybody goes.
      for (std::uint64_t unseen = prng.below(3); unseen > 0; --unseen) {
        if (kernel.sockets().empty() || prng.chance(1, 3))
          kernel.bind(next_inode++);
        else
          kernel.close(kernel.sockets()[prng.below(kernel.sockets().size())]);
      }
      // Seen: one joins, with the lock held.
      members = settle(members, kernel.sockets());
      const std::uint64_t inode = next_inode++;
      kernel.bind(inode);
      append(members, inode, static_cast<std::uint32_t>(inode));

      ASSERT_EQ(members.size(), kernel.sockets().size());
      for (const PortMember& member : members) {
        if (member.place != kUnknownPlace) {
          ASSERT_EQ(member.place, kernel.place_of(member.inode)) << "seed " << seed;
        }
      }
      ASSERT_NE(place_of(members, inode), kUnknownPlace);
    }
  }
}

TEST(PortTable, KnowsEveryPlaceIfEveryDeathIsSeen) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Prng prng(seed);
    KernelList kernel;
    std::vector<PortMember> members;
    for (std::uint64_t inode = 1; inode < 60; ++inode) {
      if (!members.empty() && prng.chance(2, 5))
        kernel.close(kernel.sockets()[prng.below(kernel.sockets().size())]);
      members = settle(members, kernel.sockets());
      kernel.bind(inode);
      append(members, inode, static_cast<std::uint32_t>(inode));
      for (const PortMember& member : members)
        ASSERT_EQ(member.place, kernel.place_of(member.inode)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace softhca::local
