// What tests of the host need around the part that they test: counters, a journal, table frames.
#pragma once
#include <vector>

#include "host/iommu.h"
#include "host/table_frames.h"
#include "trace/journal.h"

namespace softhca::host {

struct TestBench {
  explicit TestBench(std::size_t table_frames = 64)
      : words(table_frames * kTableEntries), frames(std::as_writable_bytes(std::span(words))) {}

  std::uint64_t count(trace::Counter counter) const { return tracer.counters().get(counter); }
  std::vector<trace::Event> events(trace::EventKind kind) const {
    std::vector<trace::Event> found;
    for (const trace::Event& event : journal.events())
      if (event.kind == kind) found.push_back(event);
    return found;
  }

  std::vector<std::uint64_t> cells = std::vector<std::uint64_t>(trace::kCounterCount);
  trace::Journal journal{1 << 12};
  trace::Tracer tracer{trace::Counters(cells), &journal};
  std::vector<std::uint64_t> words;
  TableFrames frames;
};

inline constexpr BusRights kReadWrite = BusRight::Read | BusRight::Write;

}  // namespace softhca::host
