// Page access: may this process read or write these pages? Answered by the kernel, not by a guess.
//
// The first half of a registration: every page is faulted in as the access needs it (a fresh page
// for a write, copies of shared ones broken), and the first page that cannot be is named.
//
// Populate  MADV_POPULATE_READ/WRITE (Linux 5.14): ENOMEM for a hole, EINVAL for a page without
//           the right, EFAULT behind a file's end
// Touch     older kernels: rights from /proc/self/maps, one byte of each page read by the kernel
//
// Threads   any; the answer is as old as the call, since other threads may unmap at any time
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/range.h"
#include "base/result.h"

namespace softhca::os {

enum class PageFault : std::uint8_t {
  Hole,         // not mapped, or mapped with nothing behind it (a file's end)
  NoAccess,     // mapped without any right (PROT_NONE)
  ReadOnly,     // a write was asked for, the page is readable only
  Special,      // device memory, kernel-provided pages, poisoned memory: cannot be pinned
  OutOfMemory,  // mapped and allowed, but the kernel has no page for it
};

struct BadPage {
  PageFault fault{};
  VirtAddr page;  // first page that failed, aligned
};

enum class ProbeMethod : std::uint8_t { Populate, Touch };
std::string_view probe_method_name(ProbeMethod method);
ProbeMethod best_probe_method();

// Faults the pages of `range` in for reading or writing. A range that wraps is a hole.
Result<void, BadPage> probe(Range<VirtSpace> range, bool write,
                            ProbeMethod method = best_probe_method());

// Which of the 4 KiB pages are in memory now, in order. Faults nothing in. REQUIRES: page aligned.
std::vector<bool> present_pages(Range<VirtSpace> pages);

// The smallest size of page that a mapping around the range has; 0 if not all of it is mapped.
std::uint64_t smallest_page(Range<VirtSpace> range);

}  // namespace softhca::os
