// Recording: the events of a run in a file that is whole however the run ends.
//
// The file is memory of the process that records (a shared mapping), so there is nothing to be
// written at the end, and `kill -9` loses nothing. A header, the table that explains events, then
// two stretches of 64-byte records: what tells causes and delays is kept from the first on, until
// its stretch is full; all else goes round in a ring that has the newest.
//
// Threads     owned by the device's owner, as the journal
// Invariants  a counter of the header never counts a record that is not written
// See also    findings.h: what to make of it
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "trace/event.h"
#include "trace/reason.h"

namespace softhca::trace {

inline constexpr char kRecordingMagic[] = "SOFTHCA-JOURNAL\n";
inline constexpr std::uint32_t kRecordingVersion = 2;

struct RecordingHeader {
  char magic[16]{};
  std::uint32_t version{};
  std::int32_t pid{};
  char program[16]{};
  char device[32]{};
  char interface[16]{};
  std::uint64_t closed{};    // 1: the device was closed
  std::uint64_t no_room{};   // events for which the file could not grow
  std::uint64_t table_at{};  // lines of text; offsets are bytes
  std::uint64_t table_bytes{};
  std::uint64_t kept_at{};
  std::uint64_t kept_room{};  // records
  std::uint64_t kept{};
  std::uint64_t ring_at{};
  std::uint64_t ring_room{};
  std::uint64_t appended{};  // to the ring, ever
};
static_assert(sizeof(RecordingHeader) == 168 &&
              std::has_unique_object_representations_v<RecordingHeader>);

class Recording {
 public:
  // Makes [at, +bytes) of the memory usable; false if there is no room for it.
  using Grow = std::function<bool(std::uint64_t at, std::uint64_t bytes)>;

  static constexpr std::uint64_t kHeadBytes = 8192;
  static constexpr std::uint64_t kKeptRoom = std::uint64_t{1} << 16;  // 4 MiB
  static constexpr std::uint64_t kRingRoom = std::uint64_t{1} << 20;  // 64 MiB
  static constexpr std::uint64_t kBytes = kHeadBytes + (kKeptRoom + kRingRoom) * sizeof(Event);

  // OWNS nothing. REQUIRES: kBytes of memory, of which the first kHeadBytes are usable, and zero.
  Recording(Bytes memory, Grow grow);

  RecordingHeader& header() { return *reinterpret_cast<RecordingHeader*>(memory_.data()); }
  void append(const Event& event);
  // Nothing is appended any more. Gives how many bytes of the memory are used.
  std::uint64_t close();

 private:
  // A stretch of records that becomes usable piece by piece.
  struct Stretch {
    std::uint64_t at{};
    std::uint64_t room{};
    std::uint64_t usable = 0;
  };
  bool write(Stretch& stretch, std::uint64_t index, const Event& event);

  Bytes memory_;
  Grow grow_;
  Stretch kept_{kHeadBytes, kKeptRoom};
  Stretch ring_{kHeadBytes + kKeptRoom * sizeof(Event), kRingRoom};
};

// What a file holds. Whoever made it: no number in it is believed.
struct Recorded {
  RecordingHeader header;
  std::vector<Event> events;  // in the order in which they were recorded
  std::uint64_t overwritten{};
};
enum class RecordingError : std::uint8_t { NotOne, OtherVersion, Truncated };
Result<Recorded, RecordingError> read_recording(ConstBytes file);

// A line that the device told, as events, and back.
struct ToldLine {
  Telling how{};
  ReasonId reason{};
  std::string about;  // "queue pair 4118737"
  std::string text;   // without `about`
};
std::vector<Event> events_of(const ToldLine& line, Time now);
// The one that begins at events[at]; cut off where its pieces are not there.
ToldLine told_at(const std::vector<Event>& events, std::size_t at);

}  // namespace softhca::trace
