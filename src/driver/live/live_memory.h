// The memory of this process, as an engine wants to see it: AddressSpace and RingSource.
#pragma once
#include <cstdint>
#include <map>

#include "driver/address_space.h"
#include "driver/live/live_frames.h"

namespace softhca::driver {

// A frame is a page of this process, or one of the device's own (live_frames.h); the kernel answers
// about access.
class LiveSpace final : public AddressSpace {
 public:
  // From now on; null: a region's memory stays what it is. OWNS nothing.
  void move_into(LiveFrames* frames) { frames_ = frames; }

  trace::Reason probe(Range<VirtSpace> range, bool write) override;
  std::vector<pcie::Span> frames(Range<VirtSpace> pages) override;
  std::vector<pcie::Span> hold_frames(Range<VirtSpace> buffer) override;
  void release_frames(std::span<const pcie::Span> spans) override;
  // Somebody will go by these addresses, whatever regions there are.
  void keep_addresses(Range<VirtSpace> pages);
  std::unique_ptr<host::PageSource> page_source() override;
  std::vector<bool> present(Range<VirtSpace> pages) override;
  std::uint64_t smallest_page(Range<VirtSpace> range) override;

 private:
  LiveFrames* frames_ = nullptr;
};

// Rings out of one stretch of reserved memory, so that the bus can tell them from the program's.
class LiveRings final : public RingSource {
 public:
  LiveRings();  // reserves address space; memory is taken as rings are used
  ~LiveRings() override;
  LiveRings(const LiveRings&) = delete;
  LiveRings& operator=(const LiveRings&) = delete;

  Bytes allocate(std::uint64_t bytes) override;
  void release(Bytes ring) override;
  Range<PhysSpace> reserved() const;

 private:
  Bytes memory_;                                 // empty if nothing could be reserved
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes, no two touch
};

}  // namespace softhca::driver
