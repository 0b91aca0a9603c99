#include "local/port_table.h"

#include <algorithm>

namespace softhca::local {

// The kernel's list shrinks to `certain` sockets at least, whatever the order in which the dead
// left and strangers came. Only the last one of the list ever moves, so who was below that place
// stayed there. The others are somewhere in what is left; a single one can be in one place only.
std::vector<PortMember> settle(std::span<const PortMember> members,
                               std::span<const std::uint64_t> live) {
  std::vector<PortMember> settled;
  for (const PortMember& member : members)
    if (std::find(live.begin(), live.end(), member.inode) != live.end()) settled.push_back(member);
  const std::size_t certain = settled.size();
  for (const std::uint64_t inode : live)
    if (std::none_of(settled.begin(), settled.end(),
                     [&](const PortMember& member) { return member.inode == inode; }))
      settled.push_back({.inode = inode});

  std::vector<bool> is_taken(settled.size(), false);
  PortMember* adrift = nullptr;
  std::size_t adrift_count = 0;
  for (PortMember& member : settled) {
    if (member.place < certain) {
      is_taken[member.place] = true;
    } else {
      member.place = kUnknownPlace;
      adrift = &member;
      ++adrift_count;
    }
  }
  if (adrift_count == 1) {
    const auto hole = std::find(is_taken.begin(), is_taken.end(), false);
    if (hole != is_taken.end()) adrift->place = static_cast<std::uint32_t>(hole - is_taken.begin());
  }
  return settled;
}

void append(std::vector<PortMember>& members, std::uint64_t inode, std::uint32_t block) {
  members.push_back({inode, block, static_cast<std::uint32_t>(members.size())});
}

std::vector<os::SteeringRule> steering_rules(std::span<const PortMember> members,
                                             std::uint32_t guess) {
  std::vector<bool> is_known(members.size());
  for (const PortMember& member : members)
    if (member.place < members.size()) is_known[member.place] = true;
  std::vector<std::uint32_t> free;
  for (std::uint32_t place = 0; place < members.size(); ++place)
    if (!is_known[place]) free.push_back(place);

  std::vector<os::SteeringRule> rules;
  for (const PortMember& member : members) {
    const bool is_placed = member.place != kUnknownPlace;
    if (member.block != kNoBlock && is_placed)
      rules.push_back({.key = member.block, .member = member.place});
    else if (member.block != kNoBlock && !free.empty())
      rules.push_back({.key = member.block, .member = free[guess % free.size()]});
    if (!is_placed) ++guess;
  }
  return rules;
}

}  // namespace softhca::local
