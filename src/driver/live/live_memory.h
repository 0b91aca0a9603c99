// The memory of this process, as an engine wants to see it: AddressSpace and RingSource.
#pragma once
#include <cstdint>
#include <map>

#include "driver/address_space.h"

namespace softhca::driver {

// A frame is a page of this process; the kernel answers about access.
class LiveSpace final : public AddressSpace {
 public:
  trace::Reason probe(Range<VirtSpace> range, bool write) override;
  std::vector<pcie::Span> frames(Range<VirtSpace> pages) override;
  std::unique_ptr<host::PageSource> page_source() override;
  std::vector<bool> present(Range<VirtSpace> pages) override;
  std::uint64_t smallest_page(Range<VirtSpace> range) override;
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
