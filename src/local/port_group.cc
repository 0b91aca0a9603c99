#include "local/port_group.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "os/bound_sockets.h"
#include "os/self.h"
#include "os/thread.h"

namespace softhca::local {

namespace {

constexpr std::uint32_t kRecordMagic = 0x53'48'50'31;
constexpr int kOrderAttempts = 8;
// While a port changes hands, nobody can tell whose it is.
constexpr int kHolderAttempts = 5;
constexpr Duration kHolderPause = milliseconds(2);
// At Lodging::kLastPause this is a second: then a lodger does without order.
constexpr int kLockedOutAtMost = 20;
// Whoever keeps the lock for two tries in a row is stopped, or as good as that.
constexpr int kRepairsLockedOutAtMost = 1;
// The destination QPN is the low 24 bits of the second word of a packet.
constexpr std::uint32_t kQpnWord = 4;
constexpr std::uint32_t kBlockMask = kQpnBlocks - 1;

// One port, one address, one user. Held while one joins or leaves; gone with its holder.
std::string lock_name(const PortGroup::Seat& seat) {
  return "softhca/1/lock/" + std::to_string(seat.domain.port) + "/" +
         std::to_string(seat.domain.interface_index) + "/" + os::address_text(seat.address) + "/" +
         std::to_string(os::own_uid());
}

bool wants_steering(const PortGroup::Seat& seat) {
  return seat.steering && can_be_owned(seat.block);
}

std::optional<std::vector<std::uint64_t>> live_sockets(const PortGroup::Seat& seat) {
  const auto bound = os::bound_udp_sockets(seat.address, seat.domain.port);
  if (!bound) return std::nullopt;
  std::vector<std::uint64_t> inodes;
  for (const os::BoundSocket& socket : *bound) inodes.push_back(socket.inode);
  std::sort(inodes.begin(), inodes.end());
  return inodes;
}

PortFailure explain(const PortGroup::Seat& seat, const os::SystemError& error) {
  const std::string what =
      "UDP " + std::to_string(seat.domain.port) + " on " + os::address_text(seat.address);
  if (error.number == EADDRNOTAVAIL)
    return {trace::ReasonId::NoInterface, error.number, what + ": no interface has the address"};
  if (error.number != EADDRINUSE)
    return {trace::ReasonId::PortDown, error.number, what + ": " + os::error_text(error)};
  std::string holder = "another socket";
  if (const auto bound = os::bound_udp_sockets(seat.address, seat.domain.port);
      bound && !bound->empty())
    holder = "a socket of uid " + std::to_string(bound->front().uid);
  return {trace::ReasonId::UdpPortTaken, error.number, what + " is taken by " + holder};
}

}  // namespace

Result<PortGroup, PortFailure> PortGroup::join(const Seat& seat) {
  PortGroup group(seat);
  for (int attempt = 1;; ++attempt) {
    const auto bound = group.bind();
    if (bound) return group;
    if (bound.error().reason != trace::ReasonId::UdpPortTaken) return bound.error();
    group.lodging_ = Lodging::begin(seat.domain, seat.address);
    if (group.lodging_) return group;
    if (attempt == kHolderAttempts) return bound.error();
    os::pause_for(kHolderPause);
  }
}

Result<void, PortFailure> PortGroup::bind() {
  if (wants_steering(seat_))
    if (const auto lock = os::HostName::take_in_time(lock_name(seat_))) return bind_in_order();
  return bind_socket();
}

PortGroup::~PortGroup() {
  leave([] {});
}

bool PortGroup::take_if_free(Time now, bool look) {
  if (!lodging_) return false;
  const auto holder = lodging_->holder();
  const bool is_other_fd = try_to_take(now, look);
  if (holder && (!lodging_ || lodging_->holder() != holder)) former_ = {*holder, now + kLastWords};
  return is_other_fd;
}

bool PortGroup::try_to_take(Time now, bool look) {
  const bool ended = look && lodging_->notice_end(now);
  if (now < lodging_->next_try()) return ended;
  if (!take_port()) return lodging_->tried(now) || ended;
  lodging_.reset();
  return true;
}

bool PortGroup::believes(std::uint32_t uid, Time now) {
  if (lodging_ && lodging_->is_holder(uid, now)) return true;
  return former_ && former_->uid == uid && now < former_->believed_until;
}

// One look at the port before the order is found out, which is much work. It is under the lock,
// as everything that changes the order; a neighbour that has the lock will not have it for long.
bool PortGroup::take_port() {
  if (!wants_steering(seat_)) return static_cast<bool>(bind_socket());
  const auto lock = os::HostName::take_in_time(lock_name(seat_), 1);
  if (!lock && ++locked_out_ < kLockedOutAtMost) return false;
  if (!bind_socket()) return false;
  return !lock || bind_in_order();
}

// It does not steer for the time after: until its socket is closed, that would lead here what is
// for the member that moves into its place.
std::uint32_t PortGroup::leave(const std::function<void()>& drain) {
  if (!socket_.is_open()) return kNoBlock;
  const auto lock = table_.is_open() ? os::HostName::take_in_time(lock_name(seat_)) : std::nullopt;
  std::uint32_t moved = kNoBlock;
  if (const auto live = lock ? live_sockets(seat_) : std::nullopt) {
    const std::vector<PortMember> before = settle(read_members(), *live);
    std::vector<std::uint64_t> others = *live;
    std::erase(others, socket_.inode());
    const std::vector<PortMember> after = settle(before, others);
    write_members(after);
    for (const PortMember& member : after)
      if (std::find(before.begin(), before.end(), member) == before.end()) moved = member.block;
  }  // else the next one who joins will find out
  drain();
  socket_.close();
  return moved;
}

Result<void, PortFailure> PortGroup::bind_socket() {
  auto opened = os::UdpSocket::open({.address = seat_.address,
                                     .port = seat_.domain.port,
                                     .interface_index = seat_.domain.interface_index},
                                    os::UdpUse::Shared);
  if (!opened) return explain(seat_, opened.error());
  socket_ = std::move(*opened);
  return {};
}

// REQUIRES: the group is locked. A member that dies just while this one binds would make its place
// a guess; then it binds again.
Result<void, PortFailure> PortGroup::bind_in_order() {
  const bool has_table = table_.is_open() || find_table();
  for (int attempt = 0; attempt < kOrderAttempts; ++attempt) {
    socket_.close();
    const auto before = live_sockets(seat_);
    if (const auto bound = bind_socket(); !bound) return bound;
    auto after = live_sockets(seat_);
    if (!has_table || !before || !after) return {};
    std::erase(*after, socket_.inode());
    if (*before != *after) continue;

    std::vector<PortMember> members = settle(read_members(), *before);
    append(members, socket_.inode(), seat_.block);
    write_members(members);
    steer(members);
    return {};
  }
  return {};
}

// One who is stopped may have the lock. Then it is done without, and the table is only read. One
// who joins just now may be steered over: his packets are then forwarded until somebody repairs.
void PortGroup::repair() {
  if (!socket_.is_open() || !wants_steering(seat_)) return;
  const auto lock = os::HostName::take_in_time(lock_name(seat_), 1);
  repairs_locked_out_ = lock ? 0 : repairs_locked_out_ + 1;
  if (!lock && repairs_locked_out_ <= kRepairsLockedOutAtMost) return;
  // It may have joined while somebody kept the lock.
  if (!table_.is_open() && (!lock || !find_table())) return;
  const auto live = live_sockets(seat_);
  if (!live) return;
  std::vector<PortMember> members = settle(read_members(), *live);
  for (PortMember& member : members)
    if (member.inode == socket_.inode()) member.block = seat_.block;
  if (lock) write_members(members);
  steer(members);
}

void PortGroup::abandon() {
  lodging_.reset();
  table_ = {};
  beacon_.release();
  socket_.close();
  steered_ = false;
}

// Any member's beacon leads to the table; the first member makes it.
bool PortGroup::find_table() {
  const std::string prefix = beacon_prefix(seat_.domain, seat_.address, os::own_uid());
  for (const std::string& name : os::host_names(prefix)) {
    unsigned pid = 0;
    int fd = -1;
    if (std::sscanf(name.c_str() + prefix.size(), "%u/%d", &pid, &fd) != 2) continue;
    auto opened = os::PeerTable::open(pid, fd, table_name(), sizeof(PortRecord));
    if (!opened || load_le<std::uint32_t>(opened->bytes()) != kRecordMagic) continue;
    table_ = std::move(*opened);
    break;
  }
  if (!table_.is_open()) {
    auto created = os::PeerTable::create(table_name(), sizeof(PortRecord));
    if (!created) return false;
    table_ = std::move(*created);
    store_le(table_.bytes(), 0, kRecordMagic);
  }
  auto beacon = os::HostName::take(prefix + std::to_string(os::own_pid()) + "/" +
                                   std::to_string(table_.fd()));
  if (!beacon) {
    table_ = {};
    return false;
  }
  beacon_ = std::move(*beacon);
  return true;
}

std::vector<PortMember> PortGroup::read_members() const {
  const auto record = std::make_unique<PortRecord>();
  std::memcpy(record.get(), table_.bytes().data(), sizeof *record);
  const std::size_t count = std::min<std::size_t>(record->count, kMaxPortMembers);
  std::vector<PortMember> members(record->members.begin(),
                                  record->members.begin() + static_cast<std::ptrdiff_t>(count));
  if (record->changing != 0) members.clear();
  return members;
}

void PortGroup::write_members(std::span<const PortMember> members) {
  auto* const record = reinterpret_cast<PortRecord*>(table_.bytes().data());
  const std::size_t count = std::min<std::size_t>(members.size(), kMaxPortMembers);
  std::atomic_ref<std::uint32_t> changing(record->changing);
  changing.store(1, std::memory_order_seq_cst);
  std::copy_n(members.begin(), count, record->members.begin());
  record->count = static_cast<std::uint32_t>(count);
  changing.store(0, std::memory_order_seq_cst);
}

void PortGroup::steer(std::span<const PortMember> members) {
  const std::vector<os::SteeringRule> rules = steering_rules(members, steerings_++);
  const bool attached =
      static_cast<bool>(socket_.steer(kQpnWord, kQpnBlockShift, kBlockMask, rules));
  steered_ = attached && std::any_of(members.begin(), members.end(), [&](const PortMember& m) {
               return m.block == seat_.block && m.place != kUnknownPlace;
             });
}

std::string PortGroup::table_name() const {
  return "softhca-port-" + std::to_string(seat_.domain.port) + "-" +
         os::address_text(seat_.address);
}

}  // namespace softhca::local
