#include "link/ring_link.h"

#include <algorithm>

#include "link/mail_head.h"
#include "wire/packet.h"

namespace softhca::link {

using trace::Counter;
using trace::ReasonId;

namespace {

constexpr Duration kFindAgain = seconds(1);
constexpr Duration kAskAgain = milliseconds(1);  // whose an address is
// For how long a reader that is off its CPU is waited for: by one who would make frames for it, and
// by frames that are made, which others wait behind.
constexpr Duration kPatience = milliseconds(200);
constexpr Duration kPatienceOfFrames = milliseconds(20);
// Of receive(): for how long what brought a frame counts as active, and how often the link inside
// is looked at if only the rings do.
constexpr std::uint32_t kRingsActiveFor = 16384;
constexpr std::uint32_t kInnerActiveFor = 64;
constexpr std::uint32_t kInnerEvery = 32;

constexpr std::size_t kLongestFrame = wire::kMaxHeaderBytes + wire::kMaxMtu + wire::kIcrcBytes;
static_assert(kLongestFrame <= local::kMostFrameBytes);

std::uint32_t block_of(const Frame& frame) {
  return local::block_of(destination_qpn(frame.bytes).value);
}

Frame frame_of(const local::RingFrame& from) {
  Frame frame{.datagram = datagram_of(from.head), .bytes = from.bytes};
  frame.has_icrc = false;
  return frame;
}

}  // namespace

Way RingLink::way_to(const wire::Datagram& path, wire::Qpn qpn, Time now) {
  const Route* const route = route_of(path, qpn, now);
  if (route == nullptr) return {};
  return {.is_memory = route->peer.has_value(), .why_not = route->why_not};
}

bool RingLink::has_memory_room(const wire::Datagram& path, wire::Qpn qpn, Time now) {
  Route* const route = route_of(path, qpn, now);
  if (route == nullptr || !route->peer) return false;
  route->peer->sender.prefetch();
  return !route->peer->sender.is_closed() && route->peer->sender.room_for(kLongestFrame, 1) != 0;
}

std::size_t RingLink::room_for(const wire::Datagram& path, wire::Qpn qpn, std::size_t wanted,
                               Time now) {
  Route* const route = route_of(path, qpn, now);
  if (route == nullptr || !route->peer) return wanted;
  const std::size_t room = route->peer->sender.room_for(kLongestFrame, wanted);
  if (room != 0) {
    route->full_since = Time::never();
    return room;
  }
  if (route->full_since == Time::never()) route->full_since = now;
  return now - route->full_since < kPatience ? 0 : wanted;
}

// Null: that is on another host.
RingLink::Route* RingLink::route_of(const wire::Datagram& path, wire::Qpn qpn, Time now) {
  const std::uint32_t block = local::block_of(qpn.value);
  if (!local::can_be_owned(block) || !is_own(path.destination, now)) return nullptr;
  return &route_to(block, now);
}

// Most are asked for again and again.
bool RingLink::is_own(const wire::Gid& address, Time now) {
  if (address != asked_ || now >= ask_again_at_) {
    is_own_ = parts_.is_own_address(address);
    asked_ = address;
    ask_again_at_ = now + kAskAgain;
  }
  return is_own_;
}

RingLink::Route& RingLink::route_to(std::uint32_t block, Time now) {
  if (last_ == nullptr || last_block_ != block) {
    last_ = &routes_[block];
    last_block_ = block;
  }
  Route& route = *last_;
  if (route.peer && route.peer->is_there(now)) return route;
  if (!route.peer && now < route.again_at) return route;
  route = {};
  // Whoever comes is a reason to forget who has gone.
  std::erase_if(routes_, [&](auto& entry) {
    return &entry.second != &route && entry.second.peer && !entry.second.peer->is_there(now);
  });
  Found found = parts_.find(block);
  if (found.peer) route.peer.emplace(std::move(*found.peer));
  route.why_not = found.why_not;
  route.again_at = now + kFindAgain;
  return route;
}

std::size_t RingLink::send(std::span<const Frame> frames, Time now) {
  std::size_t taken = 0;
  while (taken < frames.size()) {
    const bool by_ring = !frames[taken].has_icrc;
    std::size_t run = 1;
    while (taken + run < frames.size() && frames[taken + run].has_icrc != by_ring) ++run;
    const std::span<const Frame> part = frames.subspan(taken, run);
    const std::size_t sent = by_ring ? send_run(part, now) : parts_.inner.send(part, now);
    taken += sent;
    if (sent < run) break;
  }
  return taken;
}

// Frames for memory. What was put for one peer is shown before that of the next, and at the end.
std::size_t RingLink::send_run(std::span<const Frame> frames, Time now) {
  std::size_t taken = 0;
  std::uint64_t lost = 0;
  std::optional<std::uint32_t> shown_last;
  for (const Frame& frame : frames) {
    const std::uint32_t block = block_of(frame);
    if (shown_last && *shown_last != block) show(*shown_last);
    shown_last = block;
    Route* const route = find(block);
    const Put put = route == nullptr ? Put::Lost : this->put(*route, frame, now);
    if (put == Put::Later) break;
    lost += put == Put::Lost ? 1 : 0;
    ++taken;
  }
  if (shown_last) show(*shown_last);
  if (lost != 0) parts_.tracer.count(Counter::SendErrors, lost);
  parts_.tracer.count(Counter::RingPacketsSent, taken - lost);
  return taken;
}

// Whoever was asked for the way has died since, or reads nothing: lost, as on a cable.
RingLink::Put RingLink::put(Route& route, const Frame& frame, Time now) {
  if (!route.peer || frame.bytes.size() > local::kMostFrameBytes) return Put::Lost;
  if (route.peer->sender.put(mail_head_of(frame.datagram), frame.bytes)) {
    route.full_since = Time::never();
    return Put::Taken;
  }
  if (route.full_since == Time::never()) route.full_since = now;
  return now - route.full_since < kPatienceOfFrames ? Put::Later : Put::Lost;
}

void RingLink::show(std::uint32_t block) {
  Route* const route = find(block);
  if (route != nullptr && route->peer && route->peer->sender.ring()) parts_.wake(block);
}

RingLink::Route* RingLink::find(std::uint32_t block) {
  if (last_ != nullptr && last_block_ == block) return last_;
  const auto found = routes_.find(block);
  return found == routes_.end() ? nullptr : &found->second;
}

// Rings that fill a call leave the link inside no room: at times it then has its own first.
std::size_t RingLink::receive(std::span<Frame> out, Time now) {
  const bool is_first = rings_filled_ && is_inner_due(true);
  std::size_t count = is_first ? receive_inner(out, now) : 0;
  const std::size_t by_rings = receive_rings(out.subspan(count));
  count += by_rings;
  rings_filled_ = by_rings != 0 && count == out.size();
  if (is_first || count == out.size() || !is_inner_due(by_rings != 0)) return count;
  return count + receive_inner(out.subspan(count), now);
}

std::size_t RingLink::receive_rings(std::span<Frame> out) {
  const std::size_t room = std::min(out.size(), arrived_.size());
  const std::size_t count = parts_.rings.receive(std::span(arrived_).first(room));
  std::ranges::transform(std::span(arrived_).first(count), out.begin(), frame_of);
  if (count == 0) return 0;
  ring_calls_ = kRingsActiveFor;
  parts_.tracer.count(Counter::RingPacketsReceived, count);
  return count;
}

std::size_t RingLink::receive_inner(std::span<Frame> out, Time now) {
  const std::size_t count = parts_.inner.receive(out, now);
  if (count != 0) inner_calls_ = kInnerActiveFor;
  return count;
}

// What the link inside handed out before stays valid when it is not asked; nobody relies on that.
bool RingLink::is_inner_due(bool anything) {
  if (std::exchange(expects_, false) || ring_calls_ == 0) return true;
  if (!anything) --ring_calls_;
  if (inner_calls_ != 0) {
    --inner_calls_;
    return true;
  }
  return ++calls_ % kInnerEvery == 0;
}

}  // namespace softhca::link
