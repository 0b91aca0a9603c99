#include "link/faulty_link.h"

#include <algorithm>
#include <array>

namespace softhca::link {

namespace {

constexpr std::size_t kFaultyBatch = 32;

}  // namespace

struct FaultyLink::Held {
  Time due;
  wire::Datagram datagram;
  std::vector<std::byte> bytes;

  Frame frame() const { return {datagram, bytes}; }
};

FaultyLink::FaultyLink(Link& inner, std::uint64_t seed, const FaultRates& sending,
                       const FaultRates& receiving)
    : inner_(inner), prng_(seed), sending_(sending), receiving_(receiving) {}
FaultyLink::~FaultyLink() = default;

std::size_t FaultyLink::send(std::span<const Frame> frames, Time now) {
  if (!sending_.any()) return inner_.send(frames, now);
  // What the inner link would not take now stays first in line; nothing more is taken behind it.
  if (!release_sends(now)) return 0;
  for (const Frame& frame : frames) spoil(frame, sending_, now, outgoing_);
  release_sends(now);
  return frames.size();
}

std::size_t FaultyLink::receive(std::span<Frame> out, Time now) {
  release_sends(now);
  if (!receiving_.any()) return inner_.receive(out, now);
  std::array<Frame, kFaultyBatch> arrived;
  const std::size_t count = inner_.receive(arrived, now);
  for (const Frame& frame : std::span(arrived).first(count))
    spoil(frame, receiving_, now, incoming_);

  const auto end = std::find_if(incoming_.begin(), incoming_.end(),
                                [&](const Held& held) { return now < held.due; });
  const std::size_t due = std::min(static_cast<std::size_t>(end - incoming_.begin()), out.size());
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
  std::size_t sent = 0;
  bool taken = true;
  while (taken && sent < outgoing_.size() && outgoing_[sent].due <= now) {
    const Frame frame = outgoing_[sent].frame();
    taken = inner_.send({&frame, 1}, now) == 1;
    if (taken) ++sent;
  }
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent));
  return taken;
}

void FaultyLink::spoil(const Frame& frame, const FaultRates& rates, Time now,
                       std::vector<Held>& held) {
  if (prng_.chance(rates.drop, 1000)) {
    ++counts_.dropped;
    return;
  }
  const int copies = prng_.chance(rates.duplicate, 1000) ? 2 : 1;
  counts_.duplicated += copies == 2 ? 1 : 0;
  for (int i = 0; i < copies; ++i) {
    Held one{now, frame.datagram, {frame.bytes.begin(), frame.bytes.end()}};
    if (!one.bytes.empty() && prng_.chance(rates.corrupt, 1000)) {
      const std::uint64_t bit = prng_.below(one.bytes.size() * 8);
      one.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      ++counts_.corrupted;
    }
    if (rates.delay_max > Duration{} && prng_.chance(rates.delay, 1000)) {
      const auto most = static_cast<std::uint64_t>(rates.delay_max.ps);
      one.due = now + picoseconds(static_cast<std::int64_t>(1 + prng_.below(most)));
      ++counts_.delayed;
    }
    const auto place = std::upper_bound(held.begin(), held.end(), one.due,
                                        [](Time due, const Held& h) { return due < h.due; });
    held.insert(place, std::move(one));
  }
}

}  // namespace softhca::link
