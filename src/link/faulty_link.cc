#include "link/faulty_link.h"

#include <algorithm>
#include <array>

namespace softhca::link {

namespace {

constexpr std::size_t kFaultyBatch = 32;

// Which queue pair a packet is for; frames that are too short to say are all alike.
std::uint32_t receiver_of(ConstBytes bytes) {
  return bytes.size() < wire::kBthBytes ? 0 : load_be<std::uint32_t>(bytes, 4) & wire::kMask24;
}

}  // namespace

struct FaultyLink::Held {
  Time due;
  std::uint32_t passed_by{};  // so many of its queue pair still have to pass it
  wire::Datagram datagram;
  std::vector<std::byte> bytes;

  Frame frame() const { return {datagram, bytes}; }
};

FaultyLink::FaultyLink(Link& inner, faults::Injector& injector)
    : inner_(inner), injector_(injector) {}
FaultyLink::~FaultyLink() = default;

// What the inner link would not take now stays first in line; nothing more is taken behind it.
std::size_t FaultyLink::send(std::span<const Frame> frames, Time now) {
  if (!release_sends(now)) return 0;
  for (const Frame& frame : frames) carry(frame, faults::Side::Out, now, outgoing_);
  release_sends(now);
  return frames.size();
}

std::size_t FaultyLink::receive(std::span<Frame> out, Time now) {
  release_sends(now);
  const auto due_now = [&] {
    const auto end = std::ranges::find_if(incoming_, [&](const Held& h) { return now < h.due; });
    return std::min(static_cast<std::size_t>(end - incoming_.begin()), out.size());
  };
  if (due_now() < out.size()) {
    std::array<Frame, kFaultyBatch> arrived;
    const std::size_t count = inner_.receive(arrived, now);
    for (const Frame& frame : std::span(arrived).first(count))
      carry(frame, faults::Side::In, now, incoming_);
  }
  const std::size_t due = due_now();
  const auto stop = incoming_.begin() + static_cast<std::ptrdiff_t>(due);
  lent_.assign(std::make_move_iterator(incoming_.begin()), std::make_move_iterator(stop));
  incoming_.erase(incoming_.begin(), stop);
  for (std::size_t i = 0; i < due; ++i) out[i] = lent_[i].frame();
  return due;
}

Time FaultyLink::next_arrival() const {
  Time next = inner_.next_arrival();
  if (!outgoing_.empty()) next = earlier(next, outgoing_.front().due);
  if (!incoming_.empty()) next = earlier(next, incoming_.front().due);
  return next;
}

bool FaultyLink::release_sends(Time now) {
  while (!outgoing_.empty() && outgoing_.front().due <= now) {
    std::array<Frame, kFaultyBatch> batch;
    std::size_t count = 0;
    while (count < batch.size() && count < outgoing_.size() && outgoing_[count].due <= now) {
      batch[count] = outgoing_[count].frame();
      ++count;
    }
    const std::size_t taken = inner_.send(std::span(batch).first(count), now);
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(taken));
    if (taken < count) return false;
  }
  return true;
}

void FaultyLink::carry(const Frame& frame, faults::Side side, Time now, std::vector<Held>& held) {
  const bool leaves = side == faults::Side::Out;
  const wire::Gid& peer = leaves ? frame.datagram.destination : frame.datagram.source;
  const auto fate = injector_.on_packet(side, peer, frame.bytes, now);
  if (fate.is_lost || held.size() >= kHeldAtMost) return;
  Held one{.due = now + fate.late,
           .passed_by = fate.passed_by,
           .datagram = frame.datagram,
           .bytes = {frame.bytes.begin(), frame.bytes.end()}};
  if (fate.passed_by != 0) one.due = one.due + kPassedWithin;
  if (fate.flipped) one.bytes[*fate.flipped / 8] ^= std::byte{1} << (*fate.flipped % 8);
  if (fate.kept) one.bytes.resize(*fate.kept);
  if (fate.is_doubled) held.push_back(one);
  held.push_back(std::move(one));
  if (fate.late == Duration{} && fate.passed_by == 0)
    let_follow(receiver_of(frame.bytes), now, held);
  std::ranges::stable_sort(held, {}, &Held::due);
}

// A packet passes by: those that have waited for it come right behind it.
void FaultyLink::let_follow(std::uint32_t receiver, Time now, std::vector<Held>& held) {
  const auto is_released = [&](Held& waiting) {
    if (waiting.passed_by == 0 || receiver_of(waiting.bytes) != receiver) return false;
    if (--waiting.passed_by == 0) waiting.due = now;
    return waiting.passed_by == 0;
  };
  std::stable_partition(held.begin(), held.end(), [&](Held& h) { return !is_released(h); });
}

}  // namespace softhca::link
