// Pins: which frames must stay where they are, and how often each was asked for.
//
// Counts are kept per page, as runs of pages with equal counts, so that a registration of
// terabytes costs as much as one of a page. Live, the kernel pins too (os/kernel_pin): io_uring
// pins nest, and each registration takes its own, as a kernel driver would, so that one made after
// a remap holds the new frames; mlock does not nest, so pages are locked with their first pin and
// unlocked with their last, and pages that the program itself had locked are left to it.
//
// Friendly  what the kernel will not pin is counted and reported, never refused
// Strict    the memlock limit holds. Each registration is charged for all its pages, overlaps twice
//
// Threads     owned by the device's owner
// Invariants  (1) a page's count is the number of pins that contain it
//             (2) pages_pinned - pages_unpinned counters balance to 0 when all pins are released
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/address.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/range.h"
#include "base/result.h"
#include "os/kernel_pin.h"
#include "trace/journal.h"

namespace softhca::host {

struct PinPolicy {
  bool strict = false;
  std::uint64_t memlock_limit = UINT64_MAX;  // bytes; see os::memlock_limit()
};

struct PinId {
  std::uint64_t value{};
  friend constexpr auto operator<=>(PinId, PinId) = default;
};

struct Pinned {
  PinId id;
  std::uint64_t pages{};
  bool counted_only{};  // the kernel was asked and did not pin (limit, read-only pages, no backend)
  bool over_limit{};    // ... because of the memlock limit: hardware would have refused
};

class Pins {
 public:
  // `kernel` null: a modelled machine, whose OS asks count_at() before it moves a page.
  Pins(os::KernelPins* kernel, PinPolicy policy, trace::Tracer& tracer)
      : kernel_(kernel), policy_(policy), tracer_(tracer) {}
  ~Pins();
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  // Pins every page that the range touches, all or none. REQUIRES: not empty, does not wrap.
  // FAILS WITH MemlockExceeded (strict only): address and length asked, high = the limit in bytes.
  Result<Pinned, trace::Reason> pin(Range<PhysSpace> range, Time now);

  // REQUIRES: `id` came from pin() and was not released.
  void unpin(PinId id, Time now);

  std::uint32_t count_at(PhysAddr at) const;
  // The largest count of any page that the range touches. REQUIRES: not empty, does not wrap.
  std::uint32_t most_in(Range<PhysSpace> range) const;
  std::uint64_t pages_held() const { return pages_held_; }        // distinct pages
  std::uint64_t pages_charged() const { return pages_charged_; }  // sum over the pins
  std::size_t pin_count() const { return pins_.size(); }
  std::size_t run_count() const { return runs_.size(); }  // what the table of counts takes
  os::PinBackend backend() const {
    return kernel_ == nullptr ? os::PinBackend::Counted : kernel_->backend();
  }

  // What holds the frame of a byte, for copies by frame (host/ram.h).
  enum class HoldKind : std::uint8_t { None, Locked, Frame };
  struct Hold {
    HoldKind kind{};
    std::uint64_t bytes{};  // how far from there it is the same
    PinId id;               // Frame only: the newest pin of that address
  };
  Hold hold_at(PhysAddr at, std::uint64_t bytes) const;
  bool copy_from_frame(PinId id, PhysAddr at, Bytes to);
  bool copy_to_frame(PinId id, PhysAddr at, ConstBytes from);
  bool still_locked(PhysAddr at, std::uint64_t bytes) const;

 private:
  struct Run {
    std::uint64_t end{};    // first page number behind the run
    std::uint32_t count{};  // > 0
    bool locked_by_us{};    // Mlock only
    bool same_as(const Run& other) const {
      return count == other.count && locked_by_us == other.locked_by_us;
    }
  };
  // By first page number; no two overlap, and neighbours that touch differ.
  using Runs = std::map<std::uint64_t, Run>;
  struct Pin {
    std::uint64_t first_page{};
    std::uint64_t pages{};
    bool counted_only{};
    std::optional<os::HeldPin> held;  // IoUring only
  };

  Runs::iterator split_at(std::uint64_t page);
  void merge_around(std::uint64_t first, std::uint64_t end);
  std::optional<os::PinError> pin_in_kernel(Pin& pin);
  std::optional<os::PinError> lock_runs(const Pin& pin);
  void count_up(const Pin& pin);
  void count_down(const Pin& pin);
  void forget_frame(std::uint64_t first_page, PinId id);

  os::KernelPins* kernel_;
  PinPolicy policy_;
  trace::Tracer& tracer_;
  Runs runs_;
  std::unordered_map<std::uint64_t, Pin> pins_;              // by PinId
  std::multimap<std::uint64_t, std::uint64_t> frame_holds_;  // first page -> PinId, IoUring only
  std::uint64_t longest_hold_ = 0;  // pages; never smaller than any of frame_holds_
  std::uint64_t next_id_ = 1;
  std::uint64_t pages_held_ = 0;
  std::uint64_t pages_charged_ = 0;
};

}  // namespace softhca::host
