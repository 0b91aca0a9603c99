#include "link/udp_link.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/assert.h"
#include "base/prng.h"
#include "link/mail_head.h"
#include "os/datagram_arena.h"
#include "wire/cm_message.h"
#include "wire/icrc.h"
#include "wire/packet.h"

namespace softhca::link {

namespace {

constexpr std::size_t kSlots = 96;
constexpr std::size_t kSlotBytes = 65536;  // a burst that arrives whole
constexpr std::size_t kUdpBatch = 64;
constexpr std::size_t kMailBatch = 32;
// Of receive(): how often idle sockets are looked at, and for how long the mailbox counts as busy.
constexpr std::uint32_t kIdleEvery = 64;
constexpr std::uint32_t kMailBusyFor = 256;
constexpr int kRestBatches = 64;     // that one who leaves still passes on
constexpr int kBatchesOfOthers = 8;  // in one receive(), all of which was passed on
// Some packets of others always land here while members come and go; this many are a pattern.
constexpr std::uint32_t kForwardsBeforeRepair = 32;
constexpr Duration kRepairEvery = seconds(1);
// After so long without a packet somebody else may be getting them: one who is stopped, and
// forwards nothing. Then the ports are looked at, and again after the pause.
constexpr Duration kSilence = milliseconds(50);
constexpr Duration kLookAgainAfter = milliseconds(250);

constexpr std::size_t kSourcePorts = 16;
constexpr std::uint32_t kFirstSourcePort = 0xc000;
constexpr std::uint32_t kSourcePortMask = 0x3fff;
constexpr std::uint64_t kSourcePortAttempts = 16;

os::IpAddress address_of(const wire::Gid& gid) { return {gid.bytes}; }
wire::Gid gid_of(const os::IpAddress& address) { return {address.bytes}; }

// What a UDP socket does not tell: the identification.
std::optional<std::uint16_t> hidden_identification(const wire::Gid& destination) {
  if (destination.is_ipv4()) return std::nullopt;
  return wire::Datagram{}.identification;
}

}  // namespace

struct UdpLink::Address {
  Address(const wire::Gid& gid, local::PortGroup group) : gid(gid), group(std::move(group)) {}

  os::UdpSocket* sender(std::uint16_t port) {
    if (group.socket().is_open() && port == group.socket().port()) return &group.socket();
    for (os::UdpSocket& socket : senders)
      if (socket.is_open() && socket.port() == port) return &socket;
    return nullptr;
  }

  wire::Gid gid;
  local::PortGroup group;
  std::array<os::UdpSocket, kSourcePorts> senders;  // opened when a QP first needs one
  bool active = true;
  bool expected = false;      // the poller found something
  std::uint32_t dropped = 0;  // by its socket, as far as we have heard

  // Steers anew if the arrivals, or that there are none, hint at a member that has died.
  void repair_if_due(bool heard, Time now);
  void note_drops(std::uint32_t by_now, trace::Tracer& tracer);

  std::uint32_t forwards = 0;  // since the last repair
  Time next_repair{};
  std::optional<Time> silent_since;
};

// A socket that has taken the place of another counts from 0 again.
void UdpLink::Address::note_drops(std::uint32_t by_now, trace::Tracer& tracer) {
  const std::uint32_t since = by_now - dropped;
  if (since < UINT32_MAX / 2) tracer.count(trace::Counter::SocketDrops, since);
  dropped = by_now;
}

void UdpLink::Address::repair_if_due(bool heard, Time now) {
  if (heard || !silent_since) silent_since = now;
  const bool is_silent = now - *silent_since >= kSilence;
  const bool is_asked = forwards >= kForwardsBeforeRepair;
  if ((!is_silent && !is_asked) || now < next_repair) return;
  group.repair();
  forwards = 0;
  next_repair = now + (is_asked ? kRepairEvery : kLookAgainAfter);
}

// Frames come out of bursts; what a call has no room for waits for the next.
struct UdpLink::Room {
  os::DatagramArena arena{kSlots, kSlotBytes};
  std::size_t used = 0;  // slots that the current receive() has filled
  std::vector<Frame> ready;
  std::size_t handed_out = 0;

