#include "driver/live/live_memory.h"

#include "os/page_access.h"
#include "os/reserved_memory.h"

namespace softhca::driver {

using trace::Reason;
using trace::ReasonId;

Reason LiveSpace::probe(Range<VirtSpace> range, bool write) {
  const auto answer = os::probe(range, write);
  if (answer) return {};
  const os::BadPage& bad = answer.error();
  ReasonId id = ReasonId::HoleInRange;
  switch (bad.fault) {
    case os::PageFault::Hole:
      id = ReasonId::HoleInRange;
      break;
    case os::PageFault::NoAccess:
    case os::PageFault::ReadOnly:
      id = ReasonId::PageReadOnly;
      break;
    case os::PageFault::Special:
      id = ReasonId::SpecialMapping;
      break;
    case os::PageFault::OutOfMemory:
      id = ReasonId::OutOfMemory;
      break;
  }
  return {.id = id, .address = bad.page.value, .length = range.length};
}

std::vector<pcie::Span> LiveSpace::frames(Range<VirtSpace> pages) {
  return {{PhysAddr{pages.start.value}, pages.length}};
}

std::vector<pcie::Span> LiveSpace::hold_frames(Range<VirtSpace> buffer) {
  return frames_ == nullptr ? AddressSpace::hold_frames(buffer) : frames_->take(buffer);
}

void LiveSpace::release_frames(std::span<const pcie::Span> spans) {
  if (frames_ != nullptr) frames_->give_back(spans);
}

void LiveSpace::keep_addresses(Range<VirtSpace> pages) {
  if (frames_ != nullptr) frames_->keep_addresses(pages);
}

namespace {

// What the program does to its memory needs no watcher: a copy goes by the address, and finds what
// is there now or that nothing is.
class LivePages final : public host::PageSource {
 public:
  explicit LivePages(LiveSpace& space) : space_(space) {}
  bool is_there() const override { return true; }
  Reason fault_in(Range<VirtSpace> pages, bool write, Time) override {
    return space_.probe(pages, write);
  }
  std::vector<pcie::Span> frames(Range<VirtSpace> pages) override {
    space_.keep_addresses(pages);
    return space_.frames(pages);
  }
  void watch(Range<VirtSpace>, host::TranslationWatcher&) override {}
  void unwatch(const host::TranslationWatcher&) override {}

 private:
  LiveSpace& space_;
};

}  // namespace

std::unique_ptr<host::PageSource> LiveSpace::page_source() {
  return std::make_unique<LivePages>(*this);
}

std::vector<bool> LiveSpace::present(Range<VirtSpace> pages) { return os::present_pages(pages); }

std::uint64_t LiveSpace::smallest_page(Range<VirtSpace> range) { return os::smallest_page(range); }

LiveRings::LiveRings() : memory_(os::reserve_memory()) {
  if (!memory_.empty()) free_.emplace(0, memory_.size());
}

LiveRings::~LiveRings() { os::release_reserved(memory_); }

Range<PhysSpace> LiveRings::reserved() const {
  return {{reinterpret_cast<std::uint64_t>(memory_.data())}, memory_.size()};
}

Bytes LiveRings::allocate(std::uint64_t bytes) {
  for (auto stretch = free_.begin(); stretch != free_.end(); ++stretch) {
    const auto [at, length] = *stretch;
    if (length < bytes) continue;
    free_.erase(stretch);
    if (length > bytes) free_.emplace(at + bytes, length - bytes);
    return memory_.subspan(at, bytes);
  }
  return {};
}

void LiveRings::release(Bytes ring) {
  os::discard_pages(ring);  // they read as zeros again
  std::uint64_t at = static_cast<std::uint64_t>(ring.data() - memory_.data());
  std::uint64_t length = ring.size();
  auto next = free_.lower_bound(at);
  if (next != free_.end() && next->first == at + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == at) {
    std::prev(next)->second += length;
    return;
  }
  free_.emplace(at, length);
}

}  // namespace softhca::driver
