#include "sim/sockets.h"

#include <algorithm>
#include <type_traits>

#include "base/assert.h"

namespace softhca::sim {
namespace {

using trace::Counter;
using trace::EventKind;

constexpr std::uint64_t kSegment = 4096;     // bytes of a packet, as the path MTU of the journey
constexpr std::size_t kReceiveBuffers = 64;  // of the driver's ring
constexpr std::uint64_t kSystemCallBytes = std::uint64_t{1} << 20;  // that one call moves at most
constexpr std::uint64_t kSend = 1, kReceive = 2;                    // `call` of the event

Duration bytes_cost(Constant constant, std::uint64_t bytes) {
  return cost_of(constant) * static_cast<std::int64_t>(bytes);
}

// Between the two that were measured, on a line.
Duration wake_up(Duration slept) {
  constexpr Duration kShort = microseconds(100);
  constexpr Duration kLong = milliseconds(2);
  const Duration in = std::clamp(slept, kShort, kLong) - kShort;
  const Duration at_least = cost_of(Constant::WakeAfterShortSleep);
  const Duration more = cost_of(Constant::WakeAfterLongSleep) - at_least;
  return {at_least.ps + more.ps * (in.ps / 1000) / ((kLong - kShort).ps / 1000)};
}

// By DMA, out of the kernel's buffer (Bytes) or into it (ConstBytes). When the bytes are there.
template <class Packet>
Time cross_bus(const TransferEnd& end, BusAddr buffer, Packet packet, Time now) {
  constexpr bool kReads = std::is_same_v<Packet, Bytes>;
  pcie::SpanList spans;
  host::RootPort& port = end.host->port();
  const auto direction = kReads ? pcie::Direction::Read : pcie::Direction::Write;
  const pcie::Outcome outcome = port.resolve({buffer, packet.size(), direction}, now, spans);
  ASSERT(outcome);
  pcie::Outcome moved;
  if constexpr (kReads)
    moved = port.read(spans.all(), packet, now);
  else
    moved = port.write(spans.all(), packet, now);
  ASSERT(moved);
  return outcome.ready_at;
}

// The processor's own copy, between a program and a frame of the kernel.
void count_copy(const TransferEnd& end, std::uint64_t bytes, std::uint64_t call, Time now) {
  end.host->tracer().count(Counter::CpuCopies);
  end.host->tracer().count(Counter::CpuCopyBytes, bytes);
  end.host->tracer().emit(EventKind::CpuCopy, now, end.pid.value, bytes, call);
}

void count_call(const TransferEnd& end, SocketSide& side, std::uint64_t call, std::uint64_t bytes,
                Time now) {
  ++side.system_calls;
  const Time ready_at = now + cost_of(Constant::SystemCall);
  end.host->tracer().emit(EventKind::SystemCall, now, end.pid.value, call, bytes,
                          static_cast<std::uint64_t>(ready_at.ps));
}

}  // namespace

SocketPath::SocketPath(Transfer& transfer)
    : transfer_(transfer), from_(transfer.source()), to_(transfer.target()) {
  for (std::size_t i = 0; i < kReceiveBuffers; ++i)
    receive_ring_.push_back(take_buffer(to_, host::BusRight::Write));
}

SocketPath::~SocketPath() {
  for (const Buffer& buffer : receive_ring_) release(to_, buffer);
}

SocketPath::Buffer SocketPath::take_buffer(const TransferEnd& end, host::BusRights rights) {
  host::FrameOwner kernel;
  kernel.use = host::FrameUse::Kernel;
  const auto frame = end.host->kernel().frames().take(kPage4K, kernel);
  ASSERT(frame);
  const pcie::Span span{*frame, kPage4K};
  auto mapping =
      end.host->dma().map({&span, 1}, rights, host::PageOrder::InOrder, transfer_.world().now());
  ASSERT(mapping);
  return {*frame, std::move(*mapping)};
}

void SocketPath::release(const TransferEnd& end, const Buffer& buffer) {
  end.host->dma().unmap(buffer.mapping, transfer_.world().now());
  end.host->kernel().frames().release(buffer.frame, kPage4K);
}

SocketResult SocketPath::move(Duration slept) {
  const std::uint64_t bytes = transfer_.settings().bytes;
  const Time begin = transfer_.world().now();
  const bool from_client = &from_ == &transfer_.client;
  SocketResult result;
  SocketSide& sender = from_client ? result.client : result.server;
  SocketSide& receiver = from_client ? result.server : result.client;
  const Host::Counts sender_before = from_.host->counts();
  const Host::Counts receiver_before = to_.host->counts();

  Time sender_at = begin;            // the sender's processor
  Time receiver_at = Time::never();  // the receiver's, once it is awake
  Duration receiver_busy = cost_of(Constant::Waking);
  std::vector<std::byte> packet(kSegment);
  for (std::uint64_t done = 0; done < bytes; done += kSegment) {
    const std::uint64_t length = std::min(kSegment, bytes - done);
    const Bytes wire = Bytes(packet).first(length);
    // Out of the program, into the kernel.
    if (done % kSystemCallBytes == 0) {
      count_call(from_, sender, kSend, std::min(kSystemCallBytes, bytes - done), sender_at);
      sender_at = sender_at + cost_of(Constant::SystemCall);
    }
    const Buffer buffer = take_buffer(from_, host::BusRight::Read);
    const Bytes kernel_bytes(from_.host->ram().cpu_address(buffer.frame), length);
    const auto loaded =
        from_.host->kernel().load(from_.pid, advance(from_.start, done), kernel_bytes, sender_at);
    ASSERT(loaded);
    count_copy(from_, length, kSend, sender_at);
    sender_at = sender_at + bytes_cost(Constant::SocketSendByte, length);
    // By DMA into the NIC, over the cable, by DMA into the other kernel.
    const Time in_nic = cross_bus(from_, buffer.mapping.first, wire, sender_at);
    release(from_, buffer);
    from_.host->tracer().count(Counter::PacketsSent);
    wire_busy_ = later(in_nic, wire_busy_) + bytes_cost(Constant::CableByte, length);
    const Time arrived = wire_busy_ + cost_of(Constant::CableDelay);
    const Buffer& slot = receive_ring_[done / kSegment % receive_ring_.size()];
    const Time there = cross_bus(to_, slot.mapping.first, ConstBytes(wire), arrived);
    if (done == 0) {
      to_.host->port().interrupt(1, there);
      receiver_at = there + wake_up(slept);
    }
    // Out of the kernel, into the program.
    receiver_at = later(receiver_at, there);
    if (done % kSystemCallBytes == 0) {
      count_call(to_, receiver, kReceive, std::min(kSystemCallBytes, bytes - done), receiver_at);
      receiver_at = receiver_at + cost_of(Constant::SystemCall);
      receiver_busy = receiver_busy + cost_of(Constant::SystemCall);
    }
    const ConstBytes kernel_copy(to_.host->ram().cpu_address(slot.frame), length);
    const auto stored =
        to_.host->kernel().store(to_.pid, advance(to_.start, done), kernel_copy, receiver_at);
    ASSERT(stored);
    count_copy(to_, length, kReceive, receiver_at);
    const Duration copy = bytes_cost(Constant::SocketReceiveByte, length);
    receiver_at = receiver_at + copy;
    receiver_busy = receiver_busy + copy;
  }
  sender.counted = from_.host->counted_since(sender_before);
  receiver.counted = to_.host->counted_since(receiver_before);
  sender.cpu_busy = sender_at - begin;
  receiver.cpu_busy = receiver_busy;
  result.took = receiver_at - begin;
  transfer_.world().pass(result.took);
  result.arrived = transfer_.moved_all();
  return result;
}

}  // namespace softhca::sim
