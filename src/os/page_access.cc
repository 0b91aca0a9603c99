#include "os/page_access.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

namespace softhca::os {
namespace {

constexpr std::uint64_t kAddressEnd = std::uint64_t{1} << 56;  // no user address lies above

struct Pages {
  std::uint64_t first{};  // address of the first page
  std::uint64_t end{};    // address behind the last one
};

struct Mapping {
  std::uint64_t start{};
  std::uint64_t end{};
  bool readable{};
  bool writable{};
};

struct Closed {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closed>;

// "start-end rwxp ..." of /proc/self/maps or smaps; false for any other line.
bool parse_mapping(const char* line, Mapping& mapping) {
  char rights[5] = {};
  if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &mapping.start, &mapping.end, rights) != 3)
    return false;
  mapping.readable = rights[0] == 'r';
  mapping.writable = rights[1] == 'w';
  return true;
}

// Calls `visit` for each mapping that overlaps the pages, in order, until it returns false.
template <class Visit>
void for_each_mapping(Pages pages, Visit visit) {
  const File file(std::fopen("/proc/self/maps", "re"));
  char line[512];
  Mapping mapping;
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (!parse_mapping(line, mapping) || mapping.end <= pages.first) continue;
    if (mapping.start >= pages.end || !visit(mapping)) return;
  }
}

// Whether the mapping around `address` is device memory or the like: flags io, pf or mm in smaps.
bool is_special(std::uint64_t address) {
  const File file(std::fopen("/proc/self/smaps", "re"));
  char line[512];
  bool inside = false;
  Mapping mapping;
  while (file && std::fgets(line, sizeof line, file.get()) != nullptr) {
    if (std::strncmp(line, "VmFlags:", 8) == 0) {
      if (!inside) continue;
      return std::strstr(line, " io") != nullptr || std::strstr(line, " pf") != nullptr ||
             std::strstr(line, " mm") != nullptr;
    }
    if (parse_mapping(line, mapping)) inside = mapping.start <= address && address < mapping.end;
  }
  return false;
}

bool is_mapped(std::uint64_t page) {
  unsigned char resident;
  return ::mincore(reinterpret_cast<void*>(page), kPage4K, &resident) == 0;
}

// The page failed with `error`, as madvise or a kernel copy would say it: why.
BadPage classify(std::uint64_t page, bool write, int error) {
  const auto bad = [page](PageFault fault) { return BadPage{fault, {page}}; };
  if (!is_mapped(page)) return bad(PageFault::Hole);
  if (error == ENOMEM) return bad(PageFault::OutOfMemory);
  if (error == EHWPOISON || is_special(page)) return bad(PageFault::Special);
  Mapping found;
  for_each_mapping({page, page + kPage4K}, [&](const Mapping& m) { return found = m, false; });
  if (!found.readable && !found.writable) return bad(PageFault::NoAccess);
  if (write && !found.writable) return bad(PageFault::ReadOnly);
  return bad(PageFault::Hole);  // allowed, yet nothing there: behind the end of a file
}

// 0, or the error of faulting in all pages.
int populate(Pages pages, bool write) {
  const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  for (int tries = 0; tries < 100; ++tries) {
    if (::madvise(reinterpret_cast<void*>(pages.first), pages.end - pages.first, advice) == 0)
      return 0;
    if (errno != EAGAIN && errno != EINTR) return errno;
  }
  return EAGAIN;
}

// The kernel does not say where it stopped. Halving finds it; what is populated already costs next
// to nothing.
Result<void, BadPage> probe_by_populating(Pages pages, bool write) {
  int error = populate(pages, write);
  if (error == 0) return {};
  while (pages.end - pages.first > kPage4K) {
    const std::uint64_t half = (pages.end - pages.first) / kPage4K / 2 * kPage4K;
    const Pages front{pages.first, pages.first + half};
    if (const int front_error = populate(front, write)) {
      pages = front;
      error = front_error;
    } else {
      pages.first = front.end;
    }
  }
  return classify(pages.first, write, error);
}

