// FlatDevice: a device on a bus that is a stretch of bytes, with a queue pair of each service in
// RTS, a region and a memory window; for fuzzers.
//
// Bus addresses are places in the bytes. What lies beyond them faults, as an IOMMU would have it.
#pragma once
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/range.h"
#include "link/link.h"
#include "nic/device.h"
#include "trace/journal.h"

namespace softhca::fuzz {

// Stops the fuzzer: what it found is a bug.
inline void require(bool holds) {
  if (!holds) std::abort();
}

class FlatMemory final : public pcie::DmaPort, public pcie::InterruptTarget {
 public:
  explicit FlatMemory(std::size_t bytes) : memory(bytes) {}

  pcie::Outcome resolve(const pcie::Access& access, Time now, pcie::SpanList& spans) override {
    if (!Range<BusSpace>{{0}, memory.size()}.contains(access.at, access.bytes))
      return {.reason = {.id = trace::ReasonId::IommuNotMapped, .address = access.at.value},
              .ready_at = now};
    require(spans.append({{access.at.value}, access.bytes}));
    return {.reason = {}, .done_bytes = access.bytes, .ready_at = now};
  }
  pcie::Outcome read(std::span<const pcie::Span> from, Bytes to, Time now) override {
    std::size_t done = 0;
    for (const pcie::Span& s : from) {
      std::memcpy(to.data() + done, memory.data() + s.start.value, s.bytes);
      done += s.bytes;
    }
    return {.reason = {}, .done_bytes = done, .ready_at = now};
  }
  pcie::Outcome write(std::span<const pcie::Span> to, ConstBytes from, Time now) override {
    std::size_t done = 0;
    for (const pcie::Span& s : to) {
      std::memcpy(memory.data() + s.start.value, from.data() + done, s.bytes);
      done += s.bytes;
    }
    return {.reason = {}, .done_bytes = done, .ready_at = now};
  }
  void interrupt(std::uint32_t, Time) override {}

  std::vector<std::byte> memory;
};

// Hands out the frames that it was given, and keeps the headers of what is sent.
class ScriptLink final : public link::Link {
 public:
  std::size_t send(std::span<const link::Frame> frames, Time) override {
    for (const link::Frame& frame : frames) require(static_cast<bool>(wire::parse(frame.bytes)));
    sent += frames.size();
    return frames.size();
  }
  std::size_t receive(std::span<link::Frame> out, Time) override {
    std::size_t count = 0;
    while (count < out.size() && next < frames.size()) out[count++] = frames[next++];
    return count;
  }
  Time next_arrival() const override { return Time::never(); }

  std::vector<link::Frame> frames;
  std::size_t next = 0;
  std::size_t sent = 0;
};

struct FlatDevice {
  static constexpr std::uint64_t kSend = 0x1000, kReceive = 0x3000, kCq = 0x5000, kEq = 0x9000;
  static constexpr std::uint64_t kBuffer = 0x10000, kBufferBytes = 0x4000, kGuard = 0x1000;
  static constexpr std::uint32_t kSlots = 8, kStride = 128, kReceiveStride = 48;
  // In this order: a reliable connection, an unreliable one, datagrams. Each has its rings kRings
  // further on than the one before.
  static constexpr transport::QpType kTypes[] = {transport::QpType::Rc, transport::QpType::Uc,
                                                 transport::QpType::Ud};
  static constexpr std::uint64_t kRings = 0x800;
  static constexpr wire::Qpn kQpn{0x4000}, kPeer{0x5000};
  static constexpr std::uint32_t kQkey = 0x1234;

  FlatDevice()
      : counters(trace::kCounterCount),
        tracer(trace::Counters(counters), nullptr),
        memory(kBuffer + kBufferBytes + kGuard),
        keys(8),
        translations(64),
        qps(4),
        device({.memory = memory,
                .interrupts = memory,
                .link = link,
                .tracer = tracer,
                .tables = {.keys = keys, .translations = translations, .qps = qps},
                .first_qpn = kQpn.value}) {
    device.set_event_queue({{kEq}, 256});
    device.create_cq(1, {{kCq}, 128});
    const auto inserted = device.keys().insert({.pd = 1,
                                                .access = 31,
                                                .start = kBuffer,
                                                .bytes = kBufferBytes,
                                                .bus = {kBuffer},
                                                .pages = {}});
    require(static_cast<bool>(inserted));
    key = *inserted;
    const auto opened = device.keys().insert_window(1, nic::WindowType::Two);
    require(static_cast<bool>(opened));
    window = *opened;
    path.source = wire::Gid::of_ipv4({10, 0, 0, 1});
    path.destination = wire::Gid::of_ipv4({10, 0, 0, 2});
    path.source_port = 0xc000;
    for (std::uint32_t i = 0; i < std::size(kTypes); ++i) add_queue_pair(i);
    const bool bound = !device.keys().bind({.window = window,
                                            .new_key = window,
                                            .region = key,
                                            .address = kBuffer + 100,
                                            .bytes = 1000,
                                            .access = 14},
                                           1, kQpn);
    require(bound);
  }

  void add_queue_pair(std::uint32_t number) {
    const auto qpn = device.take_qpn();
    require(qpn && *qpn == qpn_of(number));
    device.create_qp({.qpn = *qpn,
                      .pd = 1,
                      .type = kTypes[number],
                      .send_cqn = 1,
                      .receive_cqn = 1,
                      .send = {{kSend + number * kRings}, kSlots, kStride, 4},
                      .receive = {{kReceive + number * kRings}, kSlots, kReceiveStride, 2},
                      .max_inline = 64});
    transport::QpAttributes a;
    a.access_flags = 15;
    a.qkey = kQkey;
    a.path_mtu_bytes = 256;
    a.dest_qpn = kPeer;
    a.max_reads = a.max_dest_reads = 4;
    a.timeout = 10;
    a.retry_count = 7;
    a.rnr_retry = 7;
    a.min_rnr_timer = 1;
    for (const auto to :
         {transport::QpState::Init, transport::QpState::Rtr, transport::QpState::Rts}) {
      a.state = to;
      device.modify_qp(*qpn, a, to, path, now);
    }
  }

  static wire::Qpn qpn_of(std::uint32_t number) { return {kQpn.value + number}; }

  void ring(nic::Doorbell doorbell, std::uint32_t posted, std::uint32_t number = 0) {
    device.mmio_write(nic::doorbell_offset(doorbell, qpn_of(number).value), posted, now);
  }
  // Lets `steps` millisecond steps of time pass.
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      device.progress(now);
      now = now + milliseconds(1);
    }
  }
  // What lies around the registered buffer is as it was: zero.
  void require_guards() const {
    for (std::size_t i = kBuffer + kBufferBytes; i < memory.memory.size(); ++i)
      require(memory.memory[i] == std::byte{0});
    for (std::size_t i = kEq + 0x1000; i < kBuffer; ++i) require(memory.memory[i] == std::byte{0});
  }

  Time now{};
  std::vector<std::uint64_t> counters;
  trace::Tracer tracer;
  FlatMemory memory;
  ScriptLink link;
  std::vector<nic::KeyRecord> keys;
  std::vector<std::uint64_t> translations;
  std::vector<nic::QpRecord> qps;
  nic::Device device;
  wire::Key key;
  wire::Key window;
  wire::Datagram path;
};

}  // namespace softhca::fuzz
