// LiveFrames: registered memory in frames that the device owns (SOFTHCA_MEMORY=frames).
//
// The whole pages within a region are moved into the device's own memory (os/frames), and mapped
// back where they were. The device, and peers of this host, reach them there whatever the program
// maps at its own addresses; they go back when the last region that has them goes. What cannot be
// moved stays ordinary memory, which is reached by its address, and a reason says why.
//
// Which page lies where is not kept here but asked of the kernel (os/frames/own_mappings.h), since
// the program may move, unmap and lengthen its mappings. Kept is how many regions have each frame.
//
// Threads     called with the device owned
// Invariants  (1) a frame that a region has stays what it is
//             (2) a frame that is mapped in the program is not given out again
//             (3) pages that ordinary regions have are neither moved nor moved back: somebody may
//             be
//                 copying to them by their address, and would miss them
// See also    docs/frames.md
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "os/frames/child_wait.h"
#include "os/frames/frame_file.h"
#include "os/frames/own_mappings.h"
#include "os/frames/page_mover.h"
#include "pcie/port.h"
#include "trace/journal.h"
#include "trace/reason.h"

namespace softhca::driver {

class LiveFrames {
 public:
  using Tell = std::function<void(const trace::Reason&)>;
  // FAILS WITH FramesUnavailable: also where another device of the process has them. OWNS nothing.
  static Result<std::unique_ptr<LiveFrames>, trace::Reason> open(const os::GuardedCopy& copy,
                                                                 trace::Tracer& tracer, Tell tell);
  ~LiveFrames();
  LiveFrames(const LiveFrames&) = delete;
  LiveFrames& operator=(const LiveFrames&) = delete;

  // Where the pages around a buffer are from now on, in order: in frames, moved there if they were
  // not, or at the program's addresses. REQUIRES: it is not empty, and can be read.
  std::vector<pcie::Span> take(Range<VirtSpace> buffer);
  // What take() gave is not needed any more.
  void give_back(std::span<const pcie::Span> spans);
  // Somebody goes by the addresses of these pages from now on, for good.
  void keep_addresses(Range<VirtSpace> pages);

  // The device's own view of all frames, and their file.
  Range<PhysSpace> memory() const;
  int fd() const { return file_.fd(); }

  // Around a fork. The child has its own copy of the pages, with what is in them then; the parent
  // waits for it.
  void before_fork();
  void after_fork_in_parent();
  // Returns how many bytes the child still shares with its parent, for want of memory or of
  // a descriptor.
  std::uint64_t leave_behind();

 private:
  enum class Page : std::uint8_t {
    Free,
    Used,
    Returned,  // during a sweep: it has been moved back
    Kept,      // likewise: it is still mapped, or may be, and could not be
  };
  struct Slot {
    std::vector<std::uint32_t> users;  // of each page: how many regions have it
    std::vector<Page> pages;
    std::uint32_t used = 0;
    VirtAddr start;           // where its pages were in the program when they were moved
    std::uint64_t bytes = 0;  // how much that was; what is behind it the program has added
    bool is_mapped = false;   // after a sweep: somewhere in the program, without a region
  };
  using Spans = std::vector<pcie::Span>;
  // Start and end, and how often.
  using Stretches = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t>;

  LiveFrames(os::FrameFile file, const os::GuardedCopy& copy, trace::Tracer& tracer, Tell tell);
  void take_part(const os::OwnMapping& mapping, Range<VirtSpace> part, Spans& into);
  void take_again(const os::OwnMapping& mapping, Range<VirtSpace> part, Spans& into);
  void move_all_in(Range<VirtSpace> pages, Spans& into);
  trace::ReasonId why_not_movable(const os::OwnMapping& mapping, Range<VirtSpace> part) const;
  trace::Reason move_in(Range<VirtSpace> pages, Spans& into);
  void append(Spans& spans, pcie::Span span) const;
  bool is_frame(const pcie::Span& span) const;
  Stretches::const_iterator kept_near(std::uint64_t at) const;
  std::uint64_t kept_from(std::uint64_t at) const;
  std::uint64_t kept_to(std::uint64_t at) const;
  bool may_move() const;
  bool is_own_view(const os::OwnMapping& mapping) const;
  // Moves what no region has back to where it is mapped, or frees it.
  void sweep();
  void keep_unfound(const os::SystemError& error);
  void move_back(const os::OwnMapping& mapping, Slot& slot);
  std::optional<ConstBytes> bytes_of(const os::OwnMapping& mapping, Range<VirtSpace> run) const;
  bool move_run_back(const os::OwnMapping& mapping, Range<VirtSpace> run);
  void free_unmapped(std::uint32_t number, Slot& slot);
  std::uint32_t new_slot();

  os::FrameFile file_;
  os::PageMover mover_;
  trace::Tracer& tracer_;
  Tell tell_;
  std::map<std::uint32_t, Slot> slots_;
  std::set<std::uint32_t> idle_;  // those with pages that no region has
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t next_slot_ = 0;
  Stretches kept_;                      // by their addresses
  std::uint64_t longest_kept_ = 0;      // no stretch was longer since there was none
  std::optional<os::ChildWait> child_;  // around a fork
};

}  // namespace softhca::driver