// One byte of each page, copied by the kernel: faults the pages in. Returns the first bad page.
std::optional<std::uint64_t> touch(Pages pages) {
  constexpr std::size_t kPerCall = 256;
  std::array<std::byte, kPerCall> sink;
  std::array<iovec, kPerCall> bytes;
  while (pages.first < pages.end) {
    const std::size_t count =
        std::min<std::uint64_t>(kPerCall, (pages.end - pages.first) / kPage4K);
    for (std::size_t i = 0; i < count; ++i)
      bytes[i] = {reinterpret_cast<void*>(pages.first + i * kPage4K), 1};
    const iovec local{sink.data(), count};
    const ssize_t moved = ::process_vm_readv(::getpid(), &local, 1, bytes.data(), count, 0);
    if (moved <= 0) return pages.first;
    pages.first += static_cast<std::uint64_t>(moved) * kPage4K;
  }
  return std::nullopt;
}

Result<void, BadPage> probe_by_touching(Pages pages, bool write) {
  std::uint64_t known_to = pages.first;
  std::optional<BadPage> bad;
  for_each_mapping(pages, [&](const Mapping& m) {
    if (m.start > known_to) return false;  // a hole
    if (!m.readable || (write && !m.writable)) {
      bad = classify(known_to, write, EINVAL);
      return false;
    }
    known_to = m.end;
    return known_to < pages.end;
  });
  if (!bad && known_to < pages.end) bad = BadPage{PageFault::Hole, {known_to}};
  const Pages allowed{pages.first, std::min(known_to, pages.end)};
  if (const auto page = touch(allowed)) return classify(*page, write, EFAULT);
  if (bad) return *bad;
  return {};
}

}  // namespace

std::string_view probe_method_name(ProbeMethod method) {
  return method == ProbeMethod::Populate ? "populate" : "touch";
}

ProbeMethod best_probe_method() {
  static const ProbeMethod method = [] {
    alignas(kPage4K) static std::byte page[kPage4K];
    const auto address = reinterpret_cast<std::uint64_t>(&page);
    return populate({address, address + kPage4K}, true) == 0 ? ProbeMethod::Populate
                                                             : ProbeMethod::Touch;
  }();
  return method;
}

Result<void, BadPage> probe(Range<VirtSpace> range, bool write, ProbeMethod method) {
  if (range.length == 0) return {};
  const VirtAddr first = align_down(range.start, kPage4K);
  if (range.wraps() || !Range<VirtSpace>{{}, kAddressEnd}.contains(range.start, range.length))
    return BadPage{PageFault::Hole, first};
  const Pages pages{first.value, first.value + pages_touched(range, kPage4K) * kPage4K};
  return method == ProbeMethod::Populate ? probe_by_populating(pages, write)
                                         : probe_by_touching(pages, write);
}

// Page by page where the stretch has a hole.
std::vector<bool> present_pages(Range<VirtSpace> pages) {
  std::vector<bool> present;
  std::array<unsigned char, 1024> states;
  for (std::uint64_t done = 0; done < pages.length;) {
    const std::uint64_t at = pages.start.value + done;
    std::uint64_t count = std::min<std::uint64_t>((pages.length - done) / kPage4K, states.size());
    if (::mincore(reinterpret_cast<void*>(at), count * kPage4K, states.data()) != 0) {
      count = 1;
      if (::mincore(reinterpret_cast<void*>(at), kPage4K, states.data()) != 0) states[0] = 0;
    }
    for (std::uint64_t i = 0; i < count; ++i) present.push_back((states[i] & 1) != 0);
    done += count * kPage4K;
  }
  return present;
}

std::uint64_t smallest_page(Range<VirtSpace> range) {
  const File file(std::fopen("/proc/self/smaps", "re"));
  char line[512];
  std::uint64_t reached = range.start.value, smallest = ~std::uint64_t{0};
  const std::uint64_t end = range.start.value + range.length;
  bool inside = false;
  Mapping mapping;
  while (file && reached < end && std::fgets(line, sizeof line, file.get()) != nullptr) {
    std::uint64_t kib = 0;
    if (inside && std::sscanf(line, "KernelPageSize: %" SCNu64 " kB", &kib) == 1) {
      smallest = std::min(smallest, kib << 10);
      reached = mapping.end;
      inside = false;
    } else if (parse_mapping(line, mapping)) {
      inside = mapping.start <= reached && reached < mapping.end;
    }
  }
  return reached >= end ? smallest : 0;
}

}  // namespace softhca::os