  std::array<os::OutgoingDatagram, kUdpBatch> outgoing;
  std::array<std::size_t, kUdpBatch> frames_in;  // of outgoing
  std::array<ConstBytes, 2 * kUdpBatch> pieces;
  std::array<std::array<std::byte, wire::kIcrcBytes>, kUdpBatch> icrcs;
  wire::IcrcChanges changes;
};

UdpLink::UdpLink(local::QpnBlock& block, trace::Tracer& tracer, bool steering)
    : block_(block), tracer_(tracer), steering_(steering) {}
UdpLink::~UdpLink() {
  for (const auto& address : addresses_) {
    const std::uint32_t moved = address->group.leave([&] { forward_rest(*address); });
    const os::IpAddress own = address_of(address->gid);
    if (moved != local::kNoBlock)
      local::post_mail(block_, moved, {.source = own, .destination = own}, {});
  }
}

// Nobody is left here for the packets of this process; those of others go on their way.
void UdpLink::forward_rest(Address& address) {
  for (int batch = 0; batch < kRestBatches; ++batch) {
    room_->used = 0;
    room_->ready.clear();
    if (read_batch(address) < kUdpBatch) return;
  }
}

Result<void, local::PortFailure> UdpLink::open(const wire::Gid& address) {
  if (is_open(address)) return {};
  auto group = local::PortGroup::join({.address = address_of(address),
                                       .domain = block_.domain(),
                                       .block = block_.number(),
                                       .steering = steering_});
  if (!group) return group.error();
  if (!room_) room_ = std::make_unique<Room>();
  addresses_.push_back(std::make_unique<Address>(address, std::move(*group)));
  ++fds_version_;
  look_everywhere_ = true;
  return {};
}

Result<void, local::PortFailure> UdpLink::join(const wire::Gid& group) {
  const local::Domain& domain = block_.domain();
  auto socket = os::UdpSocket::open({.address = address_of(group),
                                     .port = domain.port,
                                     .interface_index = domain.interface_index},
                                    os::UdpUse::Group);
  if (!socket) {
    const os::SystemError& error = socket.error();
    return local::PortFailure{.reason = os::is_address_taken(error) ? trace::ReasonId::UdpPortTaken
                                                                    : trace::ReasonId::NoInterface,
                              .error = error.number,
                              .text = "multicast group " + os::address_text(address_of(group)) +
                                      " cannot be joined: " + os::error_text(error)};
  }
  if (!room_) room_ = std::make_unique<Room>();
  groups_.push_back({group, std::move(*socket)});
  ++fds_version_;
  return {};
}

void UdpLink::leave(const wire::Gid& group) {
  const auto joined = std::ranges::find(groups_, group, &Group::gid);
  if (joined == groups_.end()) return;
  left_.push_back(std::move(*joined));
  groups_.erase(joined);
  ++fds_version_;
}

void UdpLink::read_group(const Group& group) {
  const std::size_t first = room_->used;
  const std::size_t arrived = room_->arena.receive(group.socket.fd(), first, kUdpBatch);
  room_->used += arrived;
  for (std::size_t i = 0; i < arrived; ++i) {
    const os::Arrival& arrival = room_->arena.arrival(first + i);
    if (arrival.truncated) {
      tracer_.count(trace::Counter::PacketsMalformed);
      continue;
    }
    room_->ready.push_back({.datagram = {.source = gid_of(arrival.source),
                                         .destination = group.gid,
                                         .source_port = arrival.source_port,
                                         .destination_port = group.socket.port(),
                                         .traffic_class = arrival.traffic_class,
                                         .identification = hidden_identification(group.gid)},
                            .bytes = arrival.bytes});
  }
}

void UdpLink::set_active(const wire::Gid& address, bool active) {
  Address* const found = find(address);
  ASSERT(found != nullptr);
  found->active = active;
}

bool UdpLink::is_open(const wire::Gid& address) const { return find(address) != nullptr; }

UdpLink::Address* UdpLink::find(const wire::Gid& gid) const {
  for (const auto& address : addresses_)
    if (address->gid == gid) return address.get();
  return nullptr;
}

std::uint16_t UdpLink::source_port_for(const wire::Gid& address, wire::Qpn qpn) {
  Address* const found = find(address);
  ASSERT(found != nullptr);
  const std::uint64_t place = Prng(qpn.value).below(kSourcePorts);
  os::UdpSocket& socket = found->senders[place];
  if (socket.is_open()) return socket.port();
  // Other processes of this host hold ports too, so each looks in an order of its own.
  Prng order(std::uint64_t{block_.number()} << 32 | place);
  const auto open_at = [&](std::uint16_t port) {
    auto opened = os::UdpSocket::open({.address = address_of(address),
                                       .port = port,
                                       .interface_index = block_.domain().interface_index},
                                      os::UdpUse::SendOnly);
    if (opened) socket = std::move(*opened);
    return static_cast<bool>(opened);
  };
  for (std::uint64_t i = 0; i < kSourcePortAttempts; ++i)
    if (open_at(static_cast<std::uint16_t>(kFirstSourcePort | (order.next() & kSourcePortMask))))
      return socket.port();
  // The port that all share; a lodger has it not yet, and takes any.
  if (found->group.is_lodging() && open_at(0)) return socket.port();
  return block_.domain().port;
}

std::size_t UdpLink::send(std::span<const Frame> frames, Time) {
  std::size_t taken = 0;
  while (taken < frames.size()) {
    if (goes_straight(frames[taken])) {
      ++taken;
      continue;
    }
    // A run: frames that leave through one socket.
    const wire::Datagram& first = frames[taken].datagram;
    std::size_t run = 1;
    while (run < kUdpBatch && taken + run < frames.size() &&
           frames[taken + run].datagram.source_port == first.source_port &&
           frames[taken + run].datagram.source == first.source)
      ++run;
    const std::size_t sent = send_run(frames.subspan(taken, run));
    taken += sent;
    if (sent < run) break;
  }
  return taken;
}

// Words for queue pair 1 of another process here: whom the kernel would give them to might end
// before he has passed them on, and last words are said once. Mail of another user's is not
// believed.
bool UdpLink::goes_straight(const Frame& frame) {
  if (!management_ || frame.bytes.size() < wire::kBthBytes ||
      destination_qpn(frame.bytes) != wire::kManagementQpn || !is_open(frame.datagram.destination))
    return false;
  const auto owner = management_(frame);
  if (owner.found != local::ServiceNames::Found::Block || owner.block == block_.number())
    return false;
  return local::is_of_this_user(block_, owner.block) && forward(owner.block, frame);
}

std::size_t UdpLink::send_run(std::span<const Frame> frames) {
  Address* const address = find(frames.front().datagram.source);
  os::UdpSocket* const socket =
      address == nullptr ? nullptr : address->sender(frames.front().datagram.source_port);
  if (socket == nullptr) {  // no such source here: lost, as on a cable
    tracer_.count(trace::Counter::SendErrors, frames.size());
    return frames.size();
  }
  const std::size_t count = prepare(frames);
  const os::SendOutcome outcome = socket->send(std::span(room_->outgoing).first(count));
  if (outcome.lost != 0) tracer_.count(trace::Counter::SendErrors, outcome.lost);
  std::size_t taken = 0;
  for (std::size_t i = 0; i < outcome.taken; ++i) taken += room_->frames_in[i];
  if (!outcome.burst_refused) return taken;
  const bool go_on = bursts_ && !outcome.no_bursts;
  bursts_ = false;
  taken += send_run(frames.subspan(taken));
  bursts_ = go_on;
  return taken;
}

// How many of these frames, from the first on, the kernel can be given as one.
std::size_t UdpLink::burst_at(std::span<const Frame> frames) const {
  if (!bursts_ || frames.front().bytes.size() < wire::kBthBytes) return 1;
  const Frame& first = frames.front();
  const auto is_alike = [&](const Frame& frame) {
    return frame.datagram.destination == first.datagram.destination &&
           frame.datagram.destination_port == first.datagram.destination_port &&
           frame.datagram.traffic_class == first.datagram.traffic_class &&
           frame.datagram.hop_limit == first.datagram.hop_limit &&
           frame.bytes.size() >= wire::kBthBytes + wire::kIcrcBytes &&
           frame.bytes.size() <= first.bytes.size() &&
           destination_qpn(frame.bytes) == destination_qpn(first.bytes);
  };
  std::size_t count = 1;
  while (count < frames.size() && count < os::kMaxBurstSegments && is_alike(frames[count]) &&
         (count + 1) * first.bytes.size() <= os::kMaxBurstBytes) {
    ++count;
    if (frames[count - 1].bytes.size() < first.bytes.size()) break;  // the last may be shorter
  }
  return count;
}

// Makes datagrams and bursts of frames. In a burst over IPv4 the identifications count up, and the
// ICRC covers them.
std::size_t UdpLink::prepare(std::span<const Frame> frames) {
  std::size_t count = 0;
  std::size_t piece = 0;
  for (std::size_t at = 0; at < frames.size(); at += room_->frames_in[count++]) {
    const wire::Datagram& datagram = frames[at].datagram;
    const std::size_t burst = burst_at(frames.subspan(at));
    const std::size_t first_piece = piece;
    for (std::size_t i = 1; i < burst; ++i) {
      const ConstBytes bytes = frames[at + i].bytes;
      room_->pieces[piece++] = bytes;
      if (!datagram.is_ipv4()) continue;
      const ConstBytes packet = bytes.first(bytes.size() - wire::kIcrcBytes);
      const auto icrc = load_le<std::uint32_t>(bytes.last(wire::kIcrcBytes));
      const Bytes changed(room_->icrcs[at + i]);
      store_le(changed, 0, icrc ^ room_->changes.of(static_cast<std::uint16_t>(i), packet.size()));
      room_->pieces[piece - 1] = packet;
      room_->pieces[piece++] = changed;
    }
    room_->frames_in[count] = burst;
    room_->outgoing[count] = {
        .bytes = frames[at].bytes,
        .rest = std::span(room_->pieces).subspan(first_piece, piece - first_piece),
        .segment_bytes = static_cast<std::uint16_t>(burst > 1 ? frames[at].bytes.size() : 0),
        .destination = address_of(datagram.destination),
        .destination_port = datagram.destination_port,
        .traffic_class = datagram.traffic_class,
        .hop_limit = datagram.hop_limit};
  }
  return count;
}

std::size_t UdpLink::receive(std::span<Frame> out, Time now) {
  if (!room_) return 0;
  if (room_->handed_out == room_->ready.size()) look(now);
  const std::size_t count = std::min(out.size(), room_->ready.size() - room_->handed_out);
  std::copy_n(room_->ready.begin() + static_cast<std::ptrdiff_t>(room_->handed_out), count,
              out.begin());
  room_->handed_out += count;
  return count;
}

// Collects what has arrived, as much as there is room for.
void UdpLink::look(Time now) {
  room_->used = 0;
  room_->ready.clear();
  room_->handed_out = 0;
  const bool everywhere = look_everywhere_ || ++calls_ % kIdleEvery == 0;
  look_everywhere_ = false;
  bool expects_mail = everywhere || mail_calls_ > 0;
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    Address& address = *addresses_[(turn_ + i) % addresses_.size()];
    if (address.group.take_if_free(now, everywhere)) ++fds_version_;
    if (!address.active && !everywhere && !address.expected) continue;
    address.expected = false;
    if (address.group.is_lodging())
      expects_mail = true;
    else
      receive_udp(address, now);
  }
  ++turn_;
  for (const Group& group : groups_) read_group(group);
  if (expects_mail) {
    if (mail_calls_ > 0) --mail_calls_;
    receive_mail(now);
  }
  // What found no room is looked for again, wherever it is.
  if (everywhere && room_->used == kSlots) look_everywhere_ = true;
}

