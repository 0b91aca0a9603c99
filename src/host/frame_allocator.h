// FrameAllocator: who has which frame of a modelled machine's RAM.
//
// A bit for each 4 KiB frame, in blocks of 2 MiB, so that frames which come back are at once part
// of a huge frame again. Movable memory (of programs) is taken from the bottom, the rest from the
// top; `fragmentation` is the chance in percent that a single frame comes from anywhere instead.
//
// Every frame names its owner, so that a write that went astray can say whom it hit.
//
// Threads     one
// Invariants  (1) a frame is zero when it is taken. One that was never used is not touched for that
//             (2) the used() and free_frames() make up frames(); huge frames are aligned to their
//             size
#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/address.h"
#include "base/prng.h"
#include "base/range.h"
#include "host/ram.h"

namespace softhca::host {

struct Pid {
  std::uint32_t value{};
  friend constexpr auto operator<=>(Pid, Pid) = default;
};

enum class FrameUse : std::uint8_t {
  Free,
  Kernel,
  PageTable,
  Program,
  DeviceTable,
  Orphan,  // no program has it any more, but a device has it pinned
  Count_
};
inline constexpr std::size_t kFrameUseCount = static_cast<std::size_t>(FrameUse::Count_);
std::string_view frame_use_name(FrameUse use);

struct FrameOwner {
  FrameUse use{};
  Pid pid;      // Program, PageTable, Orphan: whose it is, or was
  VirtAddr at;  // Program, Orphan: where the program has it, or had it
  friend bool operator==(const FrameOwner&, const FrameOwner&) = default;
};

// Only programs' memory can be moved to other frames; the rest is kept apart from it.
constexpr bool is_movable(FrameUse use) { return use == FrameUse::Program; }

class FrameAllocator {
 public:
  // OWNS nothing; `ram` (an arena) outlives this. REQUIRES: `range` is within it, 4 KiB aligned;
  // fragmentation <= 100.
  FrameAllocator(Ram& ram, Range<PhysSpace> range, std::uint64_t seed, unsigned fragmentation);

  // A frame of 4 KiB, 2 MiB or 1 GiB, zeroed, with one share; none of it in `avoid`. Nothing when
  // there is none. REQUIRES: `avoid` is aligned to 2 MiB.
  std::optional<PhysAddr> take(std::uint64_t bytes, const FrameOwner& owner,
                               Range<PhysSpace> avoid = {});

  // `count` 4 KiB frames that follow each other; each is released on its own.
  std::optional<PhysAddr> take_run(std::uint64_t count, const FrameOwner& owner);

  // One more, or one less, that holds the frame. release() says whether it is free now.
  // REQUIRES: `frame` starts a frame of `bytes` that was taken.
  void share(PhysAddr frame);
  bool release(PhysAddr frame, std::uint64_t bytes);
  std::uint32_t shares(PhysAddr frame) const;  // 0: free

  // REQUIRES: `frame` starts a frame that was taken; use is not Free.
  void set_owner(PhysAddr frame, std::uint64_t bytes, const FrameOwner& owner);

  // A device wrote where nobody had asked it to: what of the range is free is zeroed when taken.
  // (Writes to frames that are taken need not be told.)
  void note_write(Range<PhysSpace> range);

  // Of any byte; Free outside the range. For a huge frame `at` is where its first byte is.
  FrameOwner owner_of(PhysAddr at) const;
  // The size of the frame that holds the byte: 4 KiB, 2 MiB or 1 GiB; 4 KiB if free.
  std::uint64_t frame_bytes(PhysAddr at) const;

  void set_fragmentation(unsigned percent);
  Range<PhysSpace> range() const { return range_; }
  std::uint64_t frames() const { return range_.length / kPage4K; }
  std::uint64_t free_frames() const { return free_; }
  // 4 KiB frames by use.
  std::uint64_t used(FrameUse use) const { return used_[static_cast<std::size_t>(use)]; }
  // How many frames of 2 MiB or 1 GiB could be had now.
  std::uint64_t free_huge(std::uint64_t bytes) const;
  // Free 4 KiB frames in the range. REQUIRES: aligned to 2 MiB.
  std::uint64_t free_in(Range<PhysSpace> range) const;

 private:
  static constexpr std::size_t kWords = 8;
  static constexpr std::uint32_t kBlockFrames = 512;
  struct Record {
    FrameOwner owner;
    std::uint32_t shares = 0;
  };
  // 2 MiB at an address that is a multiple of it; what lies outside the range is never free.
  struct Block {
    std::array<std::uint64_t, kWords> free{};  // a bit for each frame
    std::array<std::uint64_t, kWords> used_before{};
    std::uint32_t free_count = 0;
    std::uint8_t huge = 0;  // 1: one frame of 2 MiB; 2: a part of one of 1 GiB
    Record whole;           // huge only; of 1 GiB the first block has it
  };

  std::optional<std::uint64_t> find_up(std::uint64_t from, Range<PhysSpace> avoid) const;
  std::optional<std::uint64_t> find_down(Range<PhysSpace> avoid) const;
  std::optional<std::uint64_t> choose(FrameUse use, Range<PhysSpace> avoid);
  std::optional<std::uint64_t> find_huge(std::uint64_t blocks, FrameUse use,
                                         Range<PhysSpace> avoid);
  bool is_free(std::uint64_t frame) const;
  bool whole_blocks_free(std::uint64_t first, std::uint64_t count) const;
  void occupy(std::uint64_t frame, const FrameOwner& owner);
  void occupy_huge(std::uint64_t block, std::uint64_t count, const FrameOwner& owner);
  Record& record_of(PhysAddr at);
  const Record* find_record(PhysAddr at) const;

  Ram& ram_;
  Range<PhysSpace> range_;
  Prng prng_;
  unsigned fragmentation_;
  std::uint64_t first_block_;  // number of the block that blocks_[0] is
  std::vector<Block> blocks_;
  std::unordered_map<std::uint64_t, Record> small_;  // of 4 KiB frames, by number
  std::uint64_t free_ = 0;
  std::uint64_t next_ = 0;  // the frame behind the last one that was taken from the bottom
  std::array<std::uint64_t, kFrameUseCount> used_{};
};

}  // namespace softhca::host
