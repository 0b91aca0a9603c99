// PageMover: puts other memory under a program's pages without losing a byte that it writes.
//
// to_file     private pages become those of a file, which somebody else has mapped, too
// to_private  and back
//
// The bytes are copied, and then the new pages are mapped over the old ones in one step. What other
// threads write in between has to wait:
//
// Held   userfaultfd write-protects the pages; a thread that writes to them, also in a system call,
//        sleeps in its page fault until the new ones are there. Needs the kernel's leave to hold
//        faults of the kernel itself: CAP_SYS_PTRACE, vm.unprivileged_userfaultfd=1, or access to
//        /dev/userfaultfd. With the lesser leave that everybody has, a system call of another
//        thread would fail with EFAULT; so it is not used.
// Alone  there is no other thread that could write
//
// Signals are blocked meanwhile, since a handler that wrote to the pages would wait for itself.
//
// Threads  one call at a time
// See also docs/frames.md
#pragma once
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/range.h"
#include "base/result.h"
#include "os/guarded_copy.h"
#include "os/owned_fd.h"
#include "os/system_error.h"

namespace softhca::os {

struct MappingRights {
  bool readable{};
  bool writable{};
};

class PageMover {
 public:
  // Held, where that is allowed, or Alone. OWNS nothing; `copy` outlives this.
  static PageMover open(const GuardedCopy& copy);
  static PageMover alone(const GuardedCopy& copy) { return PageMover(copy, {}); }

  bool holds_writers() const { return static_cast<bool>(faults_); }
  // Whether open() would.
  static bool may_hold_writers();

  // Maps `file`, from `offset` on, over pages of private memory, with their bytes in it. The same
  // memory is at `alias`. REQUIRES: whole pages of anonymous memory that may be read and written,
  // not of the stack in use (is_in_use()); `file` has memory there; without holds_writers(), no
  // other thread. FAILS WITH what the kernel says; then the pages are as before.
  Result<void, SystemError> to_file(Range<VirtSpace> pages, int file, std::uint64_t offset,
                                    Bytes alias);
  // Puts private memory with the bytes of `from` over such pages, with those rights. REQUIRES: the
  // pages are mapped from a memfd; only threads of this process write to them; as above.
  Result<void, SystemError> to_private(Range<VirtSpace> pages, ConstBytes from,
                                       MappingRights rights);

  // Whether the range has what this thread needs while it moves pages: its stack, its variables.
  static bool is_in_use(Range<VirtSpace> range);

  // In the child of a fork: nobody else runs there.
  void abandon() { faults_.reset(); }

 private:
  PageMover(const GuardedCopy& copy, OwnedFd faults) : copy_(&copy), faults_(std::move(faults)) {}
  Result<void, SystemError> hold(Range<VirtSpace> pages);
  void let_go(Range<VirtSpace> pages, bool are_old);

  const GuardedCopy* copy_;
  OwnedFd faults_;  // a userfaultfd; none: Alone
};

}  // namespace softhca::os