// One batch of what lies in the socket; how many datagrams it was.
std::size_t UdpLink::read_batch(Address& address) {
  const std::size_t first = room_->used;
  const std::size_t before = room_->ready.size();
  const std::size_t arrived = room_->arena.receive(address.group.socket().fd(), first, kUdpBatch);
  for (std::size_t i = 0; i < arrived; ++i) {
    const os::Arrival& arrival = room_->arena.arrival(first + i);
    if (arrival.dropped != address.dropped) address.note_drops(arrival.dropped, tracer_);
    if (arrival.truncated)
      tracer_.count(trace::Counter::PacketsMalformed);
    else
      take_apart(address, arrival);
  }
  if (room_->ready.size() != before) room_->used += arrived;
  return arrived;
}

// A batch that was for others is followed by the next one: this process may be the only one to
// which the packets of many come.
void UdpLink::receive_udp(Address& address, Time now) {
  const std::size_t before = room_->ready.size();
  bool heard = false;
  for (int batch = 0; batch < kBatchesOfOthers && room_->ready.size() == before; ++batch) {
    const std::size_t arrived = read_batch(address);
    heard |= arrived != 0;
    if (arrived < kUdpBatch) break;
  }
  address.repair_if_due(heard, now);
}

void UdpLink::take_apart(Address& address, const os::Arrival& arrival) {
  const std::size_t step =
      arrival.segment_bytes != 0 ? arrival.segment_bytes : arrival.bytes.size();
  ConstBytes rest = arrival.bytes;
  Frame frame = frame_of(address, arrival);
  for (;; ++frame.place_in_burst) {
    frame.bytes = rest.first(std::min(step, rest.size()));
    rest = rest.subspan(frame.bytes.size());
    if (!belongs_elsewhere(address, frame)) room_->ready.push_back(frame);
    if (rest.empty()) return;
  }
}

