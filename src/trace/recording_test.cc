#include "trace/recording.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "trace/findings.h"
#include "trace/journal.h"

namespace softhca::trace {
namespace {

// A file of a recording, whose pages appear as they are made usable.
struct Recorder {
  explicit Recorder(std::uint64_t room = Recording::kBytes) : memory(Recording::kBytes) {
    recording = std::make_unique<Recording>(memory, [this, room](auto at, auto bytes) {
      grown += bytes;
      return at + bytes <= room;
    });
    journal.set_listener([this](const Event& event) { recording->append(event); });
  }
  void emit(EventKind kind, std::uint32_t object, std::uint64_t first = 0) {
    journal.append({.time_ps = ++time,
                    .kind = kind,
                    .host = 0,
                    .object = object,
                    .sequence = 0,
                    .fields = {first}});
  }
  void tell(Telling how, ReasonId reason, const std::string& about, const std::string& text) {
    for (const Event& event : events_of({how, reason, about, text}, {++time}))
      journal.append(event);
  }
  Result<Recorded, RecordingError> read() const { return read_recording(memory); }
  Findings findings() const { return findings_of(*read()); }
  template <class Change>
  Result<Recorded, RecordingError> read_changed(Change change) {
    change(recording->header());
    return read();
  }

  std::vector<std::byte> memory;
  std::uint64_t grown = 0;
  std::int64_t time = 0;
  std::unique_ptr<Recording> recording;
  Journal journal{1};
};

TEST(Recording, HoldsWhatWasAppendedWithoutBeingClosed) {
  Recorder r;
  for (std::uint32_t i = 0; i < 10; ++i)
    r.emit(i % 2 == 0 ? EventKind::Timeout : EventKind::Doorbell, i);
  const auto read = r.read();
  ASSERT_TRUE(read);
  ASSERT_EQ(read->events.size(), 10u);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(read->events[i].object, i);
    EXPECT_EQ(read->events[i].sequence, i);
  }
  EXPECT_EQ(read->header.closed, 0u);
  EXPECT_LE(r.grown, 2u << 20) << "a short run has a small file";
}

TEST(Recording, KeepsTheNewestOfMostAndTheFirstOfWhatTellsCauses) {
  Recorder r;
  r.tell(Telling::Cause, ReasonId::KeyStale, "queue pair 7", "key_stale");
  for (std::uint64_t i = 0; i < Recording::kRingRoom + 5; ++i)
    r.emit(EventKind::Doorbell, static_cast<std::uint32_t>(i));
  const auto read = r.read();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->overwritten, 5u);
  EXPECT_EQ(read->events.front().kind, EventKind::Told);
  EXPECT_EQ(read->events.back().object, Recording::kRingRoom + 4);
  EXPECT_EQ(findings_of(*read).causes.size(), 1u);
}

TEST(Recording, SaysHowMuchHadNoRoom) {
  Recorder r(Recording::kHeadBytes);
  r.emit(EventKind::Doorbell, 1);
  r.emit(EventKind::Timeout, 1);
  const auto read = r.read();
  ASSERT_TRUE(read);
  EXPECT_TRUE(read->events.empty());
  EXPECT_EQ(read->header.no_room, 2u);
}

TEST(Recording, AppendsNothingOnceItIsClosed) {
  Recorder r;
  r.emit(EventKind::Doorbell, 1);
  const std::uint64_t used = r.recording->close();
  r.emit(EventKind::Doorbell, 2);
  r.memory.resize(used);
  const auto read = r.read();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->events.size(), 1u);
  EXPECT_EQ(read->header.closed, 1u);
}

TEST(Recording, ExplainsItself) {
  Recorder r;
  const RecordingHeader& h = r.recording->header();
  const std::string table(reinterpret_cast<const char*>(r.memory.data()) + h.table_at,
                          h.table_bytes);
  EXPECT_EQ(std::ranges::count(table, '\n'), static_cast<std::ptrdiff_t>(kEventKindCount));
  EXPECT_NE(table.find("rnr_wait qpn waited_ps,,,,"), std::string::npos);
}

