#include "pcie/port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace softhca::pcie {
namespace {

// Memory that moves one buffer at a time and fails from `bad` on.
class PlainMemory final : public DmaPort {
 public:
  Outcome resolve(const Access&, Time now, SpanList&) override { return {.ready_at = now}; }
  Outcome read(std::span<const Span> from, Bytes to, Time now) override {
    return each_byte(from, now, [&](std::size_t i, std::byte& b) { to[i] = b; });
  }
  Outcome write(std::span<const Span> to, ConstBytes from, Time now) override {
    return each_byte(to, now, [&](std::size_t i, std::byte& b) { b = from[i]; });
  }
  using DmaPort::read;
  using DmaPort::write;

  std::vector<std::byte> memory = std::vector<std::byte>(1000);
  std::uint64_t bad = 1000;

 private:
  template <class Move>
  Outcome each_byte(std::span<const Span> spans, Time now, Move move) {
    std::size_t done = 0;
    for (const Span& span : spans)
      for (std::uint64_t at = span.start.value; at < span.start.value + span.bytes; ++at, ++done) {
        if (at >= bad)
          return {
              .reason = {.id = trace::ReasonId::FrameGone}, .done_bytes = done, .ready_at = now};
        move(done, memory[at]);
      }
    return {.reason = {}, .done_bytes = done, .ready_at = now};
  }
};

constexpr Span kSpans[] = {{{10}, 30}, {{100}, 0}, {{200}, 50}, {{5}, 3}};

struct Parts {
  Parts() {
    for (const std::size_t bytes : {20u, 15u, 0u, 47u, 1u}) buffers.emplace_back(bytes);
    for (std::vector<std::byte>& buffer : buffers) rooms.emplace_back(buffer);
  }
  std::vector<std::byte> joined() const {
    std::vector<std::byte> all;
    for (const auto& buffer : buffers) all.insert(all.end(), buffer.begin(), buffer.end());
    return all;
  }
  std::vector<std::vector<std::byte>> buffers;
  std::vector<Bytes> rooms;
};

TEST(DmaPort, MovesABufferInPartsAsOne) {
  PlainMemory port;
  for (std::size_t i = 0; i < port.memory.size(); ++i) port.memory[i] = static_cast<std::byte>(i);
  std::vector<std::byte> whole(83);
  ASSERT_TRUE(port.read(kSpans, Bytes(whole), Time{7}));
  Parts parts;
  const Outcome read = port.read(kSpans, std::span<const Bytes>(parts.rooms), Time{7});
  EXPECT_TRUE(read);
  EXPECT_EQ(read.done_bytes, 83u);
  EXPECT_EQ(read.ready_at, Time{7});
  EXPECT_EQ(parts.joined(), whole);

  std::ranges::fill(port.memory, std::byte{0});
  const std::vector<ConstBytes> contents(parts.rooms.begin(), parts.rooms.end());
  EXPECT_EQ(port.write(kSpans, std::span<const ConstBytes>(contents), Time{7}).done_bytes, 83u);
  std::vector<std::byte> again(83);
  ASSERT_TRUE(port.read(kSpans, Bytes(again), Time{7}));
  EXPECT_EQ(again, whole);
  EXPECT_EQ(port.memory[40], std::byte{0}) << "behind the first span";
}

TEST(DmaPort, StopsInThePartThatCannotBeMoved) {
  PlainMemory port;
  port.bad = 210;
  Parts parts;
  const Outcome read = port.read(kSpans, std::span<const Bytes>(parts.rooms), Time{7});
  EXPECT_EQ(read.reason.id, trace::ReasonId::FrameGone);
  EXPECT_EQ(read.done_bytes, 40u);
}

}  // namespace
}  // namespace softhca::pcie
