#include "local/frame_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "base/assert.h"
#include "base/prefetch.h"

namespace softhca::local {

namespace {

constexpr std::uint64_t kUnit = 64;  // records begin and end at multiples of it
// Beyond this the writer of so many small messages in a row looks whether it may start over.
constexpr std::uint64_t kStartOverAfter = 16'384;
constexpr std::uint32_t kSmallOnes = 16;
constexpr std::uint64_t kSmall = 4096;
constexpr std::uint32_t kFrame = 0x52'46'52'01, kRest = 0x52'46'52'02;

// What lies in front of a frame. kRest: nothing more comes before the end of the ring.
struct RecordHead {
  std::uint32_t kind{};
  std::uint32_t frame_bytes{};
  MailHead head;
};
static_assert(std::is_trivially_copyable_v<RecordHead> && sizeof(RecordHead) <= kUnit);
static_assert(kRingBytes % kUnit == 0);

std::atomic_ref<std::uint64_t> word(std::uint64_t& cell) { return std::atomic_ref(cell); }

std::uint64_t place(std::uint64_t position) { return position % kRingBytes; }
std::uint64_t to_end(std::uint64_t position) { return kRingBytes - place(position); }

constexpr std::uint64_t record_bytes(std::uint64_t frame_bytes) {
  return (sizeof(RecordHead) + frame_bytes + kUnit - 1) / kUnit * kUnit;
}
// Whoever starts over has room at the start, and a ring always has room for some frames.
static_assert(record_bytes(kMostFrameBytes) <= kStartOverAfter &&
              4 * record_bytes(kMostFrameBytes) < kRingBytes);

bool makes_sense(std::uint64_t written, std::uint64_t taken) {
  return written % kUnit == 0 && taken % kUnit == 0 && written - taken <= kRingBytes;
}

}  // namespace

std::optional<RingWriter> RingWriter::open(RingControl& control, Bytes ring) {
  ASSERT(ring.size() == kRingBytes);
  RingWriter writer(control, ring);
  writer.at_ = writer.published_ = word(control.written).load(std::memory_order_acquire);
  writer.taken_ = word(control.taken).load(std::memory_order_acquire);
  if (writer.is_closed() || !makes_sense(writer.at_, writer.taken_)) return std::nullopt;
  return writer;
}

bool RingWriter::is_closed() const { return std::atomic_ref(control_->closed).load() != 0; }

// The reader's position is read once; one that makes no sense leaves no room.
bool RingWriter::has_room(std::size_t bytes) {
  if (at_ + bytes - taken_ <= kRingBytes) return true;
  const std::uint64_t taken = word(control_->taken).load(std::memory_order_acquire);
  if (!makes_sense(at_, taken)) return false;
  taken_ = taken;
  return at_ + bytes - taken_ <= kRingBytes;
}

// One record's worth may be left over at the end of the ring. Who starts over has what lies before
// the place where he was.
std::size_t RingWriter::room_for(std::size_t frame_bytes, std::size_t wanted) {
  const std::uint64_t each = record_bytes(frame_bytes);
  const bool is_enough = has_room((wanted + 1) * each);
  std::uint64_t free = kRingBytes - (at_ - taken_);
  if (may_start_over())
    free = std::min(free, place(at_));
  else if (is_enough)
    return wanted;
  return std::min<std::size_t>(wanted, free < each ? 0 : free / each - 1);
}

// Not in a stream: the end of the ring is lost for it until its reader comes by.
bool RingWriter::may_start_over() const {
  return small_ >= kSmallOnes && place(at_) > kStartOverAfter && at_ == published_;
}

// Only when nothing is under way: then the reader, too, is about to read what is put next.
void RingWriter::start_over() {
  const std::uint64_t taken = word(control_->taken).load(std::memory_order_acquire);
  if (taken != at_) return;
  taken_ = taken;
  put_record(to_end(at_), kRest, {}, {});
}

void RingWriter::put_record(std::size_t bytes, std::uint32_t kind, const MailHead& head,
                            ConstBytes frame) {
  std::byte* const to = ring_.data() + place(at_);
  const RecordHead record{
      .kind = kind, .frame_bytes = static_cast<std::uint32_t>(frame.size()), .head = head};
  std::memcpy(to, &record, sizeof record);
  if (!frame.empty()) std::memcpy(to + sizeof record, frame.data(), frame.size());
  at_ += bytes;
}

bool RingWriter::put(const MailHead& head, ConstBytes frame) {
  ASSERT(frame.size() <= kMostFrameBytes);
  if (may_start_over()) start_over();
  const std::uint64_t bytes = record_bytes(frame.size());
  const std::uint64_t skipped = to_end(at_) < bytes ? to_end(at_) : 0;
  if (!has_room(skipped + bytes)) return false;
  if (skipped != 0) put_record(skipped, kRest, {}, {});
  put_record(bytes, kFrame, head, frame);
  return true;
}

void RingWriter::prefetch() const {
  prefetch_for_write(control_);
  const std::byte* const next = ring_.data() + place(at_);
  prefetch_for_write(next);
  prefetch_for_write(next + kUnit);
}

bool RingWriter::publish() {
  if (at_ == published_) return false;
  word(control_->written).store(at_, std::memory_order_release);
  small_ = at_ - published_ <= kSmall ? small_ + 1 : 0;
  published_ = at_;
  return true;
}

RingReader::RingReader(RingControl& control, ConstBytes ring)
    : control_(&control),
      ring_(ring),
      at_(word(control.taken).load(std::memory_order_relaxed)),
      released_(at_) {
  ASSERT(ring.size() == kRingBytes);
}

std::size_t RingReader::read(std::span<RingFrame> out) {
  if (closed_) return 0;
  const std::uint64_t written = word(control_->written).load(std::memory_order_acquire);
  if (!makes_sense(written, at_)) return close();
  std::size_t count = 0;
  while (at_ != written && count < out.size()) {
    const ConstBytes rest = ring_.subspan(place(at_), std::min(to_end(at_), written - at_));
    RecordHead record;
    std::memcpy(&record, rest.data(), sizeof record);  // read once
    std::uint64_t bytes = to_end(at_);
    if (record.kind == kFrame) {
      if (record.frame_bytes > kMostFrameBytes) return close();
      bytes = record_bytes(record.frame_bytes);
    } else if (record.kind != kRest) {
      return close();
    }
    if (bytes > rest.size()) return close();
    at_ += bytes;
    if (record.kind == kFrame)
      out[count++] = {record.head, rest.subspan(sizeof record, record.frame_bytes)};
  }
  return count;
}

// What was read in the same call is not given out: it is of the same writer.
std::size_t RingReader::close() {
  closed_ = true;
  std::atomic_ref(control_->closed).store(1);
  return 0;
}

void RingReader::prefetch() const {
  softhca::prefetch(control_);
  const std::byte* const next = ring_.data() + place(at_);
  softhca::prefetch(next);
  softhca::prefetch(next + kUnit);
}

bool RingReader::has_more() const { return !closed_ && written() != at_; }

std::uint64_t RingReader::written() const {
  return word(control_->written).load(std::memory_order_acquire);
}

bool RingReader::is_past(std::uint64_t position) const {
  return closed_ || static_cast<std::int64_t>(at_ - position) >= 0;
}

void RingReader::release() {
  if (at_ == released_) return;
  released_ = at_;
  word(control_->taken).store(at_, std::memory_order_release);
}

}  // namespace softhca::local
