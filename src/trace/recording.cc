#include "trace/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace softhca::trace {
namespace {

constexpr std::uint64_t kTableAt = 512;
constexpr std::uint64_t kGrowth = std::uint64_t{1} << 14;  // records: 1 MiB
constexpr std::size_t kTextAtMost = 2048;                  // of a line
constexpr std::size_t kPieceBytes = kEventFields * sizeof(std::uint64_t);

std::string table_text() {
  std::string table;
  for (const EventInfo& row : kEvents)
    table += fmt::format("{} {} {}\n", row.name, row.object.empty() ? "-" : row.object,
                         fmt::join(row.fields, ","));
  return table;
}

bool is_kept(EventKind kind) {
  switch (kind) {
    case EventKind::Told:
    case EventKind::ToldText:
    case EventKind::Timeout:
    case EventKind::Retransmit:
    case EventKind::RnrWait:
    case EventKind::QpState:
      return true;
    default:
      return false;
  }
}

void publish(std::uint64_t& counter, std::uint64_t value) {
  std::atomic_ref(counter).store(value, std::memory_order_release);
}

bool fits(ConstBytes file, std::uint64_t at, std::uint64_t records) {
  return at <= file.size() && records <= (file.size() - at) / sizeof(Event);
}

}  // namespace

Recording::Recording(Bytes memory, Grow grow) : memory_(memory), grow_(std::move(grow)) {
  ASSERT(memory.size() >= kBytes);
  const std::string table = table_text();
  ASSERT(kTableAt + table.size() <= kHeadBytes);
  std::memcpy(memory_.data() + kTableAt, table.data(), table.size());
  RecordingHeader& h = header();
  h.version = kRecordingVersion;
  h.table_at = kTableAt;
  h.table_bytes = table.size();
  h.kept_at = kept_.at;
  h.kept_room = kept_.room;
  h.ring_at = ring_.at;
  h.ring_room = ring_.room;
  std::memcpy(h.magic, kRecordingMagic, sizeof h.magic);
}

bool Recording::write(Stretch& stretch, std::uint64_t index, const Event& event) {
  if (index >= stretch.usable) {
    const std::uint64_t more = std::min(kGrowth, stretch.room - stretch.usable);
    if (!grow_(stretch.at + stretch.usable * sizeof(Event), more * sizeof(Event))) return false;
    stretch.usable += more;
  }
  store_le(memory_, stretch.at + index * sizeof(Event), event);
  return true;
}

void Recording::append(const Event& event) {
  RecordingHeader& h = header();
  if (h.closed != 0) return;
  if (is_kept(event.kind) && h.kept < kept_.room) {
    if (!write(kept_, h.kept, event)) return publish(h.no_room, h.no_room + 1);
    return publish(h.kept, h.kept + 1);
  }
  if (!write(ring_, h.appended % ring_.room, event)) return publish(h.no_room, h.no_room + 1);
  publish(h.appended, h.appended + 1);
}

std::uint64_t Recording::close() {
  publish(header().closed, 1);
  return ring_.at + std::min(header().appended, ring_.room) * sizeof(Event);
}

Result<Recorded, RecordingError> read_recording(ConstBytes file) {
  constexpr std::size_t kName = sizeof(RecordingHeader::magic) - 1;  // what versions share
  if (file.size() < kName || std::memcmp(file.data(), kRecordingMagic, kName) != 0)
    return RecordingError::NotOne;
  if (file[kName] != std::byte{'\n'}) return RecordingError::OtherVersion;
  if (file.size() < sizeof(RecordingHeader)) return RecordingError::Truncated;
  Recorded read{.header = load_le<RecordingHeader>(file), .events = {}};
  const RecordingHeader& h = read.header;
  if (h.version != kRecordingVersion) return RecordingError::OtherVersion;
  const std::uint64_t in_ring = std::min(h.appended, h.ring_room);
  if (!fits(file, h.kept_at, h.kept) || !fits(file, h.ring_at, in_ring))
    return RecordingError::Truncated;
  read.events.reserve(h.kept + in_ring);
  for (std::uint64_t i = 0; i < h.kept; ++i)
    read.events.push_back(load_le<Event>(file, h.kept_at + i * sizeof(Event)));
  for (std::uint64_t i = 0; i < in_ring; ++i)
    read.events.push_back(load_le<Event>(file, h.ring_at + i * sizeof(Event)));
  std::ranges::stable_sort(read.events, {}, &Event::sequence);
  read.overwritten = h.appended - in_ring;
  return read;
}

std::vector<Event> events_of(const ToldLine& line, Time now) {
  const std::string text = (line.about + line.text).substr(0, kTextAtMost);
  std::vector<Event> all{
      {.time_ps = now.ps,
       .kind = EventKind::Told,
       .host = 0,
       .object = static_cast<std::uint32_t>(line.how),
       .sequence = 0,
       .fields = {static_cast<std::uint64_t>(line.reason), text.size(), line.about.size()}}};
  for (std::size_t at = 0; at < text.size(); at += kPieceBytes) {
    Event piece{.time_ps = now.ps,
                .kind = EventKind::ToldText,
                .host = 0,
                .object = static_cast<std::uint32_t>(all.size() - 1),
                .sequence = 0,
                .fields = {}};
    std::memcpy(piece.fields.data(), text.data() + at, std::min(kPieceBytes, text.size() - at));
    all.push_back(piece);
  }
  return all;
}

ToldLine told_at(const std::vector<Event>& events, std::size_t at) {
  const Event& head = events[at];
  const std::uint64_t bytes = std::min<std::uint64_t>(head.fields[1], kTextAtMost);
  std::string text;
  for (std::size_t i = at + 1; text.size() < bytes && i < events.size(); ++i) {
    const Event& piece = events[i];
    if (piece.kind != EventKind::ToldText || piece.object != i - at - 1) break;
    text.append(reinterpret_cast<const char*>(piece.fields.data()),
                std::min<std::size_t>(kPieceBytes, bytes - text.size()));
  }
  const std::size_t about = std::min<std::size_t>(text.size(), head.fields[2]);
  return {.how = static_cast<Telling>(
              std::min<std::uint32_t>(head.object, static_cast<std::uint32_t>(Telling::Warning))),
          .reason = static_cast<ReasonId>(head.fields[0]),
          .about = text.substr(0, about),
          .text = text.substr(about)};
}

}  // namespace softhca::trace