Frame UdpLink::frame_of(Address& address, const os::Arrival& arrival) {
  return {.datagram = {.source = gid_of(arrival.source),
                       .destination = address.gid,
                       .source_port = arrival.source_port,
                       .destination_port = address.group.socket().port(),
                       .traffic_class = arrival.traffic_class,
                       .identification = hidden_identification(address.gid)},
          .bytes = arrival.bytes};
}

// A packet that nobody takes stays here: it is this device that says why it is dropped.
bool UdpLink::belongs_elsewhere(Address& address, const Frame& frame) {
  if (frame.bytes.size() < wire::kBthBytes) return false;
  const wire::Qpn qpn = destination_qpn(frame.bytes);
  std::uint32_t block = local::block_of(qpn.value);
  if (qpn == wire::kManagementQpn && management_) {
    using Found = local::ServiceNames::Found;
    const auto owner = management_(frame);
    if (owner.found == Found::Unknown) tracer_.count(trace::Counter::PacketsDropped);
    if (owner.found != Found::Block) return owner.found == Found::Unknown;
    block = owner.block;
  }
  if (block == block_.number() || !local::can_be_owned(block)) return false;
  if (!forward(block, frame)) return false;
  ++address.forwards;
  return true;
}

bool UdpLink::forward(std::uint32_t to_block, const Frame& frame) {
  switch (local::post_mail(block_, to_block, mail_head_of(frame.datagram), frame.bytes)) {
    case os::HostMailbox::Sent::Nobody:
      return false;
    case os::HostMailbox::Sent::Yes:
      tracer_.count(trace::Counter::PacketsForwardedOut);
      break;
    case os::HostMailbox::Sent::Full:
      tracer_.count(trace::Counter::PacketsDropped);
      break;
  }
  return true;
}