TEST(ReadRecording, BelievesNoNumberInIt) {
  using Error = RecordingError;
  const auto error_of = [](const Result<Recorded, Error>& read) {
    EXPECT_FALSE(read);
    return read ? Error::NotOne : read.error();
  };
  Recorder r;
  r.emit(EventKind::Doorbell, 1);
  const RecordingHeader good = r.recording->header();
  EXPECT_EQ(error_of(read_recording({})), Error::NotOne);
  EXPECT_EQ(error_of(read_recording(ConstBytes(r.memory).first(40))), Error::Truncated);
  EXPECT_EQ(error_of(read_recording(ConstBytes(r.memory).first(Recording::kHeadBytes))),
            Error::Truncated);
  const std::uint64_t far = ~std::uint64_t{0};
  EXPECT_EQ(error_of(r.read_changed([&](auto& h) { h.kept = far; })), Error::Truncated);
  EXPECT_EQ(error_of(r.read_changed([&](auto& h) { h = good, h.kept_at = far; })),
            Error::Truncated);
  EXPECT_EQ(error_of(r.read_changed([&](auto& h) { h = good, h.ring_room = h.appended = far; })),
            Error::Truncated);
  EXPECT_EQ(error_of(r.read_changed([&](auto& h) { h = good, h.ring_at = far - 63; })),
            Error::Truncated);
  EXPECT_EQ(error_of(r.read_changed([&](auto& h) { h = good, h.version = 3; })),
            Error::OtherVersion);
  EXPECT_EQ(error_of(r.read_changed([&](auto& h) { h = good, h.magic[0] = 'x'; })), Error::NotOne);
  std::vector<std::byte> old(4096);
  std::memcpy(old.data(), "SOFTHCA-JOURNAL 1\n", 18);
  EXPECT_EQ(error_of(read_recording(old)), Error::OtherVersion);
}

TEST(Told, ComesBackAsItWasTold) {
  const std::string text(777, 'x');
  const auto events = events_of({Telling::Warning, ReasonId::KeyStale, "me", text}, {5});
  const ToldLine back = told_at(events, 0);
  EXPECT_EQ(back.how, Telling::Warning);
  EXPECT_EQ(back.reason, ReasonId::KeyStale);
  EXPECT_EQ(back.about, "me");
  EXPECT_EQ(back.text, text);
}

TEST(Told, IsCutOffWhereItsPiecesAreNotThereOrItsNumbersAreWrong) {
  auto events = events_of({Telling::Cause, ReasonId::KeyStale, "me", std::string(100, 'x')}, {5});
  events[0].object = 77;
  events[0].fields[1] = events[0].fields[2] = ~std::uint64_t{0};
  events.resize(3);
  const ToldLine back = told_at(events, 0);
  EXPECT_EQ(back.about.size(), 80u);
  EXPECT_EQ(back.text, "");
}

TEST(Findings, AreTheCausesInTheirOrderEachOnceWithHowOftenItCameAgain) {
  Recorder r;
  r.tell(Telling::Cause, ReasonId::QpNotReady, "posting a send to queue pair 7", "first");
  r.tell(Telling::Again, ReasonId::QpNotReady, "posting a send to queue pair 8", "again");
  r.tell(Telling::Warning, ReasonId::EventsUnacknowledged, "ibv_destroy_cq(cq 3)", "waits");
  r.tell(Telling::Cause, ReasonId::HoleInRange, "memory registration", "one");
  r.tell(Telling::Cause, ReasonId::HoleInRange, "memory registration", "another");
  r.tell(Telling::Cause, ReasonId::KeyStale, "queue pair 7", "key");
  r.tell(Telling::Cause, ReasonId::KeyStale, "queue pair 8", "key");
  const Findings found = r.findings();
  ASSERT_EQ(found.causes.size(), 5u);
  EXPECT_EQ(found.causes[0].about, "posting a send to queue pair 7");
  EXPECT_EQ(found.causes[0].at.ps, 1);
  EXPECT_EQ(found.causes[0].repeated, 1u);
  EXPECT_TRUE(found.causes[1].is_warning);
  EXPECT_EQ(found.causes[2].text, "one");
  EXPECT_EQ(found.causes[2].repeated, 1u);
  EXPECT_EQ(found.causes[4].about, "queue pair 8");
  EXPECT_TRUE(found.delays.empty());
}

TEST(Findings, AreTheDelaysOfEachQueuePair) {
  Recorder r;
  r.emit(EventKind::Timeout, 9, 1);
  r.emit(EventKind::Retransmit, 9, 3);
  r.emit(EventKind::Retransmit, 9, 2);
  r.emit(EventKind::RnrWait, 4, 10'000'000);
  r.emit(EventKind::RnrWait, 4, 5'000'000);
  const Findings found = r.findings();
  ASSERT_EQ(found.delays.size(), 2u);
  EXPECT_EQ(found.delays[0].qpn, 4u);
  EXPECT_EQ(found.delays[0].rnr_waits, 2u);
  EXPECT_EQ(found.delays[0].rnr_waited, microseconds(15));
  EXPECT_EQ(found.delays[1].timeouts, 1u);
  EXPECT_EQ(found.delays[1].retransmits, 5u);
}

}  // namespace
}  // namespace softhca::trace
