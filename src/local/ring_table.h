// RingTable: the rings through which the other processes of a host send frames to one device.
//
// The device's own memory, which they find and map. Each writes into a ring of its own, whose
// number is that of its place among the accessors (local/accessors.h), and then rings: a bit for
// each ring says that something may lie there, and a word whether anybody has to be woken.
//
//   writer  frame, bit           -> looks at the word: wakes the owner if it sleeps, once
//   owner   word: "I sleep"      -> looks at the bits: does not sleep if there is one
//
// The first steps come before the second ones in an order that all agree on, so at least one sees
// the other. While anybody polls, nobody is woken.
//
// Pages exist from their first use on; a pair that talks in turn uses the first few of its rings.
//
// Threads     owner: one at a time, but sleep() and wake_up() by any; a writer: one at a time
// See also    local/frame_ring.h
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "local/frame_ring.h"

namespace softhca::local {

inline constexpr std::uint32_t kRings = 256;

struct RingTableHead {
  alignas(64) std::uint32_t sleeps{};
  alignas(64) std::uint64_t rung[kRings / 64]{};
  alignas(64) RingControl controls[kRings]{};
};

// Where ring 0 begins; the others follow.
inline constexpr std::size_t kRingsAt = (sizeof(RingTableHead) + 4095) / 4096 * 4096;
inline constexpr std::size_t kRingTableBytes = kRingsAt + kRings * kRingBytes;

// A place in one of the rings.
struct RingPlace {
  std::uint32_t ring{};
  std::uint64_t position{};
};

// The owner's side. OWNS nothing.
class RingTable {
 public:
  // REQUIRES: kRingTableBytes, zeroed at first.
  explicit RingTable(Bytes memory);

  // Frames that have arrived, each ring's in order. Their bytes stay until the next call, or
  // release(): until then their writers may find no room, and wait for it.
  std::size_t receive(std::span<RingFrame> out);
  void release();

  // Behind what was shown to the owner and not yet received; and whether all of that was.
  std::vector<RingPlace> waiting();
  bool has_received(std::span<const RingPlace> places) const;

  // Nobody polls from now on: writers wake the owner. True if something lies there already, and
  // this was not said before.
  bool sleep();
  void wake_up();

 private:
  RingReader& reader(std::uint32_t number);
  std::size_t read_ring(std::uint32_t number, std::span<RingFrame> out);

  RingTableHead* head_;
  Bytes memory_;
  std::vector<std::optional<RingReader>> readers_;  // made when they are first needed
  std::vector<std::uint32_t> read_;                 // rings that were read and not released
  std::uint32_t first_ = 0;  // is looked at first: the next to the one that took the last room
};

// One writer's side.
class RingSender {
 public:
  // Nothing if there is no such ring, or it is closed. REQUIRES: nobody else alive has that number.
  static std::optional<RingSender> open(Bytes memory, std::uint32_t number);

  bool put(const MailHead& head, ConstBytes frame) { return ring_.put(head, frame); }
  std::size_t room_for(std::size_t frame_bytes, std::size_t wanted) {
    return ring_.room_for(frame_bytes, wanted);
  }
  bool is_closed() const { return ring_.is_closed(); }
  // Asks for the cache lines that the next frame needs: they are with the owner.
  void prefetch() const;
  // Shows the owner what was put. True if it sleeps and has to be woken, by the caller.
  bool ring();

 private:
  RingSender(RingTableHead& head, std::uint32_t number, const RingWriter& ring)
      : head_(&head), number_(number), ring_(ring) {}
  RingTableHead* head_;
  std::uint32_t number_;
  RingWriter ring_;
};

}  // namespace softhca::local