// Mail is for this device whatever its QPN, and is never passed on: nothing can go in a circle.
void UdpLink::receive_mail(Time now) {
  const std::size_t first = room_->used;
  const std::size_t arrived = block_.mailbox().receive(
      room_->arena, first, kMailBatch, [this, now](std::uint32_t uid) { return admits(uid, now); });
  room_->used += arrived;
  for (std::size_t i = 0; i < arrived; ++i) {
    const auto mail =
        local::accept_mail(room_->arena.arrival(first + i),
                           [this, now](std::uint32_t uid, const os::IpAddress& destination) {
                             return believes(uid, gid_of(destination), now);
                           });
    if (!mail) {
      tracer_.count(trace::Counter::PacketsDropped);
      continue;
    }
    wire::Datagram datagram = datagram_of(mail->head);
    if (mail->udp_payload.empty()) {  // it may only have been to wake
      if (Address* const address = find(datagram.destination)) address->group.repair();
      continue;
    }
    mail_calls_ = kMailBusyFor;
    tracer_.count(trace::Counter::PacketsForwardedIn);
    datagram.identification = hidden_identification(datagram.destination);
    room_->ready.push_back({.datagram = datagram, .bytes = mail->udp_payload});
  }
}

void UdpLink::expect(std::span<const int> readable) {
  for (const int fd : readable) {
    if (fd == block_.mailbox().fd()) mail_calls_ = std::max(mail_calls_, 1u);
    for (const auto& address : addresses_) {
      if (address->group.fd() != fd) continue;
      address->expected = true;
      look_everywhere_ |= address->group.is_lodging();  // the port's holder is gone
    }
  }
}

bool UdpLink::admits(std::uint32_t uid, Time now) {
  if (uid == os::own_uid()) return true;
  return std::ranges::any_of(
      addresses_, [&](const auto& address) { return address->group.believes(uid, now); });
}

// Of another user, only mail for an address that is ours and whose port he has.
bool UdpLink::believes(std::uint32_t uid, const wire::Gid& destination, Time now) {
  Address* const address = find(destination);
  return address != nullptr && address->group.believes(uid, now);
}

Time UdpLink::next_arrival() const {
  if (room_ && room_->handed_out != room_->ready.size()) return Time{0};
  Time next = Time::never();
  for (const auto& address : addresses_) next = earlier(next, address->group.next_try());
  return next;
}

std::vector<int> UdpLink::fds() const {
  std::vector<int> all{block_.mailbox().fd()};
  for (const auto& address : addresses_)
    if (const int fd = address->group.fd(); fd >= 0) all.push_back(fd);
  for (const Group& group : groups_) all.push_back(group.socket.fd());
  return all;
}

void UdpLink::abandon() {
  for (const auto& address : addresses_) address->group.abandon();
  addresses_.clear();
  groups_.clear();
  left_.clear();
  ++fds_version_;
}

}  // namespace softhca::link
