// Kernel: the operating system of a modelled machine, in miniature.
//
// It gives programs memory that appears when it is first used, shares pages after fork until one
// side writes, swaps pages out and moves them about. What a device has pinned (host/pin.h) it
// leaves where it is; what a program gave back while it was pinned becomes an orphan, and is freed
// when reap_orphans() finds that the last pin is gone.
//
// Threads     one
// Invariants  (1) a frame with a pin is never moved, swapped out, or taken for something else
//             (2) when all programs have gone and all pins too, every frame and slot is free again
// See also    kernel_memory.cc (regions and page faults), kernel_move.cc, kernel_swap.cc
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/free_list.h"
#include "base/result.h"
#include "host/frame_allocator.h"
#include "host/mmu.h"
#include "host/pin.h"
#include "host/program.h"
#include "host/ram.h"
#include "pcie/port.h"
#include "trace/journal.h"
#include "trace/reason.h"

namespace softhca::host {

struct KernelSettings {
  Range<PhysSpace> memory{};   // the frames that it gives out
  std::uint64_t seed = 1;      // where frames and regions lie
  unsigned fragmentation = 0;  // percent; host/frame_allocator.h
  unsigned levels = 4;         // of page tables
  std::uint64_t swap_bytes = std::uint64_t{64} << 20;
  // A device's pages are the program's alone: fault_in() ends sharing even for reading, and at
  // fork the child gets a copy of what is pinned (as Linux does since 5.12 and 5.19). Else it is
  // shared, and the parent's next write moves the parent off the frame that the device has.
  bool copy_pinned_at_fork = true;
  TlbShape tlb{};
};

// Why a program's access or request failed, and what a real kernel would answer.
enum class MemoryError : std::uint8_t {
  None,
  NotMapped,    // SIGSEGV, SEGV_MAPERR; ENOMEM for protect
  NoRight,      // SIGSEGV, SEGV_ACCERR
  OutOfMemory,  // ENOMEM; for a page fault the program would be killed
  BadArgument,  // EINVAL: not a multiple of the page size, or empty
  Occupied,     // EEXIST: something is mapped there
  BadTable,     // SIGBUS: somebody wrote into the page tables
};
std::string_view memory_error_name(MemoryError error);

struct AccessFault {
  MemoryError error{};
  VirtAddr at;                 // the first byte that could not be reached; those before it were
  std::uint32_t error_code{};  // of the page fault (host/mmu.h)
};

// Why a page was moved or copied, or should have been: `why` and `wanted` of the events.
enum class PageWish : std::uint8_t {
  Migrate = 1,
  Compact,
  SwapOut,
  CopyOnWrite,
  CopyAtFork,
};

// What the kernel did about a page fault: `answer` of the event.
enum class FaultAnswer : std::uint8_t { Refused, ZeroPage, Copied, MadeWritable, SwappedIn };

// What became of a wish to move a page.
enum class MoveAnswer : std::uint8_t {
  Done,
  Pinned,     // a device has it: it stays
  NotThere,   // no page there now, or it is in swap
  NoRoom,     // no frame or slot to move it to
  NotMovable  // huge pages are not swapped
};

struct Compaction {
  bool made{};  // a frame of the size can be had now
  std::uint64_t moved{};
  std::uint64_t kept{};  // frames that a pin held in the way
};

class Kernel {
 public:
  // OWNS nothing; `ram` (an arena), `pins` and `tracer` outlive this.
  Kernel(Ram& ram, Pins& pins, const KernelSettings& settings, trace::Tracer& tracer);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // A program without memory. Nothing: out of memory.
  Result<Pid, MemoryError> spawn(std::string_view name, Time now = {});
  // A child with the parent's memory, shared until one of them writes.
  // FAILS WITH OutOfMemory; then nothing has changed.
  Result<Pid, MemoryError> fork(Pid parent, Time now);
  void exit(Pid pid, Time now);

  // Regions (kernel_memory.cc). REQUIRES for all: the program runs.
  //
  // Zeroed memory at addresses of the kernel's choice. Pages of `page_bytes` (4 KiB, 2 MiB, 1 GiB)
  // appear when they are first used; `bytes` is rounded up to them.
  Result<VirtAddr, MemoryError> map_memory(Pid pid, std::uint64_t bytes, std::uint64_t page_bytes,
                                           PageRights rights);
  // The same at an address. FAILS WITH Occupied, BadArgument.
  Result<void, MemoryError> map_at(Pid pid, VirtAddr at, std::uint64_t bytes,
                                   std::uint64_t page_bytes, PageRights rights);
  // Gives memory back; holes in the range do not matter.
  // FAILS WITH BadArgument: an end lies within a page.
  Result<void, MemoryError> unmap(Pid pid, Range<VirtSpace> range, Time now);
  // FAILS WITH NotMapped (a hole), BadArgument.
  Result<void, MemoryError> protect(Pid pid, Range<VirtSpace> range, PageRights rights, Time now);
  // False: children of fork do not get it (MADV_DONTFORK). FAILS as protect.
  Result<void, MemoryError> set_inherited(Pid pid, Range<VirtSpace> range, bool inherited);

  // What the program's processor does: through the TLB, with page faults.
  Result<void, AccessFault> load(Pid pid, VirtAddr from, Bytes to, Time now);
  Result<void, AccessFault> store(Pid pid, VirtAddr to, ConstBytes from, Time now);

