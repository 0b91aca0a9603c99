// Pair: two simulated hosts with a connection and a registered buffer each, for scenario tests.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sim/world.h"

namespace softhca::sim {

// Asynchronous events as they came.
struct EventLog final : driver::EventSink {
  struct Async {
    driver::AsyncEventType type;
    driver::QueuePair* qp;
    trace::ReasonId reason;
  };
  struct Shared {
    driver::AsyncEventType type;
    driver::SharedReceiveQueue* srq;
  };
  std::vector<Async> async;
  std::vector<Shared> srqs;
  int completions = 0;

  void completion_event(driver::CompletionQueue&) override { ++completions; }
  void async_event(driver::AsyncEventType type, driver::QueuePair* qp, driver::CompletionQueue*,
                   const trace::Reason& reason) override {
    async.push_back({type, qp, reason.id});
  }
  void srq_event(driver::AsyncEventType type, driver::SharedReceiveQueue& srq,
                 const trace::Reason&) override {
    srqs.push_back({type, &srq});
  }
};

constexpr std::uint64_t kBufferBytes = 8192;
constexpr std::uint64_t kBufferOffset = 50;  // of a buffer in its page: nothing is page aligned
constexpr std::uint32_t kAllRights = 1 | 2 | 4 | 8;

struct Buffer {
  Host* host{};
  VirtAddr start;
  wire::Key key;

  driver::Sge sge(std::uint64_t offset, std::uint32_t bytes) const {
    return {start.value + offset, bytes, key.value};
  }
};

// A request of id 1 that names memory of the peer.
inline driver::SendRequest remote_request(transport::WorkOpcode opcode,
                                          std::span<const driver::Sge> sges, std::uint64_t address,
                                          wire::Key key) {
  return {.wr_id = 1,
          .opcode = opcode,
          .flags = {},
          .sges = sges,
          .immediate = 0,
          .remote_address = address,
          .rkey = key};
}

struct Pair {
  explicit Pair(ConnectionSettings settings = {}, WorldSettings world_settings = {})
      : world(world_settings) {
    settings.events_a = &events_a;
    settings.events_b = &events_b;
    connection = connect(world, world.host(0), world.host(1), settings);
    a = make_buffer(connection.a, kAllRights);
    b = make_buffer(connection.b, kAllRights);
  }

  // A buffer in the middle of memory that is filled too: what lies around it must not change.
  Buffer make_buffer(const Connection::End& end, std::uint32_t access) {
    return make_buffer(end, access, end.pd);
  }
  Buffer make_buffer(const Connection::End& end, std::uint32_t access, std::uint32_t pd) {
    Host& host = *end.host;
    const VirtAddr around = host.allocate(kBufferBytes + 2 * kPage4K);
    host.fill(around, kBufferBytes + 2 * kPage4K, std::byte{0xee});
    const VirtAddr start{around.value + kPage4K + kBufferOffset};
    const auto region = host.engine().register_memory(
        pd, start, kBufferBytes, {start.value}, driver::AccessFlags::of_bits(access), world.now());
    EXPECT_TRUE(region);
    arounds.push_back({&host, around, {}});
    Buffer buffer{&host, start, region->key};
    host.fill(start, kBufferBytes, std::byte{0x11});
    return buffer;
  }

  void post(const Connection::End& end, driver::SendRequest request) {
    request.flags |= driver::SendFlag::Signaled;
    ASSERT_TRUE(end.host->engine().post_send(*end.qp, request, false, world.now()));
  }
  void post_receive(const Connection::End& end, std::uint64_t wr_id,
                    std::span<const driver::Sge> sges) {
    ASSERT_TRUE(end.host->engine().post_receive(*end.qp, {wr_id, sges}, false, world.now()));
  }

  // Lets time pass until nothing is left to happen.
  void settle(Duration limit = seconds(60)) { world.pass(limit); }
  std::vector<driver::Completion> completions(const Connection::End& end) {
    std::vector<driver::Completion> all(64);
    all.resize(end.cq->poll(all));
    return all;
  }
  // Everything outside the registered buffers is as it was.
  void expect_surroundings_untouched() {
    for (const Buffer& around : arounds) {
      const auto memory = around.host->load(around.start, kBufferBytes + 2 * kPage4K);
      const auto is_fill = [](std::byte b) { return b == std::byte{0xee}; };
      EXPECT_TRUE(std::ranges::all_of(std::span(memory).first(kPage4K + kBufferOffset), is_fill));
      EXPECT_TRUE(std::ranges::all_of(
          std::span(memory).subspan(kPage4K + kBufferOffset + kBufferBytes), is_fill));
    }
  }
  bool is_filled(const Buffer& buffer, std::uint64_t offset, std::uint64_t bytes, std::byte with) {
    return std::ranges::all_of(buffer.host->load({buffer.start.value + offset}, bytes),
                               [&](std::byte x) { return x == with; });
  }

  World world;
  EventLog events_a;
  EventLog events_b;
  Connection connection;
  Buffer a;
  Buffer b;
  std::vector<Buffer> arounds;
};

}  // namespace softhca::sim
