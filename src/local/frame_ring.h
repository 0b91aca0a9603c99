// FrameRing: frames from one process of this host to another, through memory that both have.
//
// A ring of bytes with one writer and one reader. A record is a head and a frame, whole and in one
// piece; what does not fit before the end of the ring begins anew at its start. Positions count all
// bytes that ever went through, so the ring is empty when they are equal, and a writer that takes
// the place of a dead one goes on where that one was.
//
// A writer of small messages that finds the ring empty begins at its start again: two who talk in
// turn touch the same few pages for ever.
//
// Either side may die at any point, or write anything. What lies in the ring is read once and
// checked; what makes no sense closes the ring for good.
//
// Threads     writer and reader: one thread each at a time
// Invariants  (1) a record that `written` covers is whole
//             (2) the reader follows no length that leads out of the ring or behind `written`
// See also    local/ring_table.h; ARCHITECTURE.md, "Processes of one host"
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "local/mailbox.h"

namespace softhca::local {

struct RingControl {
  alignas(64) std::uint64_t written{};  // the writer's
  std::uint32_t closed{};             // by the reader, once: the writer looks at it with each frame
  alignas(64) std::uint64_t taken{};  // the reader's
};
static_assert(sizeof(RingControl) == 128);

inline constexpr std::size_t kRingBytes = 512 * 1024;
inline constexpr std::size_t kMostFrameBytes = 8192;

struct RingFrame {
  MailHead head;     // a copy
  ConstBytes bytes;  // in the ring: the writer may still change them
};

class RingWriter {
 public:
  // Goes on where the last writer was. Nothing if the ring is closed or its positions make no
  // sense. REQUIRES: `ring` has kRingBytes, and both outlive this.
  static std::optional<RingWriter> open(RingControl& control, Bytes ring);

  // False if there is no room now. The reader sees it from publish() on.
  // REQUIRES: at most kMostFrameBytes
  bool put(const MailHead& head, ConstBytes frame);
  // How many frames of that size surely find room now, `wanted` at most.
  std::size_t room_for(std::size_t frame_bytes, std::size_t wanted);
  // Asks for the cache lines of the next frame.
  void prefetch() const;
  // False if there was nothing to publish.
  bool publish();
  bool is_closed() const;

 private:
  RingWriter(RingControl& control, Bytes ring) : control_(&control), ring_(ring) {}
  bool has_room(std::size_t bytes);
  bool may_start_over() const;
  void start_over();
  void put_record(std::size_t bytes, std::uint32_t kind, const MailHead& head, ConstBytes frame);

  RingControl* control_;
  Bytes ring_;
  std::uint64_t at_ = 0;         // behind what was put
  std::uint64_t published_ = 0;  // behind what the reader may see
  std::uint64_t taken_ = 0;      // as far as is known
  std::uint32_t small_ = 0;      // how often in a row little was published
};

class RingReader {
 public:
  // Goes on where the last reader was, which is this one's.
  RingReader(RingControl& control, ConstBytes ring);

  // Frames in order, as many as there is room for. Their bytes stay until release().
  std::size_t read(std::span<RingFrame> out);
  // Asks for the cache lines of what comes next.
  void prefetch() const;
  // There is more than was read.
  bool has_more() const;
  // Behind what lies there now; and whether that was read, or never will be.
  std::uint64_t written() const;
  bool is_past(std::uint64_t position) const;
  // The writer may use what was read.
  void release();
  bool is_closed() const { return closed_; }

 private:
  std::size_t close();

  RingControl* control_;
  ConstBytes ring_;
  std::uint64_t at_;        // behind what was read
  std::uint64_t released_;  // as the writer knows it
  bool closed_ = false;
};

}  // namespace softhca::local