  // For a device (kernel_memory.cc). Makes every page present; with `write` also writable, and no
  // longer shared with a relative. Nothing of the range is swapped out for the rest of it.
  // FAILS WITH HoleInRange, PageReadOnly, OutOfMemory: address of the page, length asked.
  trace::Reason fault_in(Pid pid, Range<VirtSpace> range, bool write, Time now);
  // The frames behind the range, joined where they touch. REQUIRES: page aligned, all present.
  std::vector<pcie::Span> frames_of(Pid pid, Range<VirtSpace> pages) const;

  // Moving and swapping pages (kernel_move.cc, kernel_swap.cc). Whoever shares a page moves along.
  MoveAnswer migrate(Pid pid, VirtAddr at, Time now);
  Compaction compact(Time now, std::uint64_t huge_bytes = kPage2M);
  MoveAnswer swap_out(Pid pid, VirtAddr at, Time now);
  // Swaps out up to `pages` pages that were not used lately; says how many.
  std::uint64_t reclaim(std::uint64_t pages, Time now);
  // Frees the orphans whose last pin is gone; says how many 4 KiB frames.
  std::uint64_t reap_orphans();

  // `watcher` is told before pages of the range change, until unwatch() or exit().
  void watch(Pid pid, Range<VirtSpace> range, TranslationWatcher& watcher);
  void unwatch(Pid pid, const TranslationWatcher& watcher);

  // Whose frame it is: "database" in "program database (pid 7) at 0x7f..."
  std::string owner_text(PhysAddr at) const;
  std::string_view name_of(Pid pid) const;  // of those that have gone too
  bool is_running(Pid pid) const { return programs_.contains(pid.value); }
  const Program& program(Pid pid) const;  // REQUIRES: it runs
  PageWalk walk(Pid pid, VirtAddr at) const { return program(pid).table.walk(at); }

  FrameAllocator& frames() { return frames_; }
  const FrameAllocator& frames() const { return frames_; }
  Mmu& mmu() { return mmu_; }
  std::uint64_t programs() const { return programs_.size(); }
  std::uint64_t page_tables() const { return frames_.used(FrameUse::PageTable); }
  std::uint64_t swap_slots_used() const { return slots_.size() - free_slots_.size(); }
  std::uint64_t orphans() const { return frames_.used(FrameUse::Orphan); }  // 4 KiB frames

 private:
  // A page in swap, and how many programs will ask for it.
  struct Slot {
    std::unique_ptr<std::byte[]> page;
    std::uint32_t users = 0;
  };

  // Pages that are not swapped out for as long as this lives.
  class Kept;
  struct KeptRange {
    Pid pid;
    Range<VirtSpace> range;
  };

  Program& running(Pid pid);
  Result<Program*, MemoryError> new_program(Time now);
  MemoryError inherit(Program& parent, Program& child, Time now);
  MemoryError inherit_page(Program& parent, Program& child, const Region& region,
                           const PageEntry& entry, Time now);

  // kernel_memory.cc
  bool split_regions(Program& program, Range<VirtSpace> range);
  void drop_pages(Program& program, Range<VirtSpace> range, Time now);
  void let_go(const Program& program, VirtAddr page, PhysAddr frame, std::uint64_t bytes, Time now);
  MemoryError resolve(Program& program, VirtAddr at, CpuAccess kind, std::uint32_t code, Time now);
  MemoryError give_page(Program& program, const Region& region, VirtAddr page, Time now);
  MemoryError own_page(Program& program, const Region& region, const PageEntry& entry, Time now,
                       FaultAnswer& answer);
  std::optional<PhysAddr> take_frame(std::uint64_t bytes, const FrameOwner& owner, Time now);
  bool make_room(Time now);
  void copy_frame(PhysAddr from, PhysAddr to, std::uint64_t bytes);
  void tell_watchers(const Program& program, Range<VirtSpace> range, Time now);
  template <class Buffer>
  Result<void, AccessFault> move(Pid pid, VirtAddr at, Buffer buffer, CpuAccess kind, Time now);

  // kernel_move.cc
  std::vector<Program*> sharers(PhysAddr frame, VirtAddr page);
  bool is_pinned(Pid pid, VirtAddr page, PhysAddr frame, std::uint64_t bytes, PageWish wish,
                 Time now);
  MoveAnswer move_page(VirtAddr page, PhysAddr frame, std::uint64_t bytes, Range<PhysSpace> avoid,
                       PageWish wish, Time now);
  bool can_empty(Range<PhysSpace> window, Compaction& outcome, Time now);

  // kernel_swap.cc
  std::optional<std::uint64_t> take_slot();
  void release_slot(std::uint64_t slot);
  bool is_kept_in(const std::vector<Program*>& programs, VirtAddr page) const;
  MoveAnswer swap_page(const PageEntry& entry, Time now);
  MemoryError swap_in(Program& program, const Region& region, const PageEntry& entry, Time now);
  std::uint64_t sweep(std::uint64_t pages, bool also_used, Time now);

  Ram& ram_;
  Pins& pins_;
  KernelSettings settings_;
  trace::Tracer& tracer_;
  FrameAllocator frames_;
  Mmu mmu_;
  Prng prng_;
  FreeList pcids_;
  std::map<std::uint32_t, std::unique_ptr<Program>> programs_;  // by pid
  std::vector<std::string> names_;                              // by pid; 0 is the kernel's
  std::vector<Slot> slots_;                                     // as far as slots were ever used
  std::vector<std::uint64_t> free_slots_;
  std::map<std::uint64_t, std::uint64_t> orphans_;  // frame -> bytes
  Pid hand_pid_;                                    // where reclaim() goes on
  VirtAddr hand_at_;                                // in it
  std::vector<KeptRange> kept_;
};

}  // namespace softhca::host
